"""Prediction with a segmentation model: write masks, and images overlaid with their masks, into a folder."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from paucal.data.arguments import list_sources, path_text
from paucal.data.images import ImageSet
from paucal.data.sources.joining import SEPARATOR
from paucal.runner.console import Console, LoggedConsole
from paucal.runner.input_images import MemoryImage, open_sources, path_of_image, read_all
from paucal.runner.outputs import check_new_folder, refuse_inside_images
from paucal.settings.options import check_ranges
from paucal.settings.values import settings_from_keywords, with_settings_signature
from paucal.tasks.segmentation.job import check_factors
from paucal.tasks.segmentation.model import SegmentationModel, load_segmenter
from paucal.tasks.segmentation.pictures import class_colours, draw_overlay, write_mask, write_png
from paucal.types import UserError
from paucal.verbs.predict.settings import PredictSettings

MASKS, OVERLAYS = "masks", "overlays"  # subfolders of the output folder
Source = str | os.PathLike[str]


@dataclass(frozen=True)
class MaskPrediction:
    """The mask of one image.

    Attributes:
        path: Path of the image.
        mask: Path of the mask file, which encodes classes by the same pixel values as the training masks.
        overlay: Path of the image file overlaid with the colours of the classes.
        shares: Fraction of the image's pixels in each class, by class name.
    """

    path: str
    mask: Path
    overlay: Path
    shares: dict[str, float]


@with_settings_signature(PredictSettings)
def predict_masks(
    model: SegmentationModel | Source, images: Source | Sequence[Source], /, output: Source, **settings: Any
) -> list[MaskPrediction]:
    """Write the masks and overlays of images; the same as `paucal predict` with a run of `paucal segment`.

    Args:
        model: A run folder, or a model loaded with `load_segmenter`, which stays on its device.
        images: One or several image files, folders (searched to any depth), or patterns such as "photos/*.jpg".
        output: A new or empty folder for the results: `masks/`, PNG files with the values of the training masks, and
            `overlays/`, the images overlaid with the colours of their classes.
        **settings: Any field of `paucal.verbs.predict.settings.PredictSettings`: `scales`, `mirror`, `device`,
            `on_bad_image`.

    Returns:
        A prediction for each image, in the order given; images of a folder are sorted by name.

    Raises:
        UserError: The run does not exist or is not a segmentation run, an image is missing or cannot be read, or the
            output folder is not empty.
        TypeError: A setting does not exist.
    """
    all_sources = list_sources(images)
    sources = [source for source in all_sources if isinstance(source, str)]
    if not sources or len(sources) < len(all_sources):
        raise UserError(
            "masks are named after their image files: give files, folders or patterns; for PIL images and arrays, use "
            "paucal.load_segmenter."
        )
    typed_settings = settings_from_keywords(PredictSettings, settings, "paucal.predict_masks", "predict")
    loaded_or_path = model if isinstance(model, SegmentationModel) else path_text(model, "the model")
    return segment_all(loaded_or_path, sources, Path(os.fspath(output)), typed_settings, LoggedConsole())


def segment_all(
    model: SegmentationModel | str, sources: Sequence[str], output: Path, settings: PredictSettings, console: Console
) -> list[MaskPrediction]:
    """Write the masks and overlays of all images in `sources`; see `predict_masks`."""
    check_ranges(settings)
    check_factors("scales", settings.scales)
    segmenter = model if isinstance(model, SegmentationModel) else load_segmenter(model, settings.device)
    image_sets = open_sources(list(sources), console, segmenter.decode_options)
    names = _mask_names(image_sets)
    output = check_new_folder(str(output), {})
    for source in sources:
        refuse_inside_images(output, {"PATHS": source if SEPARATOR not in source else None})
    predictions, coding = list[MaskPrediction](), segmenter.card.coding
    with console.progress("segmenting") as advance:
        for path, picture in read_all(image_sets, segmenter.decode_options, settings.on_bad_image, console):
            name, classes = names[path or ""], segmenter.mask(picture, settings.test_scales, settings.mirror)
            mask = write_mask(output / MASKS, name, classes, coding)
            overlay = write_png(output / OVERLAYS, name, draw_overlay(picture, classes, class_colours(coding)))
            counts = np.bincount(classes.ravel(), minlength=len(segmenter.classes))
            shares = dict(zip(segmenter.classes, (counts / classes.size).tolist(), strict=True))
            predictions.append(MaskPrediction(path or "", mask, overlay, shares))
            advance(len(predictions), len(names))
    return predictions


def _mask_names(image_sets: Sequence[ImageSet | MemoryImage]) -> dict[str, str]:
    """Return the name of each image's mask, by image path; the name is the image's path relative to its source."""
    names: dict[str, str] = {}
    paths_by_stem: dict[str, str] = {}
    for images in image_sets:
        if isinstance(images, MemoryImage):
            continue
        for key in images.keys:
            path, stem = path_of_image(images, key), PurePosixPath(key).with_suffix("").as_posix()
            if paths_by_stem.setdefault(stem, path) != path:
                raise UserError(
                    f"the masks of {paths_by_stem[stem]!r} and {path!r} would have the same name: segment the images "
                    "into two folders."
                )
            names[path] = key
    return names
