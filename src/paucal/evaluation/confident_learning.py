"""Confident learning: detection of probably wrong labels from out-of-fold probabilities.

Northcutt, Jiang and Chuang 2021, "Confident learning: estimating uncertainty in dataset labels", sections 3.1 and 3.2,
method 2 (the off-diagonals of the confident joint). As in the authors' library cleanlab (filter "confident_learning"),
an image whose probabilities exceed the thresholds of several classes counts for its likeliest class. A label that is
itself the likeliest class is never suspected.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Tolerance of comparisons with a threshold, as in cleanlab. Without a tolerance, equal probabilities could be below
# their own mean because of rounding.
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Suspect:
    """A label that is probably wrong."""

    position: int  # row of the image in the input
    given: int  # class of the label
    suggested: int  # class that the image probably belongs to
    confidence: float  # out-of-fold probability of the label; the smaller, the more suspect
    suggested_confidence: float  # out-of-fold probability of the suggested class


def suspected_labels(probabilities: NDArray[np.float64], labels: NDArray[np.integer]) -> list[Suspect]:
    """Return the labels that are probably wrong, in ascending order of their probabilities.

    Each row of the (N, K) probabilities comes from a model that was not trained on that image.
    """
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:
        raise ValueError(f"expected (N, K) probabilities and (N,) labels, got {probabilities.shape} and {labels.shape}")
    if not ((probabilities >= 0) & (probabilities <= 1 + _TOLERANCE)).all():
        raise ValueError("expected probabilities from 0 to 1")
    suggested = confident_class(probabilities, labels)
    suspects = np.flatnonzero((suggested >= 0) & (suggested != labels) & (probabilities.argmax(1) != labels))
    rows = suspects[np.argsort(probabilities[suspects, labels[suspects]], kind="stable")]
    given, suggested = labels[rows], suggested[rows]
    columns = (rows, given, suggested, probabilities[rows, given], probabilities[rows, suggested])
    return [Suspect(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def confident_class(probabilities: NDArray[np.float64], labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the (N,) classes that the images confidently belong to, as in equation 1.

    The threshold of a class is its mean probability over the images labelled as the class (equation 2), and infinite
    without such images. The class of an image is -1 if all its probabilities are below the thresholds.
    """
    thresholds = np.full(probabilities.shape[1], np.inf)
    for label in np.unique(labels):
        thresholds[label] = probabilities[labels == label, label].mean()
    is_above_threshold = probabilities >= thresholds - _TOLERANCE
    count = is_above_threshold.sum(1)
    classes = np.where(count > 1, probabilities.argmax(1), is_above_threshold.argmax(1))
    return np.where(count > 0, classes, -1)
