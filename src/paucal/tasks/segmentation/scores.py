"""The scores of predicted masks on a set of images, with intervals: all of them from counts of pixels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics.functional.classification import multiclass_confusion_matrix

from paucal.metrics.bootstrap import Bootstrap
from paucal.metrics.intervals import Score, percentile
from paucal.metrics.measures import value_of
from paucal.metrics.pixels import PixelScores

DRAWS = 2000


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
        return value_of(PixelScores([self.confusion]).mean_iou, 1)


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

    @property
    def values(self) -> dict[str, float]:
        """The scores without their intervals."""
        scores = {"mean_iou": self.mean_iou.value, "pixel_accuracy": self.accuracy.value}
        return {**scores, "mean_accuracy": self.mean_accuracy, "loss": self.loss}

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


def segmentation_report(tallies: Iterable[Tally], classes: Sequence[str], seed: int = 0) -> SegmentationReport:
    """Put the counts of images together; intervals are of the bootstrap over images, at 95 %.

    Raises:
        ValueError: there is no image.
    """
    rows = sorted(tallies, key=lambda one: one.index)
    if not rows:
        raise ValueError("there is no image to report on")
    confusion, count = np.sum([one.confusion for one in rows], axis=0), len(rows)
    pixels, scores = int(confusion.sum()), PixelScores([one.confusion for one in rows])
    bootstrap = Bootstrap(seed, DRAWS, multinomial=True)
    by_class, means, shares = bootstrap.scores([scores.iou, scores.mean_iou, scores.accuracy], count)
    values = scores.iou(np.ones((1, count)))[0].tolist()
    return SegmentationReport(
        classes=tuple(classes),
        confusion=confusion,
        mean_iou=percentile(value_of(scores.mean_iou, count), means),
        accuracy=percentile(value_of(scores.accuracy, count), shares),
        per_class=tuple(percentile(value, draws) for value, draws in zip(values, by_class.T, strict=True)),
        mean_accuracy=value_of(scores.mean_accuracy, count),
        loss=sum(one.loss for one in rows) / pixels if pixels else float("nan"),
        images=count,
    )


def _plain(score: Score) -> dict[str, float | None]:
    return {"value": _finite(score.value), "low": score.low, "high": score.high}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
