"""Scores of predicted masks: all of them from counts of pixels over the whole set.

The mean of images' scores, or of batches' (as torchmetrics' `MeanIoU` takes it), is another number: a class that lacks
in an image counts there as nothing or as everything.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics.functional.classification import multiclass_confusion_matrix

from paucal.evaluation.intervals import Score, percentile

DRAWS = 2000
FEWEST = 2  # images that an interval needs


@dataclass(frozen=True)
class Tally:
    """Counts of the labelled pixels of one image.

    Attributes:
        index: of the image in its set.
        confusion: (K, K) int64, rows the labels, columns the answers.
        loss: sum over the pixels of minus the logarithm of the probability of the label, in nats.
    """

    index: int
    confusion: NDArray[np.int64]
    loss: float = 0.0

    @property
    def pixels(self) -> int:
        """The labelled pixels."""
        return int(self.confusion.sum())

    @property
    def mean_iou(self) -> float:
        """Of this image alone, over the classes that occur in it or in the answer; not a number without any."""
        return _mean(iou(self.confusion))


@dataclass(frozen=True)
class SegmentationReport:
    """What a model has reached on a set of images.

    Attributes:
        classes: names.
        confusion: (K, K) int64 over all labelled pixels, rows the labels, columns the answers.
        mean_iou: over the classes that occur among labels or answers, with its interval over images.
        accuracy: share of the pixels that are right, with its interval.
        per_class: intersection over union of each class, not a number where it occurs nowhere.
        mean_accuracy: mean share of each class's pixels that are right.
        loss: mean over the pixels, in nats.
        images: their number.
    """

    classes: tuple[str, ...]
    confusion: NDArray[np.int64]
    mean_iou: Score
    accuracy: Score
    per_class: tuple[Score, ...]
    mean_accuracy: float
    loss: float
    images: int

    @property
    def unseen(self) -> tuple[str, ...]:
        """The classes that no labelled pixel is of."""
        return tuple(name for name, count in zip(self.classes, self.confusion.sum(1), strict=True) if count == 0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for a JSON file; what is not a number becomes None."""
        rows = [
            {"class": name, **_plain(score), "pixels": int(count), "answers": int(found)}
            for name, score, count, found in zip(
                self.classes, self.per_class, self.confusion.sum(1), self.confusion.sum(0), strict=True
            )
        ]
        return {
            "images": self.images,
            "mean_iou": _plain(self.mean_iou),
            "pixel_accuracy": _plain(self.accuracy),
            "mean_accuracy": _finite(self.mean_accuracy),
            "loss": _finite(self.loss),
            "classes": rows,
            "unseen": list(self.unseen),
            "confusion": self.confusion.tolist(),
        }


def tally(index: int, probabilities: Tensor, mask: Tensor, ignored: int = 255) -> Tally:
    """Count the pixels of an image.

    Args:
        index: of the image.
        probabilities: (K, H, W).
        mask: (H, W) class numbers.
        ignored: the number of pixels that count for nothing.
    """
    labels = mask.to(probabilities.device).long()
    confusion = multiclass_confusion_matrix(
        probabilities.argmax(0), labels, num_classes=len(probabilities), ignore_index=ignored, validate_args=False
    )
    known = labels != ignored
    chosen = probabilities.gather(0, labels.masked_fill(~known, 0)[None])[0]
    loss = -chosen[known].clamp(min=torch.finfo(chosen.dtype).tiny).log().double().sum()
    return Tally(index, confusion.cpu().numpy().astype(np.int64), float(loss))


def iou(confusion: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the (..., K) intersection over union of (..., K, K) counts; not a number where a class occurs nowhere."""
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    return _ratio(hits, confusion.sum(-1) + confusion.sum(-2) - hits)


def segmentation_report(tallies: Iterable[Tally], classes: Sequence[str], seed: int = 0) -> SegmentationReport:
    """Put the counts of images together; intervals are of the bootstrap over images, at 95 %.

    Raises:
        ValueError: there is no image.
    """
    rows = sorted(tallies, key=lambda one: one.index)
    if not rows:
        raise ValueError("there is no image to report on")
    confusion = np.sum([one.confusion for one in rows], axis=0)
    found, pixels = iou(confusion), int(confusion.sum())
    draws = _draws(rows, seed)
    hits = float(np.trace(confusion) / pixels) if pixels else float("nan")
    recall = _ratio(np.diagonal(confusion), confusion.sum(1))
    return SegmentationReport(
        classes=tuple(classes),
        confusion=confusion,
        mean_iou=_interval(_mean(found), draws["mean_iou"]),
        accuracy=_interval(hits, draws["accuracy"]),
        per_class=tuple(_interval(float(value), draws["iou"][:, place]) for place, value in enumerate(found)),
        mean_accuracy=_mean(recall),
        loss=sum(one.loss for one in rows) / pixels if pixels else float("nan"),
        images=len(rows),
    )


def _draws(rows: Sequence[Tally], seed: int) -> dict[str, NDArray[np.float64]]:
    """Return the scores of sets that are drawn from the images with replacement."""
    hits = np.stack([np.diagonal(one.confusion) for one in rows])
    labels = np.stack([one.confusion.sum(1) for one in rows])
    answers = np.stack([one.confusion.sum(0) for one in rows])
    drawn = np.random.default_rng(seed).multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=DRAWS)
    hits, labels, answers = drawn @ hits, drawn @ labels, drawn @ answers
    found = _ratio(hits, labels + answers - hits)
    accuracy = _ratio(hits.sum(1), labels.sum(1))
    return {"iou": found, "mean_iou": np.asarray([_mean(row) for row in found]), "accuracy": accuracy}


def _interval(value: float, draws: NDArray[np.float64]) -> Score:
    sound = draws[np.isfinite(draws)]
    return Score(value) if len(sound) < FEWEST or not np.isfinite(value) else percentile(value, sound)


def _ratio(above: NDArray, below: NDArray) -> NDArray[np.float64]:
    return np.divide(above, below, out=np.full(np.shape(below), np.nan), where=np.asarray(below) > 0)


def _mean(values: NDArray[np.float64]) -> float:
    """Return the mean of those that are numbers; not a number where none is."""
    sound = values[np.isfinite(values)]
    return float(sound.mean()) if len(sound) else float("nan")


def _plain(score: Score) -> dict[str, float | None]:
    return {"value": _finite(score.value), "low": score.low, "high": score.high}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
