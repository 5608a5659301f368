"""The end of a run of a detector: judged once on the test images, drawn, and written down."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from paucal.distributed import rank
from paucal.evaluation.curves import curves_figure, with_speed
from paucal.evaluation.plots import save_figure
from paucal.memory import peak_memory
from paucal.metrics.intervals import Score
from paucal.report.detection import write_detection_report
from paucal.runner.console import Console
from paucal.runner.job import FinishedRun
from paucal.runner.processes import wait_for_all
from paucal.runs import RunFolder, write_atomically, write_text
from paucal.tasks.detection.assembly import DetectionSetup
from paucal.tasks.detection.card import load_detector
from paucal.tasks.detection.document import coco_document
from paucal.tasks.detection.judging import MASKS, Found, detect_all
from paucal.tasks.detection.loaders import SCORE, ordered_loader
from paucal.tasks.detection.measured import Measured, measured, told
from paucal.tasks.detection.pictures import SHOWN, at_width, draw_found, mistakes_of, precision_recall_figure, sheet
from paucal.training import Outcome
from paucal.types import UserError

EVALUATION = "detection"
DRAWN = 9  # images on a page
MASK_TITLES = ((f"{MASKS}ap", "AP"), (f"{MASKS}ap50", "AP50"))


@dataclass(frozen=True)
class DetectResult(FinishedRun):
    """What a finished run of a detector leaves.

    Attributes:
        folder: the run folder.
        scores: "ap" and "ap50" on the test images with their 95 % intervals; "mask_ap" and "mask_ap50" too where the
            detector answers masks.
        metrics: all scores on the test images as plain numbers.
        per_class: average precision by the name of the class; None for classes without an object in the test images.
        seconds: of training.
        mask_per_class: the same of masks; empty where the detector answers none.
    """

    scores: Mapping[str, Score]
    metrics: Mapping[str, float]
    per_class: Mapping[str, float | None]
    seconds: float
    mask_per_class: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def test_scores(self) -> Mapping[str, float]:
        """The same as `metrics`."""
        return self.metrics

    @property
    def model(self):  # type: ignore[override]
        """Refuse: a detector is no classifier.

        Raises:
            UserError: always; the message says what to call.
        """
        raise UserError(f"{str(self.folder)!r} is a detector: call paucal.detect_objects(run, images).")


def conclude(run: RunFolder, setup: DetectionSetup, outcome: Outcome, console: Console) -> DetectResult:
    """Judge the kept detector on the test images, which nothing has looked at before, and write everything down."""
    wait_for_all()  # the first process has written the model
    indices = [int(index) for index in setup.data.part("test")]
    detector, card, device = load_detector(run, setup.settings.device)
    with console.progress("judging") as advance:
        loader = ordered_loader(setup, setup.data.part("test"), card)
        answers = detect_all(detector, loader, device, lambda done: advance(done, len(indices)))
    found, truth = [answers[index] for index in indices], [setup.images.of(index) for index in indices]
    judged = measured(found, truth, card.classes)
    result = DetectResult(
        run.path, judged.scores, judged.metrics, judged.per_class, outcome.seconds, judged.mask_per_class
    )
    if rank() == 0:
        _write(run, setup, outcome, result, found, judged)
        for line in closing_lines(run, setup, outcome, result):
            console.say(line)
    return result


def _write(
    run: RunFolder,
    setup: DetectionSetup,
    outcome: Outcome,
    result: DetectResult,
    found: list[Found],
    judged: Measured,
) -> None:
    indices = [int(index) for index in setup.data.part("test")]
    folder, card = run.evaluation(EVALUATION), setup.detector_card
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "metrics.json", json.dumps(judged.content(), indent=2, ensure_ascii=False) + "\n")
    write_text(folder / "per_class.csv", judged.table())
    keys = [setup.images.images.keys[index] for index in indices]
    sizes = [setup.images.of(index).size for index in indices]
    write_text(folder / "detections.json", coco_document(keys, sizes, found, card.classes, card.category_ids))
    weights = np.ones(len(indices))
    save_figure(run.plots / "precision_recall.png", precision_recall_figure(judged.matches[""], card.classes, weights))
    if MASKS in judged.matches:
        figure = precision_recall_figure(judged.matches[MASKS], card.classes, weights)
        save_figure(run.plots / "mask_precision_recall.png", figure)
    if outcome.rows:
        best = outcome.best.get("epoch") if len(setup.data.part("val")) else None
        rows = with_speed(outcome.rows, len(setup.data.part("train")))
        save_figure(run.plots / "curves.png", curves_figure(rows, best=best))
    _draw(run, setup, indices, found)
    run.write_json("summary.json", _summary(setup, outcome, result))
    write_detection_report(run.path)


def _draw(run: RunFolder, setup: DetectionSetup, indices: list[int], found: list[Found]) -> None:
    """Draw some test images, and those with the most mistakes."""
    mistakes = [mistakes_of(one, setup.images.of(index)) for index, one in zip(indices, found, strict=True)]
    worst = sorted(range(len(indices)), key=lambda place: -sum(mistakes[place]))[:DRAWN]
    spread = list(range(0, len(indices), max(1, len(indices) // DRAWN)))[:DRAWN]
    for name, places in (("detections", spread), ("worst_detections", worst)):
        pictures: list[Image.Image] = []
        captions = []
        for place in places:
            index, (missed, false) = indices[place], mistakes[place]
            image = at_width(setup.images.images.store.read(index))
            pictures.append(draw_found(image, found[place], setup.images.classes, setup.images.of(index)))
            captions.append(f"{missed} missed, {false} wrong: {setup.images.images.keys[index].rpartition('/')[2]}")
        page = sheet(pictures, captions)
        write_atomically(run.plots / f"{name}.png", lambda file, page=page: page.save(file, "PNG"))


def _summary(setup: DetectionSetup, outcome: Outcome, result: DetectResult) -> dict[str, Any]:
    return {
        "title": f"{setup.card.backbone.name} detects in {setup.images.images.name}",
        "model": setup.describe(),
        "data": setup.images.images.name,
        "split": setup.data.split.description,
        "classes": len(setup.images.classes),
        "parts": setup.data.counts(),
        "steps": outcome.step,
        "best_val_ap": outcome.best.get(SCORE),
        "seconds": round(outcome.seconds, 1),
        "peak_memory": peak_memory(setup.settings.device),
        "test_ap": result.metrics["ap"],
        "test_ap50": result.metrics["ap50"],
        **{f"test_{name}": score.value for name, score in result.scores.items() if name.startswith(MASKS)},
        "start": None if setup.start is None else setup.start.short(),
        "remarks": [*setup.remarks, *outcome.remarks],
    }


def closing_lines(run: RunFolder, setup: DetectionSetup, outcome: Outcome, result: DetectResult) -> list[str]:
    """Return the last lines that a person reads: the scores, by class, and where everything lies."""
    n_test = len(setup.data.part("test"))
    lines = [f"test {title}: {told(result.scores[name])}" for name, title in (("ap", "AP"), ("ap50", "AP50"))]
    masks = [f"mask {title} {told(result.scores[name])}" for name, title in MASK_TITLES if name in result.scores]
    shown = [(name, value) for name, value in result.per_class.items() if value is not None]
    by_class = ", ".join(f"{name} {value:.3f}" for name, value in sorted(shown, key=lambda item: item[1])[:12])
    kept = "the last state: no images were kept for validation, so nothing was selected"
    if len(setup.data.part("val")) and outcome.best:
        kept = f"step {outcome.best['step']:.0f}, the best of the validation images (AP {outcome.best[SCORE]:.3f})"
    return [
        "",
        f"{lines[0]}; {lines[1].removeprefix('test ')} ({n_test} images, {_objects(setup)} objects)",
        *([f"of the same objects' pixels: {'; '.join(masks)}"] if masks else []),
        f"AP by class, the weakest first: {by_class}",
        f"trained: {setup.describe()}, {outcome.step} steps, {outcome.seconds:.0f} s; kept: {kept}",
        f"everything lies in {run.path}: report.html (open it in a browser), {run.weights.name}, "
        f"evaluation/{EVALUATION}/detections.json (COCO), plots/detections.png (answers of a score from {SHOWN:g}), "
        "plots/worst_detections.png",
        "try next:",
        f"  paucal predict {run.path} new_images/ --pictures found/     # boxes as CSV, and drawn",
        *([f"  paucal predict {run.path} new_images/ --format json     # with masks, as COCO's JSON"] if masks else []),
    ]


def _objects(setup: DetectionSetup) -> int:
    return setup.images.count(setup.data.part("test"))
