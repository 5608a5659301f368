"""Finding objects with the detector of a run, in any images."""

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors

from paucal.data.arguments import ImageInMemory, list_sources
from paucal.models.saved import read_card
from paucal.reading import named_path
from paucal.runner.console import Console, LoggedConsole
from paucal.runner.input_images import open_sources, read_all
from paucal.runner.outputs import refuse_inside_images
from paucal.runs import RunFolder, open_model_folder, write_atomically
from paucal.runs.files import try_folder
from paucal.settings.options import check_ranges
from paucal.tasks.detection.annotations import Boxes
from paucal.tasks.detection.card import DetectorCard, load_detector
from paucal.tasks.detection.detector import Detector
from paucal.tasks.detection.document import coco_document
from paucal.tasks.detection.judging import Found, found_in
from paucal.tasks.detection.pictures import SHOWN, TILE, at_width, draw_found
from paucal.tasks.detection.views import evaluation_view
from paucal.types import UserError
from paucal.verbs.predict.settings import AnswerSettings, PredictSettings

Source = str | os.PathLike[str] | ImageInMemory


@dataclass(frozen=True)
class Objects:
    """What a detector has found in one image.

    Attributes:
        path: Of the image; None where it was given as a picture.
        found: Boxes in pixels of the image, scores, labels and, where the detector answers them, masks, the surest
            first; `found.mask(0)` is the first object's.
        classes: Names of the labels.
        size: (height, width) of the image in pixels.
        picture: The image, with what was found drawn on it; None where it was not asked for.
    """

    path: str | None
    found: Found
    classes: tuple[str, ...]
    size: tuple[int, int]
    picture: Image.Image | None = None


def detect_objects(
    run: str | os.PathLike[str] | RunFolder,
    sources: Source | Sequence[Source],
    settings: PredictSettings | None = None,
    console: Console | None = None,
    drawn: bool = False,
) -> list[Objects]:
    """Find objects in images.

    Args:
        run: Of `paucal detect`.
        sources: Files, folders, patterns, PIL images and arrays (H, W) or (H, W, 3); one or several of them.
        settings: Device, and what to do about unreadable images.
        console: Says what is skipped, and shows progress.
        drawn: Whether to draw what was found.

    Raises:
        UserError: there is no such detector, or an image is not there or cannot be read.
    """
    settings, console = settings or PredictSettings(), console or LoggedConsole()
    check_ranges(settings)
    if settings.mirror or settings.scales is not None:
        flag = "--mirror" if settings.mirror else "--scales"
        raise UserError(f"{flag} averages answers for an image, and this run is a detector: leave it out.")
    detector, card, device = load_detector(run, settings.device)
    # Boxes are told in pixels of the image itself, so it is not reduced on the way.
    whole = replace(card.preprocessing.reading, side=None)
    opened = open_sources(list_sources(sources), console, whole)
    total, results = sum(map(len, opened)), []
    with console.progress("detecting") as advance:
        for name, image in read_all(opened, whole, settings.on_bad_image, console):
            results.append(_objects(detector, card, name, image, device, drawn))
            advance(len(results), total)
    return results


def find_objects(
    source: str, paths: Sequence[str], settings: PredictSettings, wanted: AnswerSettings, console: Console
) -> str:
    """Return what `paucal predict` prints for a detector, and draw its pictures where they are asked for.

    Args:
        source: Run of `paucal detect`.
        paths: Of images.
        settings: Of the prediction.
        wanted: The form of the answer, and the folder for pictures.
        console: Speaks.

    Raises:
        UserError: an image or the folder for the pictures does not do.
    """
    folder = None if wanted.pictures is None else named_path(wanted.pictures, "--pictures")
    if folder is not None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"--pictures: {wanted.pictures!r} exists already and is not empty: give another folder.")
        for path in paths:
            refuse_inside_images(folder, {"PATHS": path}, flag="--pictures")
        try_folder(folder)
    run = open_model_folder(Path(source))
    rows = detect_objects(run, paths, settings, console, drawn=folder is not None)
    if folder is not None:
        write_pictures(rows, folder)
    if wanted.format == "json":
        return as_coco(rows, read_card(run, DetectorCard))
    return as_csv(rows)


def as_csv(rows: Sequence[Objects], least: float = SHOWN) -> str:
    """Return a line per object of at least a score: path, class, score, and its corners in pixels."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["path", "class", "score", "left", "top", "right", "bottom"])
    for row in rows:
        answers = row.found.above(least)
        for box, score, label in zip(answers.boxes, answers.scores, answers.labels.tolist(), strict=True):
            writer.writerow([row.path, row.classes[label], f"{score:.4f}", *(f"{value:.1f}" for value in box)])
    return text.getvalue()


def as_coco(rows: Sequence[Objects], card: DetectorCard) -> str:
    """Return all detections as COCO's JSON, with packed masks where the detector answers them."""
    keys, sizes = [row.path or "" for row in rows], [row.size for row in rows]
    return coco_document(keys, sizes, [row.found for row in rows], card.classes, card.category_ids)


def write_pictures(rows: Sequence[Objects], folder: Path) -> None:
    """Write the pictures of a prediction, named by their number and by the image, into a folder.

    Raises:
        UserError: a file of that name is there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    width = len(str(len(rows)))
    for number, row in enumerate(rows, 1):
        stem = Path(row.path or "image").stem
        path = folder / f"{number:0{width}d}-{stem[:100]}.png"
        if path.exists():
            raise UserError(f"--pictures: {str(path)!r} exists already: give another folder.")
        picture = row.picture
        if picture is not None:
            write_atomically(path, lambda file, picture=picture: picture.save(file, "PNG"))


@torch.inference_mode()
def _objects(
    detector: Detector, card: DetectorCard, name: str | None, image: Image.Image, device: torch.device, drawn: bool
) -> Objects:
    size = (image.height, image.width)
    view = evaluation_view(card.resize_to, card.preprocessing.mean, card.preprocessing.std)
    empty = {
        "boxes": tv_tensors.BoundingBoxes(torch.zeros(0, 4), format="XYXY", canvas_size=size),  # type: ignore[call-overload]
        "labels": torch.zeros(0, dtype=torch.int64),
    }
    seen = view(tv_tensors.Image(image), empty)[0].as_subclass(torch.Tensor)
    sides = (int(seen.shape[-2]), int(seen.shape[-1]))
    answer = detector(seen[None].to(device), [sides])[0]
    found = found_in(answer, sides, size)
    picture = draw_found(_legible(image), found, card.classes, _nothing(size)) if drawn else None
    return Objects(name, found, card.classes, size, picture)


def _legible(image: Image.Image) -> Image.Image:
    """Return an image, enlarged where it is so small that names would cover its objects."""
    return at_width(image, round(image.width * max(1.0, TILE / image.width)))


def _nothing(size: tuple[int, int]) -> Boxes:
    return Boxes(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, np.bool_), size)
