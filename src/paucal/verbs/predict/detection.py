"""Prediction with a detector: the objects in images, as Python objects, CSV or COCO JSON."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from torchvision import tv_tensors

from paucal.data.arguments import ImageInMemory, list_sources
from paucal.models.trained import read_card
from paucal.runner.console import Console, LoggedConsole
from paucal.runner.frames import Frame, images_of_frame, is_frame
from paucal.runner.input_images import open_sources, read_all
from paucal.runner.outputs import check_new_folder, refuse_inside_images
from paucal.runs import RunFolder, open_model_folder
from paucal.settings.options import check_ranges
from paucal.tasks.detection.detections import EDGES, Detections, coco_json_text, rescale
from paucal.tasks.detection.images import Boxes
from paucal.tasks.detection.model import DetectorCard, load_detector
from paucal.tasks.detection.network.detector import Detector
from paucal.tasks.detection.pictures import MIN_SHOWN_SCORE, TILE_WIDTH, draw_detections, resize_to_width
from paucal.tasks.detection.views import make_empty_target, make_evaluation_transform
from paucal.types import UserError
from paucal.verbs.predict.answers import TableList
from paucal.verbs.predict.settings import OutputSettings, PredictSettings
from paucal.writing import csv_text, write_atomically

HEADER = ("path", "class", "score", *EDGES)  # columns of the table
Source = str | os.PathLike[str] | ImageInMemory


@dataclass(frozen=True)
class Objects:
    """The objects that a detector finds in one image.

    Attributes:
        path: Path of the image; None for a PIL image or array.
        found: Detections in descending order of their scores: boxes in pixels of the image, scores, labels and, if
            the detector predicts masks, also masks; `found.mask(0)` is the mask of the first object.
        classes: Class names; a label is an index into them.
        size: (height, width) of the image in pixels.
        picture: The image with its objects drawn on it; None if drawing was not requested.
    """

    path: str | None
    found: Detections
    classes: tuple[str, ...]
    size: tuple[int, int]
    picture: Image.Image | None = None


class FoundObjects(TableList[Objects]):
    """The objects in the images of one call, as a list that can be converted to tables."""

    def to_arrow(self) -> pa.Table:
        """Return a table with a row for each object: path, class, score and box corners in pixels, without rounding."""
        edges = np.concatenate([np.zeros((0, 4)), *(row.found.boxes for row in self)]).T
        return pa.table(
            {
                "path": pa.array([row.path for row in self for _ in range(len(row.found))], pa.string()),
                "class": pa.array([row.classes[n] for row in self for n in row.found.labels.tolist()], pa.string()),
                "score": pa.array([score for row in self for score in row.found.scores.tolist()], pa.float32()),
                **dict(zip(EDGES, edges, strict=True)),
            }
        )


def detect_objects(
    run: str | os.PathLike[str] | RunFolder,
    sources: Source | Sequence[Source] | Frame,
    settings: PredictSettings | None = None,
    console: Console | None = None,
    drawn: bool = False,
    image: str | None = None,
) -> FoundObjects:
    """Find objects in images.

    Args:
        run: Run folder of `paucal detect`.
        sources: One or several files, folders, patterns, PIL images or arrays (H, W) or (H, W, 3); or a
            DataFrame with a row for each image.
        settings: Prediction settings; detectors use only `device` and `on_bad_image`.
        console: Console for skipped images and progress.
        drawn: Whether to draw the objects on copies of the images.
        image: Column of a DataFrame with the paths or PIL images; None for the first column with a usual name, such
            as "path".

    Returns:
        The objects in each image, as a list with a method `to_pandas()`.

    Raises:
        UserError: The run does not exist or is not a detector, or an image is missing or cannot be read.
    """
    settings, console = settings or PredictSettings(), console or LoggedConsole()
    check_ranges(settings)
    refuse_classifier_settings(settings)
    detector, card, device = load_detector(run, settings.device)
    # Boxes are in pixels of the original image, so the image is read in full size.
    decode_options = replace(card.preprocessing.decode_options, side=None)
    source_list = images_of_frame(sources, image) if is_frame(sources) else list_sources(sources)
    image_sets = open_sources(source_list, console, decode_options)
    total, results = sum(map(len, image_sets)), FoundObjects()
    with console.progress("detecting") as advance:
        for name, picture in read_all(image_sets, decode_options, settings.on_bad_image, console):
            results.append(detect_image(detector, card, name, picture, device, drawn))
            advance(len(results), total)
    return results


def detect_as_text(
    source: str, paths: Sequence[str], settings: PredictSettings, outputs: OutputSettings, console: Console
) -> str:
    """Return the CSV or JSON text of `paucal predict` for a detector, and write the images of --pictures."""
    folder = None
    if outputs.pictures is not None:
        folder = check_new_folder(outputs.pictures, {}, flag="--pictures")
        for path in paths:
            refuse_inside_images(folder, {"PATHS": path}, flag="--pictures")
    run = open_model_folder(Path(source))
    rows = detect_objects(run, paths, settings, console, drawn=folder is not None)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        width = len(str(len(rows)))
        for number, row in enumerate(rows, 1):
            path = folder / f"{number:0{width}d}-{Path(row.path or 'image').stem[:100]}.png"
            if (picture := row.picture) is not None:
                write_atomically(path, lambda file, picture=picture: picture.save(file, "PNG"))
    if outputs.format == "json":
        card = read_card(run, DetectorCard)
        keys, sizes = [row.path or "" for row in rows], [row.size for row in rows]
        return coco_json_text(keys, sizes, [row.found for row in rows], card.classes, card.category_ids)
    return csv_text(HEADER, *([row.path, *cells] for row in rows for cells in object_table_rows(row)))


def object_table_rows(row: Objects) -> list[list[str]]:
    """Return the CSV row of each confident detection, without the column "path"."""
    confident = row.found.with_min_score(MIN_SHOWN_SCORE)
    return [
        [row.classes[label], f"{score:.4f}", *(f"{value:.1f}" for value in box)]
        for box, score, label in zip(confident.boxes, confident.scores, confident.labels.tolist(), strict=True)
    ]


@torch.inference_mode()
def detect_image(
    detector: Detector,
    card: DetectorCard,
    name: str | None,
    image: Image.Image,
    device: torch.device,
    drawn: bool = False,
) -> Objects:
    """Find the objects of one image; see `detect_objects`."""
    size = (image.height, image.width)
    transform = make_evaluation_transform(card.resize_to, card.preprocessing.mean, card.preprocessing.std)
    network_input = transform(tv_tensors.Image(image), make_empty_target(size))[0].as_subclass(torch.Tensor)
    input_size = (int(network_input.shape[-2]), int(network_input.shape[-1]))
    detections = rescale(detector(network_input[None].to(device), [input_size])[0], input_size, size)
    if not drawn:
        return Objects(name, detections, card.classes, size)
    no_true_boxes = Boxes(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, np.bool_), size)
    picture = draw_detections(enlarge(image), detections, card.classes, no_true_boxes)
    return Objects(name, detections, card.classes, size, picture)


def enlarge(image: Image.Image) -> Image.Image:
    """Enlarge an image if it is so small that drawn class names would cover its objects."""
    return resize_to_width(image, round(image.width * max(1.0, TILE_WIDTH / image.width)))


def refuse_classifier_settings(settings: PredictSettings) -> None:
    """Refuse settings that detectors do not support."""
    for name in ("mirror", "scales", "precision"):
        if getattr(settings, name) not in (False, None):
            raise UserError(f"--{name} is not supported for detectors: remove --{name}.")
