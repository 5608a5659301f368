"""Scores of test images that can be computed for many resampled sets at once.

A measure is a function of weights, which say how often each test image counts. With all weights 1 it gives the score
itself, with the counts of a bootstrap draw the score of the resampled set. Two models scored with the same weights are
compared pair by pair.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Weights = NDArray[np.float64]
Measure = Callable[[Weights], NDArray[np.float64]]
CALIBRATION_BINS = 15


def hits(scores: Tensor, labels: Tensor, top: int = 1) -> NDArray[np.float64]:
    """Return for each image the probability that its class is among the first `top`, with ties in random order.

    Without ties it is 0 or 1. The class votes of a few neighbours often tie (many classes have no votes), and then the
    order of the classes must not decide.

    Args:
        scores: (N, K) scores, higher is likelier.
        labels: (N,) in [0, K).
        top: Number of likeliest classes among which the label may be.

    Example:
        >>> hits(torch.tensor([[3.0, 1.0, 0.0], [1.0, 1.0, 0.0]]), torch.tensor([0, 0]))
        array([1. , 0.5])
    """
    own_score = scores.gather(1, labels[:, None])
    n_above, n_equal = (scores > own_score).sum(1), (scores == own_score).sum(1)
    return ((top - n_above) / n_equal).clamp(0, 1).double().cpu().numpy()


class Mean:
    """The mean of one value per image."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.values = np.asarray(values, dtype=np.float64)

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        return (weights * self.values).sum(1) / weights.sum(1)


class Average:
    """The mean of several measures of the same images."""

    def __init__(self, measures: Sequence[Measure]) -> None:
        self.measures = tuple(measures)

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        return np.mean([measure(weights) for measure in self.measures], axis=0)


class MeanPerClass:
    """The mean over classes of the mean hit of each class; classes without an image in a draw are left out.

    For hits that are 0 or 1 it is the balanced accuracy (as in scikit-learn).
    """

    def __init__(self, values: NDArray[np.float64], labels: NDArray[np.int64], n_classes: int) -> None:
        self.values, self._labels, self._n_classes = values, labels, n_classes

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        counts = sum_by_class(weights, self._labels, self._n_classes)
        recall = sum_by_class(weights * self.values, self._labels, self._n_classes) / np.maximum(counts, 1e-12)
        return recall.sum(1) / (counts > 0).sum(1)


class MacroF1:
    """The mean F1 over the classes that occur among labels or predictions (as in scikit-learn)."""

    def __init__(self, labels: NDArray[np.int64], predicted: NDArray[np.int64], n_classes: int) -> None:
        self._labels, self._predicted, self._n_classes = labels, predicted, n_classes

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        right = sum_by_class(weights * (self._labels == self._predicted), self._labels, self._n_classes)
        true, positive = (
            sum_by_class(weights, classes, self._n_classes) for classes in (self._labels, self._predicted)
        )
        return _mean_f1(right, true + positive)


class MacroF1OfSeveral:
    """The mean F1 over the classes that occur among labels or predictions, where images may have several labels.

    Args:
        labels: (N, K) of 1, 0 and -1 (image ignored for that class).
        predicted: (N, K) bool.
    """

    def __init__(self, labels: Tensor, predicted: Tensor) -> None:
        positive, given = (labels == 1).numpy(), predicted.numpy() & (labels >= 0).numpy()
        self._right = (given & positive).astype(np.float64)
        self._either = given.astype(np.float64) + positive

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        return _mean_f1(weights @ self._right, weights @ self._either)


class CalibrationError:
    """The expected error of the confidence of predictions, over 15 bins of equal width (Guo et al. 2017).

    Args:
        confidence: (N,) float32 probabilities of the predicted classes.
        right: (N,) bool, which predictions are right.
    """

    def __init__(self, confidence: NDArray[np.float32], right: NDArray[np.bool_]) -> None:
        self._surplus, self._bins = confidence.astype(np.float64) - right, calibration_bin(confidence)

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        surplus = sum_by_class(weights * self._surplus, self._bins, CALIBRATION_BINS + 1)
        return np.abs(surplus).sum(1) / weights.sum(1)


def calibration_bin(confidence: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return each confidence's bin: 15 of equal width, and one more for exactly 1, as in torchmetrics."""
    edges = np.linspace(0, 1, CALIBRATION_BINS + 1, dtype=np.float32)
    return np.searchsorted(edges, confidence, side="right") - 1


def sum_by_class(weights: Weights, classes: NDArray[np.int64], n_classes: int) -> NDArray[np.float64]:
    """Return the (D, K) sums of (D, N) weights over the images of each of (N,) classes."""
    places = classes + np.arange(len(weights))[:, None] * n_classes
    sums = np.bincount(places.ravel(), weights.ravel(), len(weights) * n_classes).astype(np.float64, copy=False)
    return sums.reshape(len(weights), n_classes)


def mean_over_classes(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (D,) means of (D, K) values, ignoring NaN; 0 where all values are NaN."""
    counted = ~np.isnan(values)
    return np.where(counted, values, 0).sum(1) / np.maximum(counted.sum(1), 1)


def value_of(measure: Measure, n_images: int) -> float:
    """Return the score on all images, each counting once."""
    return float(measure(np.ones((1, n_images)))[0])


def best_of(values: list[float]) -> int:
    """Return the position of the highest value, the first of equal values; NaN loses.

    Example:
        >>> best_of([float("nan"), 0.5, 0.7, 0.7])
        2
    """
    return int(torch.tensor(values, dtype=torch.float64).nan_to_num(nan=-torch.inf).argmax())


def _mean_f1(right: NDArray[np.float64], either: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (D,) means, from (D, K) right predictions and (D, K) sums of labels and predictions."""
    return mean_over_classes(np.where(either > 0, 2 * right / np.maximum(either, 1e-12), np.nan))


# Recalls such as 3/10 are not exact in binary, so each threshold is slightly lower.
ELEVEN_RECALLS = np.arange(11) / 10 - 1e-9


class RocAuc:
    """The probability that a positive image has a higher score than a negative image, with ties counting half."""

    def __init__(self, scores: Tensor, labels: Tensor) -> None:
        self._order, self._group = _rank_by_score(scores.double().cpu().numpy())
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
    """The average precision, as the mean over classes; a class without a positive image does not count.

    Precision is read where the score changes, so that ties have no order. The average is over the precision at each
    recall that is reached, weighted by the recall that it adds (as in scikit-learn and torchmetrics); or, interpolated,
    over the highest precision at a recall of at least 0, 0.1, ..., 1, as in PASCAL VOC 2007.

    Args:
        scores: (N, K) scores.
        labels: (N, K) of 1, 0 and -1 (image ignored for that class).
        interpolated: Whether the eleven interpolated points are averaged.
    """

    def __init__(self, scores: Tensor, labels: Tensor, interpolated: bool = True) -> None:
        if labels.shape != scores.shape:
            raise ValueError(f"expected labels of shape {tuple(scores.shape)}, got {tuple(labels.shape)}")
        self._interpolated = interpolated
        self._classes: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]] = []
        for score, label in zip(scores.double().cpu().numpy().T, labels.cpu().numpy().T, strict=True):
            labelled = np.flatnonzero(label >= 0)
            order, group = _rank_by_score(score[labelled])
            self._classes.append((labelled[order], group, label[labelled][order] > 0))

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        return mean_over_classes(self.per_class(weights))

    def per_class(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D, K) scores for (D, N) weights; NaN for a class without a positive image."""
        areas = [self._area_of_class(weights[:, order], group, positive) for order, group, positive in self._classes]
        return np.stack(areas, axis=1)

    def _area_of_class(
        self, ordered: Weights, group: NDArray[np.int64], positive: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        if not len(group):
            return np.full(len(ordered), np.nan)
        right = np.add.reduceat(ordered * positive, group, axis=1).cumsum(1)
        shown = np.add.reduceat(ordered, group, axis=1).cumsum(1)
        precision, total = right / np.maximum(shown, 1e-12), right[:, -1:]
        recall = right / np.maximum(total, 1e-12)
        if self._interpolated:
            area = precision_at(ELEVEN_RECALLS, precision, recall).mean(1)
        else:
            area = (np.diff(recall, axis=1, prepend=0.0) * precision).sum(1)
        return np.where(total[:, 0] > 0, area, np.nan)


def precision_at(
    recalls: NDArray[np.float64], precision: NDArray[np.float64], recall: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the (C, R) highest precisions of curves at or above each of R recalls; 0 where the recall is not reached.

    Args:
        recalls: (R,) recalls at which precision is read.
        precision: (C, P) precisions of each curve.
        recall: (C, P) recalls of each curve, ascending.

    Example:
        >>> curve = np.array([[1.0, 0.5, 2 / 3]]), np.array([[0.25, 0.25, 0.5]])
        >>> precision_at(np.array([0.0, 0.5, 1.0]), *curve).round(2).tolist()
        [[1.0, 0.67, 0.0]]
    """
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    padded = np.pad(best, ((0, 0), (0, 1)))
    return np.stack(
        [row[np.searchsorted(reached_recalls, recalls)] for row, reached_recalls in zip(padded, recall, strict=True)]
    )


def _rank_by_score(scores: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order of descending scores, and where each group of equal scores begins in it."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, dtype=np.int64)
    return order, starts


MetricName = Literal["accuracy", "mean_per_class", "map", "map11", "roc_auc"]
METRIC_TITLES = {
    "accuracy": "accuracy",
    "mean_per_class": "mean per class",
    "map": "mAP",
    "map11": "11-point mAP",
    "roc_auc": "ROC-AUC",
}


def measure_of(name: MetricName, scores: Tensor, labels: Tensor) -> Measure:
    """Return the measure of a metric.

    Args:
        name: "accuracy" and "mean_per_class" take (N,) labels; "roc_auc" takes (N,) labels of two classes; "map", the
            mean over classes of the average precision, and "map11", the mean of the 11-point interpolated average
            precision (PASCAL VOC 2007), take (N, K) labels 1, 0 or -1 (image ignored for that class).
        scores: (N, K) scores.
        labels: Labels in the form that the metric takes.
    """
    if name in ("map", "map11"):
        return AveragePrecision(scores, labels, interpolated=name == "map11")
    if labels.ndim != 1:
        raise ValueError(f"{name} needs one label per image, got {tuple(labels.shape)}")
    if name == "roc_auc":
        if scores.shape[1] != 2:
            raise ValueError(f"roc_auc needs two classes, got {scores.shape[1]}")
        return RocAuc(scores[:, 1] - scores[:, 0], labels)
    image_hits = hits(scores, labels)
    return Mean(image_hits) if name == "accuracy" else MeanPerClass(image_hits, labels.numpy(), scores.shape[1])


class PixelScores:
    """Measures of masks, computed from the confusion matrix of all labelled pixels of a set.

    Args:
        confusions: (K, K) counts for each of N images; rows are labels, columns predictions.
    """

    def __init__(self, confusions: Sequence[NDArray[np.int64]]) -> None:
        self._hits = np.stack([np.diagonal(confusion) for confusion in confusions]).astype(np.float64)
        self._labels = np.stack([confusion.sum(1) for confusion in confusions]).astype(np.float64)
        self._predicted = np.stack([confusion.sum(0) for confusion in confusions]).astype(np.float64)

    def iou(self, weights: Weights) -> NDArray[np.float64]:
        """Return the (D, K) intersection over union of each class; NaN for a class that does not occur."""
        hits = weights @ self._hits
        return _ratio(hits, weights @ self._labels + weights @ self._predicted - hits)

    def mean_iou(self, weights: Weights) -> NDArray[np.float64]:
        """Return the (D,) means over the classes that occur among labels or predictions; NaN without any."""
        return _mean_over_known(self.iou(weights))

    def accuracy(self, weights: Weights) -> NDArray[np.float64]:
        """Return the (D,) shares of the pixels that are right; NaN without any pixels."""
        return _ratio((weights @ self._hits).sum(1), (weights @ self._labels).sum(1))

    def mean_accuracy(self, weights: Weights) -> NDArray[np.float64]:
        """Return the (D,) means over labelled classes of the share of pixels that are right; NaN without any."""
        return _mean_over_known(_ratio(weights @ self._hits, weights @ self._labels))


def _ratio(numerators: NDArray[np.float64], denominators: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(numerators, denominators, out=np.full(denominators.shape, np.nan), where=denominators > 0)


def _mean_over_known(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isnan(values).all(1), np.nan, mean_over_classes(values))
