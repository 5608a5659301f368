"""Scores of predicted masks, from counts of the pixels of each image.

The mean of images' scores, or of batches' (as torchmetrics' `MeanIoU` takes it), is another number: a class that lacks
in an image counts there as nothing or as everything.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paucal.metrics.measures import Weights, mean_over_classes


class PixelScores:
    """Measures of masks over images, each counted as one table of all labelled pixels.

    Args:
        confusions: (K, K) counts of each of N images, rows the labels, columns the answers.
    """

    def __init__(self, confusions: Sequence[NDArray[np.int64]]) -> None:
        self._hits = np.stack([np.diagonal(one) for one in confusions]).astype(np.float64)
        self._labels = np.stack([one.sum(1) for one in confusions]).astype(np.float64)
        self._answers = np.stack([one.sum(0) for one in confusions]).astype(np.float64)

    def iou(self, weights: Weights) -> NDArray[np.float64]:
        """Return the (D, K) intersection over union of each class; not a number where it occurs nowhere."""
        hits = weights @ self._hits
        return _ratio(hits, weights @ self._labels + weights @ self._answers - hits)

    def mean_iou(self, weights: Weights) -> NDArray[np.float64]:
        """Return the (D,) means over the classes that occur among labels or answers; not a number without any."""
        return _mean_of_found(self.iou(weights))

    def accuracy(self, weights: Weights) -> NDArray[np.float64]:
        """Return the (D,) shares of the pixels that are right; not a number without any."""
        return _ratio((weights @ self._hits).sum(1), (weights @ self._labels).sum(1))

    def mean_accuracy(self, weights: Weights) -> NDArray[np.float64]:
        """Return the (D,) mean shares of each labelled class's pixels that are right; not a number without any."""
        return _mean_of_found(_ratio(weights @ self._hits, weights @ self._labels))


def _ratio(above: NDArray[np.float64], below: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0)


def _mean_of_found(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isnan(values).all(1), np.nan, mean_over_classes(values))
