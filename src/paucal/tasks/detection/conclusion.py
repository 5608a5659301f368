"""The end of a detection run: evaluation on the test images, plots and result files."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader

from paucal.distributed import rank
from paucal.evaluation.curves import save_curves
from paucal.evaluation.plots import save_figure
from paucal.metrics.intervals import Score
from paucal.report.detection import write_detection_report
from paucal.runner.console import Console
from paucal.runner.frames import to_pandas
from paucal.runner.job import FinishedRun
from paucal.runner.processes import wait_for_all
from paucal.runner.results import publish_results
from paucal.runs import RunFolder
from paucal.tasks.detection.assembly import DetectionSetup
from paucal.tasks.detection.batches import evaluation_loader
from paucal.tasks.detection.detections import Detections, coco_json_text, detect_all, read_detections
from paucal.tasks.detection.evaluation import MASK_PREFIX, DetectionScores, evaluate_detections, format_score
from paucal.tasks.detection.images import BoxedImages
from paucal.tasks.detection.model import DetectorCard, load_detector
from paucal.tasks.detection.pictures import (
    MIN_SHOWN_SCORE,
    count_mistakes,
    draw_detections,
    make_contact_sheet,
    precision_recall_figure,
    resize_to_width,
)
from paucal.training import Outcome
from paucal.types import UserError
from paucal.wording import counted
from paucal.writing import write_atomically, write_text

if TYPE_CHECKING:
    from pandas import DataFrame

SCORE_COLUMN = "val_ap"  # metric that ranks the epochs
EVALUATION_NAME = "detection"  # name of the folder in `evaluation/` with the results on the test images
MAX_DRAWN = 9  # maximum number of images per page
# Names of the mask scores, and their titles in the last lines that a run prints
MASK_TITLES = ((f"{MASK_PREFIX}ap", "AP"), (f"{MASK_PREFIX}ap50", "AP50"))


@dataclass(frozen=True)
class DetectResult(FinishedRun):
    """The result of a finished detection run.

    Attributes:
        scores: "ap" and "ap50" on the test images with their 95 % intervals; also "mask_ap" and "mask_ap50" if the
            detector predicts masks.
        metrics: All scores on the test images as plain numbers.
        per_class: Average precision of boxes by class name; None for classes without an object in the test images.
        seconds: Duration of the training in seconds.
        mask_per_class: Average precision of masks by class name; empty if the detector predicts no masks.
    """

    scores: Mapping[str, Score]
    metrics: Mapping[str, float]
    per_class: Mapping[str, float | None]
    seconds: float
    mask_per_class: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def test_scores(self) -> Mapping[str, float]:
        """All scores on the test images; the same as `metrics`."""
        return self.metrics

    @property
    def predictions(self) -> "DataFrame":
        """The detections in the test images as a DataFrame with image key, class, score and corners in pixels.

        Raises:
            UserError: `evaluation/detection/detections.json` is missing or damaged, or pandas is not installed.
        """
        return to_pandas(read_detections(RunFolder(self.folder).evaluation(EVALUATION_NAME) / "detections.json"))

    @property
    def model(self):  # type: ignore[override]
        """Not available for detectors.

        Raises:
            UserError: Always; the message names the function to call instead.
        """
        raise UserError(f"{str(self.folder)!r} is a detector: call paucal.detect_objects(run, images).")


def conclude(run: RunFolder, setup: DetectionSetup, outcome: Outcome, console: Console) -> DetectResult:
    """Evaluate the selected detector on the test images, which the run has not used so far, and write the results."""
    wait_for_all()  # rank 0 writes the model file
    detector, card, device = load_detector(run, setup.settings.device)
    test, indices = setup.data.split_indices("test"), setup.data.split_indices("test").tolist()
    with console.progress("evaluating") as advance:
        loader = evaluation_loader(setup.images, test, card, setup.settings.workers)
        detections, evaluation = evaluate_images(detector, card, device, setup.images, test, loader, advance)
    scores, metrics, per_class = evaluation.scores, evaluation.metrics, evaluation.per_class
    result = DetectResult(run.path, scores, metrics, per_class, outcome.seconds, evaluation.mask_per_class)
    if rank() == 0:
        folder = run.evaluation(EVALUATION_NAME)
        write_evaluation(folder, run.plots, evaluation, detections, setup.images, indices, card)
        save_curves(run, outcome.rows, _images_per_row(setup), best=setup.best_epoch(outcome))
        _draw_images(run, setup, indices, detections)
        path, predict = shlex.quote(str(run.path)), "paucal predict"
        steps = [f"{predict} {path} new_images/ --pictures found/     # boxes as CSV, and drawn"]
        if result.mask_per_class:
            steps.append(f"{predict} {path} new_images/ --format json     # with masks, as COCO JSON")
        files = (
            f"evaluation/{EVALUATION_NAME}/detections.json (COCO), plots/detections.png (objects with a score from "
            f"{MIN_SHOWN_SCORE:g}), plots/worst_detections.png"
        )
        summary, lines = _summary(setup, outcome, result), result_lines(setup, outcome, result)
        publish_results(run, console, summary, write_detection_report, lines, files, steps)
    return result


def evaluate_images(
    detector: nn.Module,
    card: DetectorCard,
    device: torch.device,
    boxed: BoxedImages,
    indices: NDArray[np.int64],
    loader: DataLoader,
    advance: Callable[[int, int], None],
) -> tuple[list[Detections], DetectionScores]:
    """Return the detections in each image at `indices`, which `loader` reads, and their scores."""
    by_index = detect_all(detector, loader, device, lambda done: advance(done, len(indices)))
    detections = [by_index[index] for index in indices.tolist()]
    truth = [boxed.boxes_of(index) for index in indices.tolist()]
    return detections, evaluate_detections(detections, truth, card.classes)


def write_evaluation(
    folder: Path,
    plots: Path,
    evaluation: DetectionScores,
    detections: Sequence[Detections],
    boxed: BoxedImages,
    indices: Sequence[int],
    card: DetectorCard,
    entries: Mapping[str, Any] | None = None,
) -> None:
    """Write the scores (with further `entries`), detections and precision-recall curves for the images at `indices`."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {**(entries or {}), **evaluation.content()}
    write_text(folder / "metrics.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    write_text(folder / "per_class.csv", evaluation.per_class_csv())
    keys, sizes = [boxed.images.keys[index] for index in indices], [boxed.boxes_of(index).size for index in indices]
    write_text(folder / "detections.json", coco_json_text(keys, sizes, detections, card.classes, card.category_ids))
    for kind, matches in evaluation.matches.items():
        figure = precision_recall_figure(matches, card.classes, np.ones(len(indices)))
        save_figure(plots / f"{kind}precision_recall.png", figure)


def _draw_images(run: RunFolder, setup: DetectionSetup, indices: list[int], detections: list[Detections]) -> None:
    """Draw the detections in evenly spaced test images, and in the test images with the most mistakes."""
    images = setup.images
    truth = [images.boxes_of(index) for index in indices]
    mistakes = [count_mistakes(*pair) for pair in zip(detections, truth, strict=True)]
    worst_positions = sorted(range(len(indices)), key=lambda position: -sum(mistakes[position]))[:MAX_DRAWN]
    spaced_positions = list(range(0, len(indices), max(1, len(indices) // MAX_DRAWN)))[:MAX_DRAWN]
    for name, positions in (("detections", spaced_positions), ("worst_detections", worst_positions)):
        drawn_images, captions = [], []
        for position in positions:
            index, (n_missed, n_wrong) = indices[position], mistakes[position]
            image = resize_to_width(images.images.store.read(index))
            drawn_images.append(draw_detections(image, detections[position], images.classes, truth[position]))
            captions.append(f"{n_missed} missed, {n_wrong} wrong: {images.images.keys[index].rpartition('/')[2]}")
        page = make_contact_sheet(drawn_images, captions)
        write_atomically(run.plots / f"{name}.png", lambda file, page=page: page.save(file, "PNG"))


def _images_per_row(setup: DetectionSetup) -> int:
    """Return the number of training images per row of `metrics.csv`, which may differ from the images per epoch."""
    return setup.settings.effective_batch * setup.plan.steps_per_epoch


def _summary(setup: DetectionSetup, outcome: Outcome, result: DetectResult) -> dict[str, Any]:
    return {
        **setup.summarise(outcome),
        "title": f"{setup.card.backbone.name} detects in {setup.images.images.name}",
        "model": setup.describe(),
        "data": setup.images.images.name,
        "classes": len(setup.images.classes),
        "epoch_images": _images_per_row(setup),
        "steps": outcome.step,
        "best_val_ap": outcome.best.get(SCORE_COLUMN, setup.first and setup.first.score),
        **({} if setup.first is None else {"first_detector": asdict(setup.first)}),
        "test_ap": result.metrics["ap"],
        "test_ap50": result.metrics["ap50"],
        **{f"test_{name}": score.value for name, score in result.scores.items() if name.startswith(MASK_PREFIX)},
    }


def result_lines(setup: DetectionSetup, outcome: Outcome, result: DetectResult) -> list[str]:
    """Return lines of text that describe the test scores and the trained model."""
    test = setup.data.split_indices("test")
    scores = result.scores
    ap, ap50 = (format_score(scores[name]) for name in ("ap", "ap50"))
    masks = [f"mask {title} {format_score(scores[name])}" for name, title in MASK_TITLES if name in scores]
    defined = [(name, value) for name, value in result.per_class.items() if value is not None]
    class_scores = ", ".join(f"{name} {value:.3f}" for name, value in sorted(defined, key=lambda item: item[1])[:12])
    kept_text = "the last step, since there are no validation images to select a model"
    if not outcome.best and setup.first is not None and setup.first.score is not None:
        kept_text = f"the first detector, the best on the validation images (AP {setup.first.score:.3f})"
    if setup.is_selected and outcome.best:
        kept_text = (
            f"step {outcome.best['step']:.0f}, the best on the validation images (AP {outcome.best[SCORE_COLUMN]:.3f})"
        )
    return [
        f"test AP: {ap}; AP50: {ap50} ({counted(len(test), 'image')}, "
        f"{counted(setup.images.count_boxes(test), 'object')})",
        *([f"masks of these objects: {'; '.join(masks)}"] if masks else []),
        f"AP by class, lowest first: {class_scores}",
        f"trained: {setup.describe()}, {counted(outcome.step, 'step')}, {outcome.seconds:.0f} s; kept: {kept_text}",
    ]
