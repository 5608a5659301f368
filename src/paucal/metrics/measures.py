"""Scores on test images that can be computed for many resampled sets at once.

A measure is a function of weights: the weight of a test image is how often the image counts. Weights of 1 give the
score on the test images, and the counts of a bootstrap draw give the score on the resampled set. If two models are
scored with the same weights, their comparison is paired.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Weights = NDArray[np.float64]  # (D, N) weights of N images in D resampled sets
Measure = Callable[[Weights], NDArray[np.float64]]  # returns (D,) scores
CALIBRATION_BINS = 15  # number of bins of equal width


def hits(scores: Tensor, labels: Tensor, top: int = 1) -> NDArray[np.float64]:
    """Return the (N,) probabilities that the label is among the `top` highest scores, with ties in random order.

    Without ties the probability is 0 or 1. In k-NN classification many classes have no votes and tie, so the order of
    the classes would otherwise decide. `scores` are (N, K), and `labels` (N,) in [0, K).

    Example:
        >>> hits(torch.tensor([[3.0, 1.0, 0.0], [1.0, 1.0, 0.0]]), torch.tensor([0, 0]))
        array([1. , 0.5])
    """
    label_score = scores.gather(1, labels[:, None])
    n_above, n_equal = (scores > label_score).sum(1), (scores == label_score).sum(1)
    return ((top - n_above) / n_equal).clamp(0, 1).double().cpu().numpy()


class Mean:
    """The mean of one value per image."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.values = np.asarray(values, dtype=np.float64)

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        return (weights * self.values).sum(1) / weights.sum(1)


def mean_of(measures: Sequence[Measure]) -> Measure:
    """Return the mean of several measures of the same images."""
    return lambda weights: np.mean([measure(weights) for measure in measures], axis=0)


def mean_per_class(values: NDArray[np.float64], labels: NDArray[np.int64], n_classes: int) -> Measure:
    """Return the mean over classes of the mean value of each class's images; classes without images are left out.

    If a value is 1 for a correct and 0 for a wrong prediction, the result is scikit-learn's balanced accuracy.
    """

    def measure(weights: Weights) -> NDArray[np.float64]:
        counts = sum_by_class(weights, labels, n_classes)
        recall = sum_by_class(weights * values, labels, n_classes) / np.maximum(counts, 1e-12)
        return recall.sum(1) / (counts > 0).sum(1)

    return measure


def macro_f1(labels: NDArray[np.int64], predicted: NDArray[np.int64], n_classes: int) -> Measure:
    """Return the mean F1 over the classes that occur among labels or predictions (as in scikit-learn)."""

    def measure(weights: Weights) -> NDArray[np.float64]:
        n_correct = sum_by_class(weights * (labels == predicted), labels, n_classes)
        n_true, n_predicted = (sum_by_class(weights, classes, n_classes) for classes in (labels, predicted))
        return _mean_f1(n_correct, n_true + n_predicted)

    return measure


def multi_label_macro_f1(labels: Tensor, predicted: Tensor) -> Measure:
    """Return the macro-F1 of (N, K) bool predictions.

    `labels` are (N, K): 1, 0, or -1 if the image is ignored for the class.
    """
    is_true, is_predicted = (labels == 1).numpy(), predicted.numpy() & (labels >= 0).numpy()
    correct = (is_predicted & is_true).astype(np.float64)
    true_plus_predicted = is_predicted.astype(np.float64) + is_true
    return lambda weights: _mean_f1(weights @ correct, weights @ true_plus_predicted)


def expected_calibration_error(confidence: NDArray[np.float32], correct: NDArray[np.bool_]) -> Measure:
    """Return the mean gap between confidence and accuracy over 15 equal bins (Guo et al. 2017).

    `confidence` are the (N,) float32 probabilities of the predicted classes.
    """
    gaps, bins = confidence.astype(np.float64) - correct, calibration_bin(confidence)

    def measure(weights: Weights) -> NDArray[np.float64]:
        return np.abs(sum_by_class(weights * gaps, bins, CALIBRATION_BINS + 1)).sum(1) / weights.sum(1)

    return measure


def calibration_bin(confidence: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the (N,) bins of confidences: 0 to 14 for bins of equal width, 15 for exactly 1, as in torchmetrics."""
    edges = np.linspace(0, 1, CALIBRATION_BINS + 1, dtype=np.float32)
    return np.searchsorted(edges, confidence, side="right") - 1


def sum_by_class(weights: Weights, classes: NDArray[np.int64], n_classes: int) -> NDArray[np.float64]:
    """Return the (D, K) sums of (D, N) weights over the images of each class; `classes` are (N,) class numbers."""
    flat_indices = classes + np.arange(len(weights))[:, None] * n_classes
    sums = np.bincount(flat_indices.ravel(), weights.ravel(), len(weights) * n_classes).astype(np.float64, copy=False)
    return sums.reshape(len(weights), n_classes)


def mean_over_classes(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (D,) means of (D, K) values, ignoring NaN; a mean is 0 if all its values are NaN."""
    is_defined = ~np.isnan(values)
    return np.where(is_defined, values, 0).sum(1) / np.maximum(is_defined.sum(1), 1)


def value_of(measure: Measure, n_images: int) -> float:
    """Return the score of a measure on all images, each with weight 1."""
    return float(measure(np.ones((1, n_images)))[0])


def nan_argmax(values: list[float]) -> int:
    """Return the index of the first highest value; NaN counts as the lowest value."""
    return int(torch.tensor(values, dtype=torch.float64).nan_to_num(nan=-torch.inf).argmax())


def _mean_f1(n_correct: NDArray[np.float64], true_plus_predicted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (D,) macro-F1 from (D, K) counts of correct predictions and of labels plus predictions per class."""
    f1 = 2 * n_correct / np.maximum(true_plus_predicted, 1e-12)
    return mean_over_classes(np.where(true_plus_predicted > 0, f1, np.nan))


# Recalls slightly below 0, 0.1, ..., 1, so that a rounded recall of 3/10, for example, reaches 0.3.
ELEVEN_RECALLS = np.arange(11) / 10 - 1e-9


def roc_auc(scores: Tensor, labels: Tensor) -> Measure:
    """Return the probability that a positive image has a higher score than a negative image, with ties counting half.

    The result is 0.5 for a resampled set without positive or without negative images.
    """
    order, starts = _rank_by_score(scores.double().cpu().numpy())
    is_positive = labels.cpu().numpy()[order] > 0

    def measure(weights: Weights) -> NDArray[np.float64]:
        ordered = weights[:, order]
        positive = np.add.reduceat(ordered * is_positive, starts, axis=1)
        negative = np.add.reduceat(ordered * ~is_positive, starts, axis=1)
        # Negative images with a lower score; the groups of equal scores are in descending order.
        negative_below = negative[:, ::-1].cumsum(1)[:, ::-1] - negative
        n_pairs = positive.sum(1) * negative.sum(1)
        n_correct = (positive * (negative_below + negative / 2)).sum(1)
        return np.where(n_pairs > 0, n_correct / np.maximum(n_pairs, 1e-12), 0.5)

    return measure


class AveragePrecision:
    """The mean average precision over classes; classes without a positive image are left out.

    Images with equal scores are ranked together, so that their order does not matter. The average precision is the mean
    of the precision at each score, weighted by the increase in recall (as in scikit-learn and torchmetrics). The
    interpolated average precision is the mean of the highest precisions at recalls of at least 0, 0.1, ..., 1 (as in
    PASCAL VOC 2007).
    `scores` are (N, K), and `labels` (N, K) values 1, 0, or -1 if the image is ignored for the class.
    """

    def __init__(self, scores: Tensor, labels: Tensor, interpolated: bool = True) -> None:
        if labels.shape != scores.shape:
            raise ValueError(f"expected labels of shape {tuple(scores.shape)}, got {tuple(labels.shape)}")
        self._interpolated = interpolated
        # For each class: its labelled images by descending score, the first position of each group of equal scores, and
        # whether each image belongs to the class.
        self._classes: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]] = []
        for score, label in zip(scores.double().cpu().numpy().T, labels.cpu().numpy().T, strict=True):
            labelled = np.flatnonzero(label >= 0)
            order, starts = _rank_by_score(score[labelled])
            self._classes.append((labelled[order], starts, label[labelled][order] > 0))

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        return mean_over_classes(self.per_class(weights))

    def per_class(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D, K) scores for (D, N) weights; NaN for a class without a positive image."""
        areas = np.full((len(weights), len(self._classes)), np.nan)
        for index, (order, starts, positive) in enumerate(self._classes):
            if not len(starts):
                continue
            ordered = weights[:, order]
            n_correct = np.add.reduceat(ordered * positive, starts, axis=1).cumsum(1)
            n_predicted = np.add.reduceat(ordered, starts, axis=1).cumsum(1)
            precision, total = n_correct / np.maximum(n_predicted, 1e-12), n_correct[:, -1:]
            recall = n_correct / np.maximum(total, 1e-12)
            if self._interpolated:
                area = interpolated_precision(ELEVEN_RECALLS, precision, recall).mean(1)
            else:
                area = (np.diff(recall, axis=1, prepend=0.0) * precision).sum(1)
            areas[:, index] = np.where(total[:, 0] > 0, area, np.nan)
        return areas


def interpolated_precision(
    recalls: NDArray[np.float64], precision: NDArray[np.float64], recall: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the (C, R) highest precisions of C curves at each of (R,) recalls or above; 0 if a curve stops below it.

    `precision` and `recall` are the (C, P) points of the curves; recalls are ascending.

    Example:
        >>> curve = np.array([[1.0, 0.5, 2 / 3]]), np.array([[0.25, 0.25, 0.5]])
        >>> interpolated_precision(np.array([0.0, 0.5, 1.0]), *curve).round(2).tolist()
        [[1.0, 0.67, 0.0]]
    """
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    padded = np.pad(best, ((0, 0), (0, 1)))
    return np.stack(
        [row[np.searchsorted(reached_recalls, recalls)] for row, reached_recalls in zip(padded, recall, strict=True)]
    )


def _rank_by_score(scores: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices that sort scores in descending order, and the first position of each group of equal scores."""
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
    """Return the measure that computes a metric of the given scores.

    "map" is the mean over classes of the average precision, and "map11" is the mean over classes of the 11-point
    interpolated average precision (PASCAL VOC 2007). Both need (N, K) labels: 1, 0, or -1 if the image is ignored for
    the class. The other metrics need (N,) class numbers, and "roc_auc" needs two classes. `scores` are (N, K).
    """
    if name in ("map", "map11"):
        return AveragePrecision(scores, labels, interpolated=name == "map11")
    if labels.ndim != 1:
        raise ValueError(f"{name} needs one label per image, got labels of shape {tuple(labels.shape)}")
    if name == "roc_auc":
        if scores.shape[1] != 2:
            raise ValueError(f"roc_auc needs two classes, got {scores.shape[1]}")
        return roc_auc(scores[:, 1] - scores[:, 0], labels)
    correct = hits(scores, labels)
    return Mean(correct) if name == "accuracy" else mean_per_class(correct, labels.numpy(), scores.shape[1])


class PixelScores:
    """Measures of predicted masks, computed from a confusion matrix that is summed over the images.

    The N (K, K) confusion matrices count the labelled pixels of each image; rows are labels, and columns predictions.
    """

    def __init__(self, confusions: Sequence[NDArray[np.int64]]) -> None:
        self._correct = np.stack([np.diagonal(confusion) for confusion in confusions]).astype(np.float64)
        self._labels = np.stack([confusion.sum(1) for confusion in confusions]).astype(np.float64)
        self._predicted = np.stack([confusion.sum(0) for confusion in confusions]).astype(np.float64)

    def iou(self, weights: Weights) -> NDArray[np.float64]:
        """Return the (D, K) intersection over union of each class; NaN for classes that do not occur."""
        n_correct = weights @ self._correct
        return _ratio(n_correct, weights @ self._labels + weights @ self._predicted - n_correct)

    def mean_iou(self, weights: Weights) -> NDArray[np.float64]:
        """Return the (D,) mean IoU of the classes among labels or predictions; NaN if there are no such classes."""
        return _mean_of_defined(self.iou(weights))

    def accuracy(self, weights: Weights) -> NDArray[np.float64]:
        """Return the (D,) fractions of correctly classified pixels; NaN if there are no labelled pixels."""
        return _ratio((weights @ self._correct).sum(1), (weights @ self._labels).sum(1))

    def mean_accuracy(self, weights: Weights) -> NDArray[np.float64]:
        """Return the (D,) mean pixel accuracy of the classes among labels; NaN if there are no such classes."""
        return _mean_of_defined(_ratio(weights @ self._correct, weights @ self._labels))


def _ratio(numerators: NDArray[np.float64], denominators: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(numerators, denominators, out=np.full(denominators.shape, np.nan), where=denominators > 0)


def _mean_of_defined(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isnan(values).all(1), np.nan, mean_over_classes(values))
