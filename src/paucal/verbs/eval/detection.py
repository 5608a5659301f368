"""The detector of a run judged on images with boxes: what `paucal eval` does with a run of `paucal detect`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paucal.data.decode import WHOLE
from paucal.data.loader import make_ordered_loader
from paucal.evaluation.plots import save_figure
from paucal.metrics.intervals import Score
from paucal.runner.console import Console
from paucal.runner.images import decoded, reading_for
from paucal.runs import RunFolder, open_model_folder, write_text
from paucal.tasks.detection.annotations import BoxedImages
from paucal.tasks.detection.batch import BoxedDataset, collate_boxes
from paucal.tasks.detection.card import DetectorCard, load_detector
from paucal.tasks.detection.detector import Detector
from paucal.tasks.detection.document import coco_document
from paucal.tasks.detection.judging import MASKS, detect_all, require_metrics
from paucal.tasks.detection.measured import measured, told
from paucal.tasks.detection.opening import open_boxed
from paucal.tasks.detection.pictures import precision_recall_figure
from paucal.tasks.detection.views import evaluation_view
from paucal.types import UserError
from paucal.verbs.eval.images import choose_images, report_folder, say_notes
from paucal.verbs.eval.settings import EvalSettings
from paucal.wording import counted

TOGETHER = 4  # images in a forward pass, which are padded to the largest of them
WORST = 5  # classes that are named
TITLES = {"ap": "AP", "ap50": "AP50", f"{MASKS}ap": "mask AP", f"{MASKS}ap50": "mask AP50"}


@dataclass(frozen=True)
class DetectedSet:
    """How a detector does on one set of images.

    Attributes:
        data: name of the set.
        images: how many were judged.
        scores: "ap" and "ap50" with their 95 % intervals; "mask_ap" and "mask_ap50" too where masks were judged.
        metrics: all scores as plain numbers.
        per_class: average precision by the name of the class; None for classes without an object.
        folder: where tables, pictures and everything that was found lie.
        mask_per_class: the same as `per_class` of masks; empty where none were judged.
    """

    data: str
    images: int
    scores: Mapping[str, Score]
    metrics: Mapping[str, float]
    per_class: Mapping[str, float | None]
    folder: Path
    mask_per_class: Mapping[str, float | None] = field(default_factory=dict)


def evaluate_detector(model: str, data: Sequence[str], settings: EvalSettings, console: Console) -> list[DetectedSet]:
    """Judge the detector of a run on each set of images with boxes, on its own where there is none.

    Raises:
        UserError: there is no such run, its detector does not know a class of the boxes, or there is nothing to judge.
    """
    require_metrics()
    run = open_model_folder(model)
    detector, card, _ = load_detector(run, settings.device)
    found = []
    for target in data or [None]:
        boxed, indices = _images(run, target, settings, card, console)
        found.append(
            _judge(detector, card, boxed, indices, report_folder(run, target, data, settings), settings, console)
        )
    return found


def _images(
    run: RunFolder, target: str | None, settings: EvalSettings, card: DetectorCard, console: Console
) -> tuple[BoxedImages, NDArray[np.int64]]:
    """Return images whose boxes have the detector's numbers of classes, and the positions to judge."""
    place = target if target is not None else run.settings.get("data")
    if not isinstance(place, str):
        raise UserError(f"{str(run.path)!r} does not say on which images it was trained: give DATA.")
    boxed = with_classes(open_boxed(place), card.classes)
    for note in boxed.images.notes if target is not None else ():
        console.say(f"note: {note}")
    with console.progress("reading images") as advance:
        reading = reading_for([max(card.resize_to)], WHOLE)
        boxed = replace(boxed, images=decoded(boxed.images, settings, reading, advance))
    judged = choose_images(run, boxed.images, settings.part, target)
    say_notes(console, boxed.images, card.preprocessing.reading, judged)
    return boxed, judged.positions


def with_classes(boxed: BoxedImages, classes: Sequence[str]) -> BoxedImages:
    """Return the images with boxes numbered as a detector numbers its classes, by their names.

    Raises:
        UserError: a box is of a class that the detector does not know.
    """
    strange = [name for name in boxed.classes if name not in classes]
    if strange:
        raise UserError(
            f"{boxed.images.location!r} has boxes of {strange[0]!r}, which the detector does not know: it finds "
            f"{', '.join(classes[:8])}{', ...' if len(classes) > 8 else ''}."
        )
    numbers = np.asarray([list(classes).index(name) for name in boxed.classes], dtype=np.int64)
    renumbered = {key: replace(one, labels=numbers[one.labels]) for key, one in boxed.boxes.items()}
    return replace(boxed, boxes=renumbered)


def _judge(
    detector: Detector,
    card: DetectorCard,
    boxed: BoxedImages,
    indices: NDArray[np.int64],
    folder: Path,
    settings: EvalSettings,
    console: Console,
) -> DetectedSet:
    view = evaluation_view(card.resize_to, card.preprocessing.mean, card.preprocessing.std)
    together = min(TOGETHER, settings.batch_size or TOGETHER)
    loader = make_ordered_loader(BoxedDataset(boxed, view, seed=0), indices, together, collate_boxes, settings.workers)
    places, device = [int(index) for index in indices], next(detector.parameters()).device
    with console.progress("evaluating") as advance:
        answers = detect_all(detector, loader, device, lambda done: advance(done, len(places)))
    found, truth = [answers[place] for place in places], [boxed.of(place) for place in places]
    judged = measured(found, truth, card.classes)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"data": boxed.images.name, **judged.content()}
    write_text(folder / "metrics.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    write_text(folder / "per_class.csv", judged.table())
    keys, sizes = [boxed.images.keys[place] for place in places], [one.size for one in truth]
    write_text(folder / "detections.json", coco_document(keys, sizes, found, card.classes, card.category_ids))
    for kind, matches in judged.matches.items():
        figure = precision_recall_figure(matches, card.classes, np.ones(len(places)))
        save_figure(folder / f"{kind}precision_recall.png", figure)
    known = sorted((value, name) for name, value in judged.per_class.items() if value is not None)
    worst = ", ".join(f"{name} {value:.3f}" for value, name in known[:WORST])
    words = ", ".join(f"{title} {told(judged.scores[name])}" for name, title in TITLES.items() if name in judged.scores)
    images = counted(len(places), "image")
    console.say(f"{boxed.images.name}: {words} on {images}; tables and pictures lie in {folder}")
    console.say(f"AP by class, the weakest first: {worst}")
    parts = judged.scores, judged.metrics, judged.per_class
    return DetectedSet(boxed.images.name, len(places), *parts, folder, judged.mask_per_class)
