"""`paucal.label`: label maps from a teacher, or from published maps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from paucal.data.classes import read_class_list
from paucal.data.maps.reader import LabelMaps
from paucal.data.maps.store import require_maps
from paucal.evaluation.plots import save_figure
from paucal.labeling.map_figure import map_picture
from paucal.reading import named_path
from paucal.runner.console import Console, RecordingConsole
from paucal.runner.frames import Data, takes_frames
from paucal.runner.images import load_images
from paucal.runner.outputs import check_file, refuse_inside_images
from paucal.runs.files import try_folder
from paucal.runs.lock import require_unlocked
from paucal.settings.options import check_ranges
from paucal.settings.values import from_python, shows_settings
from paucal.types import UserError
from paucal.verbs.label.make_maps import WHAT, Labeled, convert_published, label_images
from paucal.verbs.label.settings import LabelSettings


@shows_settings(LabelSettings)
@takes_frames
def label(data: Data, **settings: Any) -> Labeled:
    """Make label maps: the predictions of a trained classifier at every cell of every image; same as `paucal label`.

    Args:
        data: Folder of images, Parquet, a list file, the name of a published set, or "digits".
        **settings: Any field of `paucal.verbs.label.settings.LabelSettings`; `output` and either `teacher` or
            `from_published` are needed. Unfinished maps are completed.

    Returns:
        The folder of maps, as `paucal.train(..., labels=...)` takes it, and facts about them.

    Raises:
        UserError: The teacher has other classes or its accuracy is too low, or the folder holds other files.
        TypeError: A setting does not exist.

    Example:
        >>> maps = paucal.label("photos/", teacher="runs/1", output="labels/")  # doctest: +SKIP
        >>> paucal.train("photos/", method="token-labeling", labels=maps.folder)  # doctest: +SKIP
    """
    label_settings = from_python(LabelSettings, {**settings, "data": data}, "paucal.label", "label")
    console = RecordingConsole()
    return replace(label_set(label_settings, console), said=tuple(console.said))


def label_set(settings: LabelSettings, console: Console) -> Labeled:
    """Make or convert the maps of a set of images, and print messages; see `label`."""
    _check_settings(settings)
    output, picture = _output_paths(settings)
    with console.progress("reading images") as advance:
        images = load_images(settings, advance)
    for note in images.notes:
        console.say(f"note: {note}")
    if settings.teacher is None:
        names = None if settings.published_classes is None else read_class_list(settings.published_classes)
        folder = Path(str(settings.from_published)).expanduser()
        labeled = convert_published(images, folder, output, console, names, settings.min_accuracy)
    else:
        try:
            labeled = label_images(images, settings, output, console)
        except KeyboardInterrupt:
            console.say(f"the maps so far are in {output}: repeat the same call to continue.")
            raise
    if picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        save_figure(picture, map_picture(images, LabelMaps(output)))
        console.say(f"a picture of some of them: {picture}")
    return labeled


def _check_settings(settings: LabelSettings) -> None:
    check_ranges(settings)
    if settings.picture is not None and Path(settings.picture).suffix.lower() != ".png":
        raise UserError(f"--picture is {settings.picture!r}; give a name that ends in .png.")
    if (settings.teacher is None) == (settings.from_published is None):
        raise UserError("give a --teacher, or --from-published with a folder of maps; one of the two.")


def _output_paths(settings: LabelSettings) -> tuple[Path, Path | None]:
    """Return the checked paths of the maps and of their picture."""
    if settings.output is None:
        raise UserError("--output is missing: give a folder for the maps.")
    images, root = {"DATA": settings.data}, settings.data_root
    output = named_path(settings.output)
    refuse_inside_images(output, images, root)
    try_folder(output)
    require_unlocked(output, WHAT)
    require_maps(output)
    return output, None if settings.picture is None else check_file(settings.picture, images, root, "--picture")
