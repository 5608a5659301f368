"""`paucal label`: label maps from a teacher, or from published ones."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace

from paucal.cli.arguments import add_settings, new_parser, parse
from paucal.data.maps.reader import LabelMaps
from paucal.data.maps.store import require_maps
from paucal.data.splits.classes import read_class_list
from paucal.evaluation.record import save_figure
from paucal.labeling.picture import map_picture
from paucal.reading import named_path
from paucal.runs.writable import try_folder
from paucal.settings.groups import LABELLED, LabelledDataSettings
from paucal.settings.options import check_numbers
from paucal.types import UserError
from paucal.verbs.labeling.make_maps import LEVEL, label_images, open_teacher
from paucal.verbs.labeling.published_maps import convert_published
from paucal.verbs.run.images import load_images
from paucal.verbs.run.outputs import check_file, refuse_among
from paucal.verbs.run.voice import Voice

DESCRIPTION = """Ask a trained classifier what it sees in every part of every image.
The maps are what 'paucal train --method token-labeling --labels' learns from. The teacher is tried on labelled images
first. A call that was interrupted can be made again and goes on. With --from-published, maps that the authors of token
labeling have published (a file for each image) are converted instead."""
DATA_FLAGS = ("classes", "data_root", "download", "on_bad_image")


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    values = _read(argv)
    output, picture = _places(values)
    voice = Voice()
    settings = LabelledDataSettings(data=values.data, **{name: getattr(values, name) for name in DATA_FLAGS})
    with voice.progress("reading images") as advance:
        images = load_images(settings, advance)
    for note in images.notes:
        voice.say(f"note: {note}")
    if values.from_published is not None:
        names = None if values.published_classes is None else read_class_list(values.published_classes)
        folder = Path(values.from_published).expanduser()
        convert_published(images, folder, output, voice, names, values.min_accuracy)
    else:
        teacher = open_teacher(values.teacher, values.img_size, values.device)
        limits = (values.top_k, values.min_accuracy, values.batch_size, values.workers)
        try:
            label_images(images, teacher, output, voice, *limits)
        except KeyboardInterrupt:
            voice.say(f"the maps made so far are in {output}: the same call goes on from there.")
            raise
    if picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        save_figure(picture, map_picture(images, LabelMaps(output)))
        voice.say(f"a picture of some of them: {picture}")
    return 0


def _places(values: Namespace) -> tuple[Path, Path | None]:
    """Return where the maps and their picture go, once it is known that they can."""
    images, root = {"DATA": values.data}, values.data_root
    output = named_path(values.output)
    refuse_among(output, images, root)
    try_folder(output)
    require_maps(output)
    return output, None if values.picture is None else check_file(values.picture, images, root, "--picture")


def _read(argv: Sequence[str]) -> Namespace:
    parser = new_parser("label", DESCRIPTION)
    parser.add_argument("data", type=str, help=f"images: {LABELLED}")
    parser.add_argument("--teacher", type=str | None, help="run folder, or a timm model with its weights")
    parser.add_argument("--output", "--out", type=str, required=True, help="folder for the maps")
    parser.add_argument("--from-published", type=str | None, metavar="FOLDER", help="convert the maps in this folder")
    parser.add_argument(
        "--published-classes",
        type=str | None,
        metavar="FILE",
        help="names of the published maps' classes, one a line in the order of their numbers (default: the data's)",
    )
    parser.add_argument("--picture", type=str | None, metavar="FILE", help="draw the maps of some images as a PNG")
    parser.add_argument("--top-k", type=int, default=5, help="classes kept at each cell")
    parser.add_argument(
        "--img-size", type=int, nargs="+", metavar="SIZE", help="pixels the teacher looks at images with"
    )
    parser.add_argument("--min-accuracy", type=float, default=LEVEL, help="what the teacher must reach to go on")
    parser.add_argument("--batch-size", "-b", type=int, default=32, help="images per forward pass")
    parser.add_argument("--workers", "-j", type=int, default=0, help="processes that load images")
    parser.add_argument("--device", type=str, default="cpu", help="cpu, cuda or mps")
    add_settings(parser, LabelledDataSettings, skip=["data"])
    values, _ = parse(parser, argv)
    many = (1, 1_000_000)
    check_numbers(values, {"batch_size": (1, 1 << 20), "workers": (0, 64), "top_k": many, "min_accuracy": (0, 1)})
    if values.picture is not None and Path(values.picture).suffix.lower() != ".png":
        raise UserError(f"--picture is {values.picture!r}; give a name that ends in .png.")
    if (values.teacher is None) == (values.from_published is None):
        raise UserError("give a --teacher, or --from-published with a folder of maps; one of the two.")
    return values
