"""`paucal predict --to`: write predictions as labels, with copies of the images, in a layout of `paucal convert`."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paucal.data.decode import DEFAULT_DECODE_OPTIONS, UnreadableImage
from paucal.data.images import ImageSet
from paucal.data.sources.joining import join_sets
from paucal.export.reading import task_of_model
from paucal.models.tasks import DETECTION, REGRESSION, SEGMENTATION
from paucal.models.trained import read_card
from paucal.reading import expand_user_path
from paucal.runner.console import Console, NullConsole
from paucal.runner.input_images import InputImages, MemoryImage, open_sources, path_of_image
from paucal.runner.outputs import check_new_folder, refuse_inside_images
from paucal.runs import open_model_folder
from paucal.tasks.detection.detections import Detections
from paucal.tasks.detection.model import DetectorCard
from paucal.tasks.detection.pictures import MIN_SHOWN_SCORE
from paucal.tasks.segmentation.job import check_factors
from paucal.tasks.segmentation.model import load_segmenter
from paucal.types import UserError
from paucal.verbs.convert.content import (
    AnnotatedObject,
    Kind,
    LabelledImage,
    LabelledSet,
    number_classes,
    with_file_names,
)
from paucal.verbs.convert.launch import Converted, report_conversion, write_set
from paucal.verbs.convert.writing import LAYOUTS
from paucal.verbs.predict.answers import Prediction
from paucal.verbs.predict.detection import Objects, detect_objects
from paucal.verbs.predict.launch import predict
from paucal.verbs.predict.settings import OutputSettings, PredictSettings


def predict_as_labels(
    source: str, paths: Sequence[str], settings: PredictSettings, outputs: OutputSettings, console: Console
) -> Converted:
    """Write a data set of the images, with the predictions as labels, in the layout `outputs.to`."""
    if outputs.to is None or outputs.output is None:
        raise UserError("--to needs --output, a new folder for the labels and copies of the images: give --output.")
    task = task_of_model(source)
    if task == REGRESSION:
        raise UserError("this model predicts target values, which --to does not support: remove --to to get a table.")
    kind: Kind = "detect" if task == DETECTION else "segment" if task == SEGMENTATION else "train"
    if kind not in LAYOUTS[outputs.to].kinds:
        supported = ", ".join(name for name, layout in LAYOUTS.items() if kind in layout.kinds)
        nouns = {"detect": "boxes", "segment": "masks", "train": "classes of images"}[kind]
        raise UserError(
            f"this model predicts {nouns}, which --to {outputs.to} does not support: give one of {supported}."
        )
    target = check_new_folder(outputs.output, {})
    for path in paths:
        refuse_inside_images(target, {"PATHS": path})
    opened = open_sources(paths, NullConsole(), DEFAULT_DECODE_OPTIONS)
    sets = [images for images in opened if not isinstance(images, MemoryImage)]
    names = [path_of_image(images, key) for images in sets for key in images.keys]
    images = sets[0] if len(sets) == 1 else join_sets(sets, "+".join(paths))
    images = replace(
        images, classes=(), labels=np.full(len(images), -1), multi_hot=None, declared_splits=[""] * len(images)
    )
    if kind == "detect":
        content = _label_boxes(source, images, names, detect_objects(source, list(paths), settings, console))
    elif kind == "segment":
        content = _predict_masks(source, images, settings, console)
    else:
        values = {name: value for name, value in vars(settings).items() if value is not None}
        content = _label_classes(images, names, predict(source, list(paths), **values))
    content = with_file_names(replace(content, model=Path(source).resolve().name))
    write_set(content, LAYOUTS[outputs.to], target, console)
    return report_conversion(content, outputs.to, target, console)


def _label_boxes(source: str, images: ImageSet, names: Sequence[str], objects: Iterable[Objects]) -> LabelledSet:
    card = read_card(open_model_folder(expand_user_path(source, "RUN")), DetectorCard)
    rows = {row.path: row for row in objects}
    items = [
        item_of_detections(index, rows[name].size, rows[name].found, card.classes)
        for index, name in enumerate(names)
        if name in rows
    ]
    return LabelledSet("detect", images, tuple(items), dict(zip(card.classes, card.category_ids, strict=True)))


def item_of_detections(
    index: int, size: tuple[int, int], detections: Detections, classes: tuple[str, ...]
) -> LabelledImage:
    """Return an image with its confident detections as an item of a set; masks become compressed COCO run lengths."""
    detections = detections.with_min_score(MIN_SHOWN_SCORE)
    outlines = [
        None if mask is None else {"size": list(mask["size"]), "counts": mask["counts"].decode("ascii")}
        for mask in detections.masks or [None] * len(detections)
    ]
    rows = zip(detections.boxes.tolist(), detections.labels.tolist(), detections.scores.tolist(), outlines, strict=True)
    objects = tuple(
        AnnotatedObject(classes[label], (left, top, right, bottom), outline=outline, score=round(score, 5))
        for (left, top, right, bottom), label, score, outline in rows
    )
    return LabelledImage(index, "", "", size, objects, score=float(detections.scores.mean()) if objects else None)


def _predict_masks(source: str, images: ImageSet, settings: PredictSettings, console: Console) -> LabelledSet:
    check_factors("scales", settings.scales)
    model = load_segmenter(source, settings.device)
    pictures = InputImages([images], model.decode_options)
    items = [
        LabelledImage(index, "", "", (picture.height, picture.width))
        for index in range(len(pictures))
        if not isinstance(picture := pictures.read_or_skip(index, settings.on_bad_image, console), UnreadableImage)
    ]

    def mask(index: int) -> NDArray[np.uint8]:
        return model.mask(pictures.read(index), settings.test_scales, settings.mirror)

    return LabelledSet("segment", images, tuple(items), number_classes(model.classes), mask)


def _label_classes(images: ImageSet, names: Sequence[str], predictions: Iterable[Prediction]) -> LabelledSet:
    rows = {row.path: row for row in predictions}
    classes = next(iter(rows.values())).classes if rows else ()
    items = [
        LabelledImage(index, "", "", labels=tuple(rows[name].labels), score=rows[name].confidence)
        for index, name in enumerate(names)
        if name in rows
    ]
    if any(row.thresholds is not None for row in rows.values()):
        multi_hot = np.zeros((len(images), len(classes)), dtype=np.int8)
        for item in items:
            multi_hot[item.index, [classes.index(label) for label in item.labels]] = 1
        images = replace(images, classes=classes, multi_hot=multi_hot)
    return LabelledSet("train", images, tuple(items), number_classes(classes))
