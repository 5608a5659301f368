"""Scores of predicted numbers, as functions of weights over images, and conformal intervals."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paucal.metrics.intervals import Bootstrap, Score, wilson
from paucal.metrics.measures import Mean, Weights

Values = NDArray[np.float64]


class RootMeanSquare:
    """The root of the mean of squared errors.

    Args:
        errors: (N,) predicted minus true numbers.
    """

    def __init__(self, errors: Values) -> None:
        self._squares = Mean(errors**2)

    def __call__(self, weights: Weights) -> Values:
        """Return (D,) scores for (D, N) weights."""
        return np.sqrt(self._squares(weights))


class R2:
    """The share of the variance that is explained, against the mean of the same images; NaN where they are all equal.

    Args:
        truth: (N,) true numbers.
        predicted: (N,) predicted numbers.
    """

    def __init__(self, truth: Values, predicted: Values) -> None:
        self._truth, self._squares = truth, (predicted - truth) ** 2

    def __call__(self, weights: Weights) -> Values:
        """Return (D,) scores for (D, N) weights."""
        mean = (weights * self._truth).sum(1, keepdims=True) / weights.sum(1, keepdims=True)
        total = (weights * (self._truth - mean) ** 2).sum(1)
        rest = (weights * self._squares).sum(1)
        return np.where(total > 0, 1 - rest / np.where(total > 0, total, 1), np.nan)


@dataclass(frozen=True)
class RegressionReport:
    """The scores of predicted numbers on one set of images.

    Attributes:
        images: N.
        scores: "mae" and "rmse" in the unit of the target, "r2", and "coverage", the share of images whose number lies
            in its interval, each with an interval over images.
        baseline: Mean absolute error of always predicting the mean of the training images.
        gain: Baseline minus "mae", with the interval of the difference on the same images.
        mean: Mean of the training images.
        half_width: Half the width of the prediction intervals; infinite if the training images were too few.
        level: Share of images whose number the prediction intervals are made to hold.
    """

    images: int
    scores: dict[str, Score]
    baseline: float
    gain: Score
    mean: float
    half_width: float
    level: float

    @property
    def values(self) -> dict[str, float]:
        """The scores without their intervals."""
        return {name: score.value for name, score in self.scores.items()}


def regression_report(
    truth: Values, predicted: Values, mean: float, half_width: float, level: float, seed: int = 0
) -> RegressionReport:
    """Score (N,) predicted numbers against (N,) true ones; see `RegressionReport`."""
    errors, bootstrap, count = predicted - truth, Bootstrap(seed=seed), len(truth)
    absolute, usual = Mean(np.abs(errors)), Mean(np.abs(truth - mean))
    scores = {
        "mae": bootstrap.interval(absolute, count),
        "rmse": bootstrap.interval(RootMeanSquare(errors), count),
        "r2": bootstrap.interval(R2(truth, predicted), count),
        "coverage": wilson(int((np.abs(errors) <= half_width).sum()), count),
    }
    gain = bootstrap.difference(usual, absolute, count)
    return RegressionReport(count, scores, float(np.abs(truth - mean).mean()), gain, mean, half_width, level)


def conformal_half_width(residuals: Values, level: float) -> float:
    """Return the half width of intervals that hold the number of a further image with probability `level`.

    It is the ceil(level (n + 1))-th smallest of n absolute errors on images that a fit has not seen (Vovk et al. 2005;
    Barber et al. 2021, "Predictive inference with the jackknife+", for errors of cross-validation); infinite if there
    are too few errors.

    Example:
        >>> conformal_half_width(np.arange(1.0, 20.0), 0.9), conformal_half_width(np.arange(5.0), 0.9)
        (18.0, inf)
    """
    rank = math.ceil(round(level * (len(residuals) + 1), 9))
    return float(np.sort(np.abs(residuals))[rank - 1]) if rank <= len(residuals) else math.inf
