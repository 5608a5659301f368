"""The end of a run: the kept model judged once on the test images, masks and pictures of them, and the page."""

import shlex
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from paucal.data.masks.coding import MaskCoding
from paucal.data.masks.pixels import read_raw
from paucal.distributed import rank
from paucal.evaluation.curves import curves_figure, with_speed
from paucal.evaluation.figures import save_figure
from paucal.memory import peak_memory
from paucal.report.segmentation import write_segmentation_report
from paucal.runner.console import Console
from paucal.runner.job import FinishedRun
from paucal.runner.processes import wait_for_all
from paucal.runs import RunFolder, write_atomically, write_text
from paucal.tasks.segmentation.assembly import SegmentationSetup, full_inference
from paucal.tasks.segmentation.pictures import comparison, legend, palette, stacked
from paucal.tasks.segmentation.scores import SegmentationReport, Tally, segmentation_report
from paucal.tasks.segmentation.tables import per_class_table, per_image_table, report_table, score_text
from paucal.tasks.segmentation.trained import SegmentationModel, load_segmenter
from paucal.tasks.segmentation.validation import SCORE, count_pixels
from paucal.tasks.segmentation.windows import scales_in_words
from paucal.training import Outcome
from paucal.wording import counted, percent

DRAWN = 4  # images in each of the two pictures
METRICS = "segmentation.json"


@dataclass(frozen=True)
class SegmentResult(FinishedRun):
    """What a finished run of segmentation leaves.

    Attributes:
        folder: the run folder.
        report: scores on the test images, with intervals, by class, and the confusion of classes.
        seconds: of training.
    """

    report: SegmentationReport
    seconds: float

    @property
    def metrics(self) -> dict[str, float]:
        """The scores on the test images as plain numbers: "mean_iou", "pixel_accuracy" and others."""
        return self.report.values

    @property
    def test_scores(self) -> dict[str, float]:
        """The same as `metrics`."""
        return self.metrics

    @property
    def model(self) -> SegmentationModel:  # type: ignore[override]
        """The model the run has kept, on the CPU, read from the folder."""
        return load_segmenter(self.folder)


def conclude(run: RunFolder, setup: SegmentationSetup, outcome: Outcome, console: Console) -> SegmentResult:
    """Judge the kept model on the test images, which nothing has looked at before, and write everything down."""
    wait_for_all()  # the first process has written the model
    tallies = _test(run, setup, console)
    report = segmentation_report(tallies, setup.card.classes, setup.settings.seed)
    if rank() != 0:
        return SegmentResult(run.path, report, outcome.seconds)
    folder = run.evaluation("test")
    run.write_json(f"evaluation/test/{METRICS}", report.to_dict())
    write_text(folder / "per_class.csv", per_class_table(report))
    write_text(folder / "per_image.csv", per_image_table(tallies, setup.data.images.keys))
    _draw(run, setup, tallies)
    if outcome.rows:
        best = outcome.best.get("epoch") if len(setup.data.part("val")) else None
        rows = with_speed(outcome.rows, len(setup.data.part("train")))
        save_figure(run.plots / "curves.png", curves_figure(rows, best=best))
    run.write_json("summary.json", summary(run, setup, outcome, report))
    page = write_segmentation_report(run.path)
    console.show(report_table(report))
    for line in closing_lines(run, setup, outcome, report, page):
        console.say(line)
    return SegmentResult(run.path, report, outcome.seconds)


def _test(run: RunFolder, setup: SegmentationSetup, console: Console) -> list[Tally]:
    """Return the counts of the test images, and write their predicted masks."""
    settings, data = setup.settings, setup.segmented
    # The files are loaded back, so that what is judged is what will be deployed.
    model = load_segmenter(run, settings.device)
    indices, folder = data.part("test").tolist(), run.evaluation("test") / "masks"

    def keep(index: int, shares: Tensor) -> None:
        write_mask(folder, data.images.keys[index], shares.argmax(0).cpu().numpy(), model.card.coding)

    with console.progress("testing") as advance:
        return count_pixels(
            model.network,
            data,
            indices,
            model.card.preprocessing,
            full_inference(settings),
            model.device,
            progress=lambda done: advance(done, len(indices)),
            see=keep,
        )


def write_mask(folder: Path, key: str, found: NDArray[np.integer], coding: MaskCoding) -> Path:
    """Write class numbers as a PNG with the values of the training masks, and return its path.

    Args:
        folder: of the masks; subfolders are made as the key has them.
        key: of the image, with forward slashes.
        found: (H, W).
        coding: of the training masks.
    """
    path = folder.joinpath(*PurePosixPath(key).with_suffix(".png").parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(coding.decode(found))
    write_atomically(path, lambda file: picture.save(file, "PNG"))
    return path


def _draw(run: RunFolder, setup: SegmentationSetup, tallies: list[Tally]) -> None:
    """Draw the test images with the lowest and the highest mean IoU of their own."""
    ranked = sorted((one for one in tallies if np.isfinite(one.mean_iou)), key=lambda one: one.mean_iou)
    few = min(DRAWN, max(1, len(ranked) // 2))
    for name, some in (("worst_images", ranked[:few]), ("best_images", ranked[::-1][:few])):
        if some:
            picture = stacked([_compared(run, setup, one) for one in some] + [_legend(setup)])
            write_atomically(run.plots / f"{name}.png", lambda file, picture=picture: picture.save(file, "PNG"))


def _compared(run: RunFolder, setup: SegmentationSetup, one: Tally) -> Image.Image:
    data, coding = setup.segmented, setup.seg_card.coding
    key, mask = data.images.keys[one.index], data.masks.read(one.index)
    path = (run.evaluation("test") / "masks").joinpath(*PurePosixPath(key).with_suffix(".png").parts)
    found = stored_mask(path, coding)
    return comparison(
        data.images.store.read(one.index), mask, found, palette(coding), f"{key}: mean IoU {percent(one.mean_iou)}"
    )


def stored_mask(path: Path, coding: MaskCoding) -> NDArray[np.uint8]:
    """Return the class numbers of a mask that `write_mask` has written."""
    return coding.encode(read_raw(path, path.name).among(coding.kind == "colour", path.name), path.name)


def _legend(setup: SegmentationSetup) -> Image.Image:
    return legend(setup.card.classes, palette(setup.seg_card.coding))


def summary(run: RunFolder, setup: SegmentationSetup, outcome: Outcome, report: SegmentationReport) -> dict[str, Any]:
    """Return the facts of the run as plain values, for `summary.json` and the page."""
    data, card, settings = setup.data, setup.seg_card, setup.settings
    selected = len(data.part("val")) > 0
    return {
        "title": f"{card.backbone.name} segments {data.images.name}",
        "kind": "segmentation",
        "model": card.backbone.name,
        "method": f"UperNet of width {card.head.width}, auxiliary weight {settings.auxiliary:g}",
        "data": f"{data.images.name}: {counted(len(data.images), 'image')} with masks, "
        f"{counted(len(card.classes), 'class', 'classes')}",
        "split": data.split.description,
        "parts": data.counts(),
        "parameters": sum(p.numel() for p in setup.objective.deployable().parameters()),
        "crops": "x".join(map(str, card.preprocessing.image_size)),
        "looks": scales_in_words(tuple(settings.scales or (1.0,)), settings.mirror),
        "epochs": outcome.passes(settings.epochs),
        "selected": selected,
        "best_epoch": outcome.best.get("epoch"),
        "best_val_mean_iou": _number(outcome.best.get(SCORE)) if selected else None,
        "seconds": round(outcome.seconds, 1),
        "peak_memory": peak_memory(settings.device),
        "test_mean_iou": _number(report.mean_iou.value),
        "test_pixel_accuracy": _number(report.accuracy.value),
        "start": None if setup.start is None else setup.start.short(),
        "remarks": [*setup.remarks, *outcome.remarks],
        "next_steps": next_steps(run, setup),
    }


def closing_lines(
    run: RunFolder, setup: SegmentationSetup, outcome: Outcome, report: SegmentationReport, page: Path
) -> list[str]:
    """Return the last lines that a person reads: the score, what was trained, where it lies, what to try."""
    unseen = report.unseen
    commonest = report.confusion.sum(1).max() / max(report.confusion.sum(), 1)
    selected = len(setup.data.part("val")) > 0
    kept = (
        f"epoch {outcome.best.get('epoch', 0):g}, the best on the validation images" if selected else "the last epoch"
    )
    return [
        "",
        f"test mean IoU: {score_text(report.mean_iou)}, pixels right: {score_text(report.accuracy)} (95 % intervals "
        f"over {counted(report.images, 'image')}); always answering the commonest class: {percent(commonest)} of the "
        "pixels",
        *([f"{len(unseen)} of the classes occur in no test mask: {', '.join(unseen[:8])}"] if unseen else []),
        f"trained: {setup.describe()}, epochs: {outcome.passes(setup.settings.epochs)}, "
        f"{outcome.seconds:.0f} s; kept: {kept}",
        f"everything lies in {run.path}: {page.name} (open it in a browser), {run.weights.name}, metrics.csv, plots/ "
        "(worst_images.png), evaluation/test/masks/",
        "try next:",
        *(f"  {step}" for step in next_steps(run, setup)),
    ]


def next_steps(run: RunFolder, setup: SegmentationSetup) -> list[str]:
    """Return commands that make sense now."""
    path = shlex.quote(str(run.path))
    longer = "2h" if setup.settings.time is not None else None
    place = shlex.quote(setup.settings.data) if setup.settings.data else "DATA"
    words = f"--time {longer}" if longer else f"--epochs {2 * (setup.settings.epochs or 1)}"
    return [
        f"paucal predict {path} new_images/ --output masks/     # masks of new images, and pictures of them",
        f"paucal segment {place} {words}     # train for longer",
    ]


def _number(value: Any) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)
