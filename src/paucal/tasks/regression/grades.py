"""Grades, whole numbers in order, from a regression: where on its scale one grade ends and the next begins."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from paucal.metrics.regression import conformal_half_width
from paucal.models.regression import LEVEL, Grades

PULL = 1e-3  # of logarithms of the slope and of the gaps towards 0, which keeps grades without an image apart
Array = NDArray[np.float64]


def fit_grades(outputs: Array, truth: Array, lowest: int, highest: int) -> tuple[Grades, float]:
    """Return the grades by maximum likelihood, and the margin of their 90 % intervals; see `Grades.read`.

    Args:
        outputs: (N,) outputs of the regression for images that it was not fitted to.
        truth: (N,) true grades.
        lowest: First grade.
        highest: Last grade.
    """
    rows, place = np.arange(len(truth)), (truth - lowest).astype(np.int64)

    def unpack(values: Array) -> Grades:
        cuts = values[1] + np.concatenate([[0.0], np.cumsum(np.exp(values[2:]))])
        return Grades(lowest, tuple(cuts.tolist()), float(np.exp(values[0])))

    def loss(values: Array) -> float:
        shares = unpack(values).shares(outputs)[rows, place]
        pull = PULL * (values[0] ** 2 + (values[2:] ** 2).sum())
        return float(-np.log(np.maximum(shares, 1e-12)).mean() + pull)

    start = np.concatenate([[0.0, lowest + 0.5], np.zeros(highest - lowest - 1)])
    grades = unpack(minimize(loss, start, bounds=[(-5, 5), (None, None), *[(-7, 5)] * (len(start) - 2)]).x)
    return grades, conformal_half_width(grades.misses(outputs, truth), LEVEL)
