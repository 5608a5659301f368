"""Masks of new images, and pictures of them, written into a folder."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from paucal.data.arguments import list_sources, path_text
from paucal.data.images import ImageSet
from paucal.data.sources.joining import SEPARATOR
from paucal.reading import named_path
from paucal.runner.console import Console, LoggedConsole
from paucal.runner.input_images import InMemory, full_name, open_sources, read_all
from paucal.runner.outputs import refuse_inside_images
from paucal.runs import write_atomically
from paucal.runs.files import try_folder
from paucal.settings.options import check_ranges
from paucal.settings.values import from_python, shows_settings
from paucal.tasks.segmentation.conclusion import write_mask
from paucal.tasks.segmentation.job import check_factors
from paucal.tasks.segmentation.pictures import overlay, palette
from paucal.tasks.segmentation.trained import SegmentationModel, load_segmenter
from paucal.types import UserError
from paucal.verbs.predict.settings import PredictSettings

MASKS, OVERLAYS = "masks", "overlays"
Source = str | os.PathLike[str]


@dataclass(frozen=True)
class MaskPrediction:
    """The mask of one image.

    Attributes:
        path: Of the image.
        mask: The file that was written, with the values of the training masks.
        overlay: The picture of it that was written.
        shares: Share of the image's pixels that each class has, by name.
    """

    path: str
    mask: Path
    overlay: Path
    shares: dict[str, float]


@shows_settings(PredictSettings)
def predict_masks(
    model: SegmentationModel | Source, images: Source | Sequence[Source], /, output: Source, **settings: Any
) -> list[MaskPrediction]:
    """Write the masks of images, and pictures of them; the same as `paucal predict` with a run of `paucal segment`.

    Args:
        model: A run, its folder, or a model that `load_segmenter` has loaded, which stays on the device it is on.
        images: Image files, folders (searched to any depth), or patterns such as "photos/*.jpg"; one or several.
        output: A new or empty folder; it gets `masks/`, PNG files with the values of the training masks, and
            `overlays/`, the images under the colours of their classes.
        **settings: Any field of `paucal.verbs.predict.settings.PredictSettings`: `scales`, `mirror`, `device`,
            `on_bad_image`.

    Returns:
        A prediction for each image, in the order given, those of folders sorted by name.

    Raises:
        UserError: there is no such run, it is no segmentation model, an image is not there or cannot be read, or the
            folder is not empty.
        TypeError: a setting does not exist.
    """
    sources = [one for one in list_sources(images) if isinstance(one, str)]
    if not sources:
        raise UserError("masks are named after their images: give files, folders or patterns, or ask load_segmenter.")
    chosen = from_python(PredictSettings, settings, "paucal.predict_masks", "predict")
    loaded = model if isinstance(model, SegmentationModel) else path_text(model, "the model")
    return segment_all(loaded, sources, Path(os.fspath(output)), chosen, LoggedConsole())


def segment_all(
    model: SegmentationModel | str, sources: Sequence[str], output: Path, settings: PredictSettings, console: Console
) -> list[MaskPrediction]:
    """Write the masks of everything that some sources hold; see `predict_masks`."""
    check_ranges(settings)
    check_factors("scales", settings.scales)
    loaded = model if isinstance(model, SegmentationModel) else load_segmenter(model, settings.device)
    opened = open_sources(list(sources), console, loaded.reading)
    names = _names(opened)
    output = named_path(str(output))
    for source in sources:
        refuse_inside_images(output, {"PATHS": source if SEPARATOR not in source else None})
    _require_empty(output)
    found: list[MaskPrediction] = []
    with console.progress("segmenting") as advance:
        for path, picture in read_all(opened, loaded.reading, settings.on_bad_image, console):
            found.append(_segmented(loaded, path or "", picture, names[path or ""], output, settings))
            advance(len(found), len(names))
    return found


def _segmented(
    model: SegmentationModel, path: str, picture: Image.Image, name: str, output: Path, settings: PredictSettings
) -> MaskPrediction:
    classes = model.mask(picture, tuple(settings.scales or (1.0,)), settings.mirror)
    mask = write_mask(output / MASKS, name, classes, model.card.coding)
    drawn = overlay(picture, classes, palette(model.card.coding))
    place = (output / OVERLAYS).joinpath(*PurePosixPath(name).with_suffix(".png").parts)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, lambda file: drawn.save(file, "PNG"))
    counts = np.bincount(classes.ravel(), minlength=len(model.classes)) / classes.size
    return MaskPrediction(path, mask, place, dict(zip(model.classes, counts.tolist(), strict=True)))


def _names(opened: Sequence[ImageSet | InMemory]) -> dict[str, str]:
    """Return the name below the output of each image's path.

    Raises:
        UserError: two masks would have one name.
    """
    found: dict[str, str] = {}
    taken: dict[str, str] = {}
    for images in opened:
        for path, key in _paths(images):
            stem = PurePosixPath(key).with_suffix("").as_posix()
            if stem in taken and taken[stem] != path:
                raise UserError(
                    f"the masks of {taken[stem]!r} and {path!r} would have one name: segment them into two folders."
                )
            taken[stem], found[path] = path, key
    return found


def _paths(images: ImageSet | InMemory) -> Iterator[tuple[str, str]]:
    if isinstance(images, InMemory):
        return
    for key in images.keys:
        yield full_name(images, key), key


def _require_empty(output: Path) -> None:
    there = sorted(one.name for one in output.iterdir()) if output.is_dir() else []
    if there:
        raise UserError(f"--output: {str(output)!r} is not empty (it has {there[0]!r}): give a new folder.")
    try_folder(output)
