"""Predicts masks, computes scores from the pixel counts of each image, and writes tables of the scores."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from rich.table import Table
from torch import Tensor, nn
from torchmetrics.functional.classification import multiclass_confusion_matrix

from paucal.data.masks.coding import IGNORED
from paucal.distributed import rank, world_size
from paucal.evaluation.predictions import evaluation_mode
from paucal.metrics.intervals import Bootstrap, Score, percentile
from paucal.metrics.measures import PixelScores, value_of
from paucal.models.preprocessing import Preprocessing
from paucal.tasks.segmentation.images import SegmentationData
from paucal.tasks.segmentation.model import SegmentationModel
from paucal.tasks.segmentation.pictures import write_mask
from paucal.tasks.segmentation.windows import WindowOptions, pixel_probabilities
from paucal.wording import images_text, percent
from paucal.writing import csv_text, write_text

BOOTSTRAP_DRAWS = 2000  # number of random samples of images
MAX_SHOWN_CLASSES = 30  # maximum number of rows in the terminal
SCORES_FILE = "segmentation.json"


@dataclass(frozen=True)
class PixelCounts:
    """Counts of the labelled pixels of one image."""

    index: int  # index of the image in the data set
    confusion: NDArray[np.int64]  # (K, K) numbers of pixels; rows are labels, and columns are predictions
    loss: float = 0.0  # sum of the cross-entropies of the pixels, in nats

    @property
    def pixels(self) -> int:
        """Number of labelled pixels."""
        return int(self.confusion.sum())

    @property
    def mean_iou(self) -> float:
        """Mean IoU over the classes labelled or predicted in this image; NaN if no pixel is labelled."""
        return value_of(PixelScores([self.confusion]).mean_iou, 1)


@dataclass(frozen=True)
class SegmentationReport:
    """The scores of a model on a set of images.

    Attributes:
        classes: Names of the classes.
        confusion: (K, K) int64 numbers of labelled pixels in all images; rows are labels, and columns are predictions.
        mean_iou: Mean IoU over the classes with labelled or predicted pixels, with a 95 % interval from a bootstrap
            over images.
        accuracy: Fraction of the labelled pixels that are predicted correctly, with a 95 % interval.
        per_class: IoU of each class; NaN for a class that has neither labelled nor predicted pixels.
        mean_accuracy: Mean recall over the classes.
        loss: Mean cross-entropy of the labelled pixels, in nats.
        images: Number of images.
        groups: Number of groups of similar images, which the bootstrap draws as units; None if images are independent.
    """

    classes: tuple[str, ...]
    confusion: NDArray[np.int64]
    mean_iou: Score
    accuracy: Score
    per_class: tuple[Score, ...]
    mean_accuracy: float
    loss: float
    images: int
    groups: int | None = None

    @property
    def unseen(self) -> tuple[str, ...]:
        """Classes without a labelled pixel."""
        return tuple(name for name, count in zip(self.classes, self.confusion.sum(1), strict=True) if count == 0)

    @property
    def values(self) -> dict[str, float]:
        """The scores without their intervals."""
        scores = {"mean_iou": self.mean_iou.value, "pixel_accuracy": self.accuracy.value}
        return {**scores, "mean_accuracy": self.mean_accuracy, "loss": self.loss}

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, with None for NaN."""
        rows = [
            {"class": name, **_score_dict(score), "pixels": int(count), "answers": int(predicted)}
            for name, score, count, predicted in zip(
                self.classes, self.per_class, self.confusion.sum(1), self.confusion.sum(0), strict=True
            )
        ]
        return {
            "images": self.images,
            "groups": self.groups,
            "mean_iou": _score_dict(self.mean_iou),
            "pixel_accuracy": _score_dict(self.accuracy),
            "mean_accuracy": finite_or_none(self.mean_accuracy),
            "loss": finite_or_none(self.loss),
            "classes": rows,
            "unseen": list(self.unseen),
            "confusion": self.confusion.tolist(),
        }


def count_image_pixels(index: int, probabilities: Tensor, mask: Tensor) -> PixelCounts:
    """Return an image's confusion matrix and loss, from (K, H, W) probabilities and the (H, W) class numbers."""
    labels = mask.to(probabilities.device).long()
    confusion = multiclass_confusion_matrix(
        probabilities.argmax(0), labels, num_classes=len(probabilities), ignore_index=IGNORED, validate_args=False
    )
    labelled = labels != IGNORED
    label_probabilities = probabilities.gather(0, labels.masked_fill(~labelled, 0)[None])[0]
    loss = -label_probabilities[labelled].clamp(min=torch.finfo(label_probabilities.dtype).tiny).log().double().sum()
    return PixelCounts(index, confusion.cpu().numpy().astype(np.int64), float(loss))


def count_pixels(
    network: nn.Module,
    data: SegmentationData,
    indices: Sequence[int],
    preprocessing: Preprocessing,
    options: WindowOptions,
    device: torch.device | str,
    on_image: Callable[[int, Tensor], None] = lambda index, probabilities: None,
) -> list[PixelCounts]:
    """Count the pixels of each image at `indices` by label and prediction.

    The images are divided among all processes, and every process returns the counts of all images. `on_image` is called
    for each image of this process, with the image's index and (K, H, W) probabilities.
    """
    normalisation, pixel_counts = preprocessing.normalisation, []
    with evaluation_mode(network):
        for index in map(int, list(indices)[rank() :: world_size()]):
            image = normalisation.apply(data.images.store.read(index)).to(device)
            probabilities = pixel_probabilities(network, image, options)
            mask = torch.from_numpy(data.masks.read(index))
            pixel_counts.append(count_image_pixels(index, probabilities, mask))
            on_image(index, probabilities)
    if world_size() == 1:
        return pixel_counts
    gathered: list[list[PixelCounts]] = [[] for _ in range(world_size())]
    dist.all_gather_object(gathered, pixel_counts)
    return [counts for process_counts in gathered for counts in process_counts]


def count_and_write_masks(
    model: SegmentationModel,
    data: SegmentationData,
    indices: Sequence[int],
    options: WindowOptions,
    folder: Path,
    advance: Callable[[int, int], None],
) -> list[PixelCounts]:
    """Count pixels like `count_pixels`, and write the predicted masks to a folder.

    `advance` is called after each mask with the number of masks written so far and the number of all masks.
    """
    mask_files: list[Path] = []

    def write(index: int, probabilities: Tensor) -> None:
        classes = probabilities.argmax(0).cpu().numpy()
        mask_files.append(write_mask(folder, data.images.keys[index], classes, model.card.coding))
        advance(len(mask_files), len(indices))

    return count_pixels(model.network, data, indices, model.card.preprocessing, options, model.device, write)


def scores_without_intervals(pixel_counts: Iterable[PixelCounts]) -> dict[str, float]:
    """Return the scores over a set of images, without intervals; scores are NaN if no pixel is labelled."""
    rows = _sort_by_image(pixel_counts)
    scores, pixels = PixelScores([row.confusion for row in rows]), sum(row.pixels for row in rows)
    return {
        "mean_iou": value_of(scores.mean_iou, len(rows)),
        "pixel_accuracy": value_of(scores.accuracy, len(rows)),
        "mean_accuracy": value_of(scores.mean_accuracy, len(rows)),
        "loss": sum(row.loss for row in rows) / pixels if pixels else float("nan"),
    }


def segmentation_report(
    pixel_counts: Iterable[PixelCounts], classes: Sequence[str], seed: int = 0, groups: NDArray[np.int64] | None = None
) -> SegmentationReport:
    """Return the scores over a set of images, with 95 % intervals from a bootstrap over images or their `groups`."""
    rows = _sort_by_image(pixel_counts)
    values, scores = scores_without_intervals(rows), PixelScores([row.confusion for row in rows])
    row_groups = None if groups is None else groups[[row.index for row in rows]]
    bootstrap = Bootstrap(seed, BOOTSTRAP_DRAWS, multinomial=True, groups=row_groups)
    by_class, means, accuracies = bootstrap.scores([scores.iou, scores.mean_iou, scores.accuracy], len(rows))
    ious = scores.iou(np.ones((1, len(rows))))[0].tolist()
    return SegmentationReport(
        classes=tuple(classes),
        confusion=np.sum([row.confusion for row in rows], axis=0),
        mean_iou=percentile(values["mean_iou"], means),
        accuracy=percentile(values["pixel_accuracy"], accuracies),
        per_class=tuple(percentile(value, draws) for value, draws in zip(ious, by_class.T, strict=True)),
        mean_accuracy=values["mean_accuracy"],
        loss=values["loss"],
        images=len(rows),
        groups=None if row_groups is None else len(np.unique(row_groups)),
    )


def _sort_by_image(pixel_counts: Iterable[PixelCounts]) -> list[PixelCounts]:
    """Sort the counts by image, so that sums do not depend on which process counted an image."""
    rows = sorted(pixel_counts, key=lambda row: row.index)
    if not rows:
        raise ValueError("there are no images to report on")
    return rows


def report_table(report: SegmentationReport) -> Table:
    """Return a table for the terminal with the scores of each class, the lowest IoU first."""
    table = Table(title=images_text(report.images, report.groups), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("class", "IoU", "95 % interval", "pixels", "recall"):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    values = [score.value for score in report.per_class]
    ranked = sorted(range(len(values)), key=lambda index: (not np.isfinite(values[index]), values[index]))
    for index in ranked[:MAX_SHOWN_CLASSES]:
        pixels, correct = int(report.confusion[index].sum()), int(report.confusion[index, index])
        recall = correct / pixels if pixels else float("nan")
        interval = _format_interval(report.per_class[index])
        table.add_row(report.classes[index], _percent(values[index]), interval, f"{pixels:,}", _percent(recall))
    return table


def write_scores(
    folder: Path, report: SegmentationReport, pixel_counts: Sequence[PixelCounts], keys: Sequence[str]
) -> None:
    """Write the report as JSON, and as CSV the scores per class, and per image with the lowest mean IoU first."""
    write_text(folder / SCORES_FILE, json.dumps(report.to_dict(), indent=2, ensure_ascii=False) + "\n")
    class_rows, confusion = [], report.confusion
    for index, score in enumerate(report.per_class):
        counts = (int(confusion[index].sum()), int(confusion[:, index].sum()), int(confusion[index, index]))
        class_rows.append([report.classes[index], *map(_format_cell, (score.value, score.low, score.high)), *counts])
    columns = ["class", "iou", "low", "high", "pixels", "answers", "hits"]
    write_text(folder / "per_class.csv", csv_text(columns, *class_rows))
    image_rows = []
    for row in sorted(pixel_counts, key=lambda row: (not np.isfinite(row.mean_iou), row.mean_iou)):
        accuracy = float(np.trace(row.confusion)) / row.pixels if row.pixels else float("nan")
        image_rows.append([keys[row.index], _format_cell(row.mean_iou), _format_cell(accuracy), row.pixels])
    write_text(folder / "per_image.csv", csv_text(["image", "mean_iou", "pixel_accuracy", "pixels"], *image_rows))


def format_score(score: Score) -> str:
    """Return a score and its interval as text."""
    return f"{_percent(score.value)} [{_format_interval(score)}]"


def _format_interval(score: Score) -> str:
    if score.low is None or score.high is None:
        return "no interval"
    return f"{100 * score.low:.1f} to {100 * score.high:.1f}"


def _percent(value: float) -> str:
    return percent(value) if np.isfinite(value) else "none"


def _format_cell(value: float | None) -> str:
    return "" if value is None or not np.isfinite(value) else f"{value:.6f}"


def _score_dict(score: Score) -> dict[str, float | None]:
    return {"value": finite_or_none(score.value), "low": score.low, "high": score.high}


def finite_or_none(value: float | None) -> float | None:
    """Return a number that JSON can store; None for NaN."""
    return None if value is None or not np.isfinite(value) else value
