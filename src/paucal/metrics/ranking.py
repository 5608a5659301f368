"""Scores of an order of the images or answers, the surest first: ROC-AUC and the kinds of average precision."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paucal.metrics.measures import Weights, mean_over_classes

# Recalls such as 3/10 are not exact in binary, so that each is asked for a little lower.
ELEVEN_RECALLS = np.arange(11) / 10 - 1e-9


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
        self._interpolated = interpolated
        self._classes: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]] = []
        for score, label in zip(scores.double().cpu().numpy().T, labels.cpu().numpy().T, strict=True):
            known = np.flatnonzero(label >= 0)
            order, group = _ranking(score[known])
            self._classes.append((known[order], group, label[known][order] > 0))

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        return mean_over_classes(self.per_class(weights))

    def per_class(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D, K) scores for (D, N) weights; not a number for a class without a positive image."""
        found = [self._of_class(weights[:, order], group, positive) for order, group, positive in self._classes]
        return np.stack(found, axis=1)

    def _of_class(self, ordered: Weights, group: NDArray[np.int64], positive: NDArray[np.bool_]) -> NDArray[np.float64]:
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
    """Return the (C, R) highest precisions of curves at a recall of at least each of R; 0 where none is reached.

    Args:
        recalls: (R,) that precision is read at.
        precision: (C, P) of each curve.
        recall: (C, P), rising.

    Example:
        >>> curve = np.array([[1.0, 0.5, 2 / 3]]), np.array([[0.25, 0.25, 0.5]])
        >>> precision_at(np.array([0.0, 0.5, 1.0]), *curve).round(2).tolist()
        [[1.0, 0.67, 0.0]]
    """
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    padded = np.pad(best, ((0, 0), (0, 1)))
    return np.stack([row[np.searchsorted(reached, recalls)] for row, reached in zip(padded, recall, strict=True)])


def _ranking(scores: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order of descending scores, and where in it each group of equal ones begins."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, dtype=np.int64)
    return order, starts
