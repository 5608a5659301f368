"""The end of a segmentation run: evaluate the best model once on the test images, and write the results."""

import shlex
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from paucal.data.masks.mask_files import read_mask
from paucal.distributed import rank
from paucal.evaluation.curves import save_curves
from paucal.report.segmentation import write_segmentation_report
from paucal.runner.console import Console
from paucal.runner.processes import wait_for_all
from paucal.runner.results import EvaluatedRun, publish_results
from paucal.runs import RunFolder
from paucal.tasks.segmentation.assembly import SegmentationSetup, final_inference_options
from paucal.tasks.segmentation.model import SegmentationModel, load_segmenter
from paucal.tasks.segmentation.pictures import class_colours, draw_comparison, draw_legend, png_path, stack_vertically
from paucal.tasks.segmentation.scores import (
    PixelCounts,
    SegmentationReport,
    count_and_write_masks,
    finite_or_none,
    format_score,
    report_table,
    segmentation_report,
    write_scores,
)
from paucal.training import Outcome
from paucal.wording import counted, images_text, percent
from paucal.writing import write_atomically

SCORE_COLUMN = "val_mean_iou"  # column of metrics.csv by which the best epoch is selected
MAX_DRAWN = 4  # maximum number of images per figure


@dataclass(frozen=True)
class SegmentResult(EvaluatedRun):
    """A finished run of `paucal segment`.

    `report` has the test scores with intervals, overall and per class, and the confusion matrix. `metrics` has
    "mean_iou", "pixel_accuracy", "mean_accuracy" and "loss". `predictions` has each test image's scores, lowest mean
    IoU first; masks are in `evaluation/test/masks/`.
    """

    predictions_file: ClassVar[str] = "per_image.csv"

    report: SegmentationReport

    @property
    def model(self) -> SegmentationModel:  # type: ignore[override]
        """The best model on the CPU, loaded from the run folder."""
        return load_segmenter(self.folder)


def conclude(run: RunFolder, setup: SegmentationSetup, outcome: Outcome, console: Console) -> SegmentResult:
    """Evaluate the best model on the test images, which were not used before, and write the results."""
    wait_for_all()  # rank 0 writes the model file
    data, folder = setup.data, run.evaluation("test")
    # Load the stored model, so that exactly the deployed model is evaluated.
    model = load_segmenter(run, setup.settings.device)
    options, indices = final_inference_options(setup.settings), data.split_indices("test").tolist()
    with console.progress("testing") as advance:
        pixel_counts = count_and_write_masks(model, data, indices, options, folder / "masks", advance)
    report = segmentation_report(pixel_counts, setup.card.classes, setup.settings.seed, data.split.groups)
    if rank() != 0:
        return SegmentResult(run.path, report, outcome.seconds)
    write_scores(folder, report, pixel_counts, data.images.keys)
    _draw_best_and_worst(run, setup, pixel_counts)
    save_curves(run, outcome.rows, _crops_per_epoch(setup), best=setup.best_epoch(outcome))
    steps = next_steps(run, setup)
    publish_results(
        run,
        console,
        {**summary(setup, outcome, report), "next_steps": steps},
        write_segmentation_report,
        result_lines(setup, outcome, report),
        "metrics.csv, plots/ (worst_images.png), evaluation/test/masks/",
        steps,
        report_table(report),
    )
    return SegmentResult(run.path, report, outcome.seconds)


def _draw_best_and_worst(run: RunFolder, setup: SegmentationSetup, pixel_counts: list[PixelCounts]) -> None:
    """Draw the test images with the lowest and with the highest mean IoU."""
    data, coding = setup.data, setup.card.coding
    colours = class_colours(coding)

    def compare(row: PixelCounts) -> Image.Image:
        key = data.images.keys[row.index]
        path = png_path(run.evaluation("test") / "masks", key)
        predicted = coding.encode(
            read_mask(path, path.name).convert_values(coding.kind == "colour", path.name), path.name
        )
        image, mask = data.images.store.read(row.index), data.masks.read(row.index)
        return draw_comparison(image, mask, predicted, colours, f"{key}: mean IoU {percent(row.mean_iou)}")

    ranked = sorted((row for row in pixel_counts if np.isfinite(row.mean_iou)), key=lambda row: row.mean_iou)
    n_drawn = min(MAX_DRAWN, max(1, len(ranked) // 2))
    for name, rows in (("worst_images", ranked[:n_drawn]), ("best_images", ranked[::-1][:n_drawn])):
        if rows:
            figure = stack_vertically([*map(compare, rows), draw_legend(setup.card.classes, colours)])
            write_atomically(run.plots / f"{name}.png", lambda file, figure=figure: figure.save(file, "PNG"))


def summary(setup: SegmentationSetup, outcome: Outcome, report: SegmentationReport) -> dict[str, Any]:
    """Return the content of `summary.json` without the next steps; the report page shows this content."""
    data, card, settings = setup.data, setup.card, setup.settings
    scales = f"scales {', '.join(f'{scale:g}' for scale in settings.test_scales)}"
    if settings.test_scales == (1.0,):
        scales = "one scale"
    return {
        **setup.summarise(outcome),
        "title": f"{card.backbone.name} segments {data.images.name}",
        "kind": "segmentation",
        "method": f"UperNet of width {card.head.width}, auxiliary weight {settings.auxiliary:g}",
        "data": f"{data.images.name}: {counted(len(data.images), 'image')} with masks, "
        f"{counted(len(card.classes), 'class', 'classes')}",
        "epoch_images": _crops_per_epoch(setup),
        "crops": "x".join(map(str, card.preprocessing.image_size)),
        "looks": f"{scales}, mirrored" if settings.mirror else scales,
        "epochs": outcome.epochs_done(settings.epochs),
        "selected": setup.is_selected,
        "best_epoch": outcome.best.get("epoch"),
        "best_val_mean_iou": finite_or_none(outcome.best.get(SCORE_COLUMN)) if setup.is_selected else None,
        "test_mean_iou": finite_or_none(report.mean_iou.value),
        "test_pixel_accuracy": finite_or_none(report.accuracy.value),
    }


def _crops_per_epoch(setup: SegmentationSetup) -> int:
    return len(setup.data.split_indices("train")) * setup.settings.crops


def result_lines(setup: SegmentationSetup, outcome: Outcome, report: SegmentationReport) -> list[str]:
    """Return lines of text that describe the test scores and the trained model."""
    unseen, unseen_names = report.unseen, ", ".join(report.unseen[:8])
    most_common = report.confusion.sum(1).max() / max(report.confusion.sum(), 1)
    best_epoch = f"epoch {outcome.best.get('epoch', 0):g}, the best on the validation images"
    return [
        f"test mean IoU: {format_score(report.mean_iou)}, pixels right: {format_score(report.accuracy)} "
        f"(95 % intervals over {images_text(report.images, report.groups)}); always predicting the most common class: "
        f"{percent(most_common)} of the pixels",
        *([f"{counted(len(unseen), 'class', 'classes')} without a test pixel: {unseen_names}"] if unseen else []),
        f"trained: {setup.describe()}, epochs: {outcome.epochs_done(setup.settings.epochs)}, "
        f"{outcome.seconds:.0f} s; kept: {best_epoch if setup.is_selected else 'the last epoch'}",
    ]


def next_steps(run: RunFolder, setup: SegmentationSetup) -> list[str]:
    """Return suggested next commands, each with a shell comment."""
    path = shlex.quote(str(run.path))
    data = shlex.quote(setup.settings.data) if setup.settings.data else "DATA"
    longer = "--time 2h" if setup.settings.time is not None else f"--epochs {2 * setup.settings.epochs_or_1}"
    return [
        f"paucal predict {path} new_images/ --output masks/     # predict masks of new images, and draw them",
        f"paucal segment {data} {longer}     # train for longer",
    ]
