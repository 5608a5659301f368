"""From which probability on a class is an answer, where images may have several labels."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

USUAL = 0.5
FEWEST = 5  # images of a class, below which it shares the threshold of all classes together


def choose_thresholds(probabilities: Tensor, labels: Tensor) -> tuple[float, ...]:
    """Return for each class the threshold of the highest F1, on images that no weight was fitted to.

    A class of fewer than five such images has the threshold that is best for all classes together. A threshold lies in
    the middle between the two probabilities that it parts; of equal ones the highest is taken.

    Args:
        probabilities: (N, K) in [0, 1].
        labels: (N, K) of 1, 0 and -1 (image ignored for that class).

    Returns:
        K numbers in (0, 1); 0.5 where no image is of any class.
    """
    shares, truth = probabilities.double().numpy(), labels.numpy()
    common = _best(shares[truth >= 0], truth[truth >= 0] == 1)
    found = []
    for place in range(truth.shape[1]):
        known = truth[:, place] >= 0
        positive = truth[known, place] == 1
        found.append(_best(shares[known, place], positive) if positive.sum() >= FEWEST else common)
    return tuple(found)


def marked(probabilities: Tensor, thresholds: Sequence[float]) -> Tensor:
    """Return the (N, K) bool answers: which classes reach their threshold."""
    return probabilities >= torch.tensor(thresholds, dtype=probabilities.dtype)


def _best(shares: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    if not positive.any():
        return USUAL
    order = np.argsort(-shares, kind="stable")
    ranked, right = shares[order], positive[order].cumsum()
    ends = np.flatnonzero(np.r_[ranked[1:] != ranked[:-1], True])  # answers may end where the probability changes
    f1 = 2 * right[ends] / (ends + 1 + positive.sum())
    last = int(ends[f1.argmax()])
    below = ranked[last + 1] if last + 1 < len(ranked) else 0.0
    return float(np.clip((ranked[last] + below) / 2, 1e-6, 1 - 1e-6))
