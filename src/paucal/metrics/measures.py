"""Scores of test images that can be taken of any resampled set at once.

A measure is a function of weights: how often each test image counts. All ones give the score itself, the counts of a
bootstrap draw that of the resampled set. Two models judged with the same weights are compared pair by pair.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Weights = NDArray[np.float64]
Measure = Callable[[Weights], NDArray[np.float64]]
CALIBRATION_BINS = 15


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
    """The mean over classes of their mean hit; a class that has no image in a draw does not count there.

    Of hits that are 0 or 1 it is the balanced accuracy (as in scikit-learn).
    """

    def __init__(self, values: NDArray[np.float64], labels: NDArray[np.int64], n_classes: int) -> None:
        self.values, self._labels, self._n_classes = values, labels, n_classes

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        counts = sum_by_class(weights, self._labels, self._n_classes)
        recall = sum_by_class(weights * self.values, self._labels, self._n_classes) / np.maximum(counts, 1e-12)
        return recall.sum(1) / (counts > 0).sum(1)


class MacroF1:
    """The mean F1 over the classes that occur among labels or answers (as in scikit-learn).

    Args:
        labels: (N,) classes of images with one label each.
        answers: (N,) classes that they were given.
        n_classes: K.
    """

    def __init__(self, labels: NDArray[np.int64], answers: NDArray[np.int64], n_classes: int) -> None:
        self._labels, self._answers, self._n_classes = labels, answers, n_classes

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        right = sum_by_class(weights * (self._labels == self._answers), self._labels, self._n_classes)
        true, given = (sum_by_class(weights, one, self._n_classes) for one in (self._labels, self._answers))
        return _mean_f1(right, true + given)


class MacroF1OfSeveral:
    """The mean F1 over the classes that occur among labels or answers, where images may have several.

    Args:
        labels: (N, K) of 1, 0 and -1 (image ignored for that class).
        answers: (N, K) bool.
    """

    def __init__(self, labels: Tensor, answers: Tensor) -> None:
        positive, given = (labels == 1).numpy(), answers.numpy() & (labels >= 0).numpy()
        self._right = (given & positive).astype(np.float64)
        self._either = given.astype(np.float64) + positive

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        return _mean_f1(weights @ self._right, weights @ self._either)


class CalibrationError:
    """The expected error of the confidence of answers, over 15 bins of equal width (Guo et al. 2017).

    Args:
        confidence: (N,) float32 probabilities of the answers.
        right: (N,) bool, which answers are right.
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
    """Return the (D,) means of (D, K) values, over those that are numbers; 0 where none is."""
    counted = ~np.isnan(values)
    return np.where(counted, values, 0).sum(1) / np.maximum(counted.sum(1), 1)


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


def _mean_f1(right: NDArray[np.float64], either: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (D,) means, from (D, K) right answers and (D, K) sums of labels and answers."""
    return mean_over_classes(np.where(either > 0, 2 * right / np.maximum(either, 1e-12), np.nan))
