"""Scores of test images that can be taken of any resampled set at once.

A measure is a function of weights: how often each test image counts. All ones give the score itself, the counts of a
bootstrap draw that of the resampled set. Two models judged with the same weights are compared pair by pair.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Weights = NDArray[np.float64]
Measure = Callable[[Weights], NDArray[np.float64]]
MetricName = Literal["accuracy", "mean_per_class", "map", "map11", "roc_auc"]
TITLES = {
    "accuracy": "accuracy",
    "mean_per_class": "mean per class",
    "map": "mAP",
    "map11": "11-point mAP",
    "roc_auc": "ROC-AUC",
}
_RECALLS = np.arange(11) / 10
_EPSILON = 1e-9  # recalls such as 3/10 are not exact in binary


def hits(scores: Tensor, labels: Tensor, top: int = 1) -> NDArray[np.float64]:
    """Return per image the chance that its class is among the first `top`, equal scores in random order.

    Without ties that is 0 or 1. Class votes of few neighbours do tie (many classes have none), and the order of the
    classes must not decide then.

    Args:
        scores: (N, K), higher is likelier.
        labels: (N,) in [0, K).
        top: how many answers count.

    Example:
        >>> hits(torch.tensor([[3.0, 1.0, 0.0], [1.0, 1.0, 0.0]]), torch.tensor([0, 0]))
        array([1. , 0.5])
    """
    own = scores.gather(1, labels[:, None])
    above, equal = (scores > own).sum(1), (scores == own).sum(1)
    return ((top - above) / equal).clamp(0, 1).double().cpu().numpy()


def measure_of(name: MetricName, scores: Tensor, labels: Tensor) -> Measure:
    """Return the measure of a metric.

    Args:
        name: "accuracy" and "mean_per_class" take (N,) labels; "roc_auc" takes (N,) labels of two classes; "map", the
            mean over classes of the average precision, and "map11", of the 11-point interpolated one (PASCAL VOC
            2007), take (N, K) labels 1, 0 or -1 (to be ignored for that class).
        scores: (N, K).
        labels: as above.

    Raises:
        ValueError: the labels are not of that kind.
    """
    if name in ("map", "map11"):
        return AveragePrecision(scores, labels, interpolated=name == "map11")
    if labels.ndim != 1:
        raise ValueError(f"{name} needs one label per image, got {tuple(labels.shape)}")
    if name == "roc_auc":
        if scores.shape[1] != 2:
            raise ValueError(f"roc_auc needs two classes, got {scores.shape[1]}")
        return RocAuc(scores[:, 1] - scores[:, 0], labels)
    each = hits(scores, labels)
    return Mean(each) if name == "accuracy" else MeanPerClass(each, labels.numpy(), scores.shape[1])


class Mean:
    """The mean of one value per image."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.values = np.asarray(values, dtype=np.float64)

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        return weights @ self.values / weights.sum(1)


class Average:
    """The mean of several measures of the same images."""

    def __init__(self, measures: Sequence[Measure]) -> None:
        self.measures = tuple(measures)

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        return np.mean([measure(weights) for measure in self.measures], axis=0)


class MeanPerClass:
    """The mean over classes of their mean hit; a class that has no image in a draw does not count there."""

    def __init__(self, values: NDArray[np.float64], labels: NDArray[np.int64], n_classes: int) -> None:
        self.values, self._members = values, np.eye(n_classes)[labels]

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        counts = weights @ self._members
        recall = (weights * self.values) @ self._members / np.maximum(counts, 1e-12)
        return recall.sum(1) / (counts > 0).sum(1)


class RocAuc:
    """The chance that a positive image has a higher score than a negative one, ties counting half."""

    def __init__(self, scores: Tensor, labels: Tensor) -> None:
        self._order, self._group = _ranking(scores.double().cpu().numpy())
        self._positive = labels.cpu().numpy()[self._order] > 0

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights; 0.5 for a draw that lacks one of the classes."""
        ordered = weights[:, self._order]
        positive = np.add.reduceat(ordered * self._positive, self._group, axis=1)
        negative = np.add.reduceat(ordered * ~self._positive, self._group, axis=1)
        below = negative[:, ::-1].cumsum(1)[:, ::-1] - negative  # groups are in descending order of the score
        pairs = positive.sum(1) * negative.sum(1)
        won = (positive * (below + negative / 2)).sum(1)
        return np.where(pairs > 0, won / np.maximum(pairs, 1e-12), 0.5)


class AveragePrecision:
    """The average precision, the mean over classes; a class without a positive image does not count.

    Precision is read where the score changes, so that ties have no order. What is averaged is the precision at each
    recall that is reached, weighted by how much recall it adds (as in scikit-learn and torchmetrics); or, interpolated,
    the highest precision at a recall of at least 0, 0.1, ..., 1, as in PASCAL VOC 2007.

    Args:
        scores: (N, K).
        labels: (N, K) of 1, 0 and -1 (image ignored for that class).
        interpolated: whether eleven points are read.
    """

    def __init__(self, scores: Tensor, labels: Tensor, interpolated: bool = True) -> None:
        if labels.shape != scores.shape:
            raise ValueError(f"expected labels as many as scores {tuple(scores.shape)}, got {tuple(labels.shape)}")
        columns = zip(scores.double().cpu().numpy().T, labels.cpu().numpy().T, strict=True)
        self._classes = [self._prepared(score, label) for score, label in columns]
        self._area = _eleven_points if interpolated else _steps

    @staticmethod
    def _prepared(
        scores: NDArray[np.float64], labels: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        known = np.flatnonzero(labels >= 0)
        order, group = _ranking(scores[known])
        return known[order], group, labels[known][order] > 0

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        return mean_over_classes(self.per_class(weights))

    def per_class(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D, K) scores for (D, N) weights; not a number for a class without a positive image."""
        found = [
            _average_precision(weights[:, order], group, positive, self._area)
            for order, group, positive in self._classes
        ]
        return np.stack(found, axis=1)


def mean_over_classes(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (D,) means of (D, K) values, over those that are numbers; 0 where none is."""
    counted = ~np.isnan(values)
    return np.where(counted, values, 0).sum(1) / np.maximum(counted.sum(1), 1)


Area = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


def _average_precision(
    ordered: Weights, group: NDArray[np.int64], positive: NDArray[np.bool_], area: Area
) -> NDArray[np.float64]:
    if not len(group):
        return np.full(len(ordered), np.nan)
    right = np.add.reduceat(ordered * positive, group, axis=1).cumsum(1)
    shown = np.add.reduceat(ordered, group, axis=1).cumsum(1)
    precision = right / np.maximum(shown, 1e-12)
    total = right[:, -1:]
    recall = right / np.maximum(total, 1e-12)
    return np.where(total[:, 0] > 0, area(precision, recall), np.nan)


def _eleven_points(precision: NDArray[np.float64], recall: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.mean([np.where(recall >= least - _EPSILON, precision, 0).max(1) for least in _RECALLS], axis=0)


def _steps(precision: NDArray[np.float64], recall: NDArray[np.float64]) -> NDArray[np.float64]:
    return (np.diff(recall, axis=1, prepend=0.0) * precision).sum(1)


def _ranking(scores: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order of descending scores, and where in it each group of equal ones begins."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, dtype=np.int64)
    return order, starts


def value_of(measure: Measure, n_images: int) -> float:
    """Return the score on all images, each counting once."""
    return float(measure(np.ones((1, n_images)))[0])


def best_of(values: list[float]) -> int:
    """Return the position of the highest value, the first of equal ones; values that are no numbers lose.

    Example:
        >>> best_of([float("nan"), 0.5, 0.7, 0.7])
        2
    """
    return int(torch.tensor(values, dtype=torch.float64).nan_to_num(nan=-torch.inf).argmax())
