"""`paucal eval` for a detector: evaluation on images with boxes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paucal.data.decode import DEFAULT_DECODE_OPTIONS
from paucal.metrics.intervals import Score
from paucal.runner.console import Console
from paucal.runner.images import decode_images, decode_options_for_size
from paucal.runs import RunFolder, open_model_folder
from paucal.tasks.detection.batches import EVAL_BATCH, evaluation_loader
from paucal.tasks.detection.conclusion import evaluate_images, write_evaluation
from paucal.tasks.detection.evaluation import MASK_PREFIX, format_score, require_coco_eval
from paucal.tasks.detection.images import BoxedImages, open_boxed_images
from paucal.tasks.detection.model import DetectorCard, load_detector
from paucal.types import UserError
from paucal.verbs.eval.images import choose_images, print_notes, report_folder
from paucal.verbs.eval.settings import EvalSettings
from paucal.wording import counted, join_first_few

MAX_WORST_CLASSES = 5  # number of classes with the lowest scores that are printed
SCORE_TITLES = {"ap": "AP", "ap50": "AP50", f"{MASK_PREFIX}ap": "mask AP", f"{MASK_PREFIX}ap50": "mask AP50"}


@dataclass(frozen=True)
class DetectedSet:
    """The scores of a detector on one set of images."""

    data: str  # name of the set
    images: int  # number of images
    scores: Mapping[str, Score]  # "ap" and "ap50" with 95 % intervals, and for masks also "mask_ap" and "mask_ap50"
    metrics: Mapping[str, float]  # all scores without intervals, by name
    per_class: Mapping[str, float | None]  # average precision (AP) by class name; None for classes without an object
    folder: Path  # folder of tables, figures and all detections
    mask_per_class: Mapping[str, float | None] = field(default_factory=dict)  # AP of masks; empty if there are no masks


def evaluate_detector(model: str, data: Sequence[str], settings: EvalSettings, console: Console) -> list[DetectedSet]:
    """Evaluate the detector of a run on sets of images with boxes, by default on the run's own test images."""
    require_coco_eval()
    run = open_model_folder(model)
    detector, card, device = load_detector(run, settings.device)
    results = []
    for target in data or [None]:
        boxed, positions = _open_images(run, target, settings, card, console)
        folder, name, indices = report_folder(run, target, data, settings), boxed.images.name, positions.tolist()
        batch_size = EVAL_BATCH
        if settings.batch_size is not None:
            batch_size = min(batch_size, settings.batch_size)  # a larger batch would be padded more
        loader = evaluation_loader(boxed, positions, card, settings.workers, batch_size)
        with console.progress("evaluating") as advance:
            detections, evaluation = evaluate_images(detector, card, device, boxed, positions, loader, advance)
        write_evaluation(folder, folder, evaluation, detections, boxed, indices, card, {"data": name})
        del detections  # with masks, they take much memory while the next set is evaluated
        class_scores = sorted((value, label) for label, value in evaluation.per_class.items() if value is not None)
        worst = ", ".join(f"{label} {value:.3f}" for value, label in class_scores[:MAX_WORST_CLASSES])
        titles = {score: title for score, title in SCORE_TITLES.items() if score in evaluation.scores}
        scores = ", ".join(f"{title} {format_score(evaluation.scores[score])}" for score, title in titles.items())
        console.say(f"{name}: {scores} on {counted(len(indices), 'image')}; tables and figures are in {folder}")
        console.say(f"AP by class, lowest first: {worst}")
        per_class, masks = evaluation.per_class, evaluation.mask_per_class
        results.append(DetectedSet(name, len(indices), evaluation.scores, evaluation.metrics, per_class, folder, masks))
    return results


def _open_images(
    run: RunFolder, target: str | None, settings: EvalSettings, card: DetectorCard, console: Console
) -> tuple[BoxedImages, NDArray[np.int64]]:
    location = target if target is not None else run.settings.get("data")
    if not isinstance(location, str):
        raise UserError(f"{str(run.path)!r} does not name its training images: give DATA.")
    boxed = with_classes(open_boxed_images(location), card.classes)
    for note in boxed.images.notes if target is not None else ():
        console.say(f"note: {note}")
    with console.progress("reading images") as advance:
        decode_options = decode_options_for_size([max(card.resize_to)], DEFAULT_DECODE_OPTIONS)
        boxed = replace(boxed, images=decode_images(boxed.images, settings, decode_options, advance))
    chosen = choose_images(run, boxed.images, settings.part, target)
    if not boxed.count_boxes(chosen.positions):
        raise UserError(
            f"the detector cannot be evaluated, since there is no object in {counted(len(chosen.positions), 'image')} "
            "(crowds and difficult objects do not count): give images with boxes."
        )
    print_notes(console, boxed.images, card.preprocessing.decode_options, chosen)
    return boxed, chosen.positions


def with_classes(boxed: BoxedImages, classes: Sequence[str]) -> BoxedImages:
    """Return the images with the labels of their boxes renumbered in the order of `classes`, matched by class name."""
    if unknown := [name for name in boxed.classes if name not in classes]:
        raise UserError(
            f"{boxed.images.location!r} has boxes of {unknown[0]!r}, which the detector does not know: its classes are "
            f"{join_first_few(classes, 8)}."
        )
    numbers = np.asarray([list(classes).index(name) for name in boxed.classes], dtype=np.int64)
    relabelled = {key: replace(boxes, labels=numbers[boxes.labels]) for key, boxes in boxed.boxes.items()}
    return replace(boxed, boxes=relabelled)
