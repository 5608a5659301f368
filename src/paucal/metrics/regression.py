"""Scores of a regression as measures (see `paucal.metrics.measures`), and conformal prediction intervals.

Weights are (D, N): how often each of N test images counts in each of D resampled sets.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paucal.metrics.intervals import Bootstrap, Score, proportion_score
from paucal.metrics.measures import Mean, Measure, Weights

Values = NDArray[np.float64]


def root_mean_square(errors: Values) -> Measure:
    """Return the root mean square error."""
    squares = Mean(errors**2)
    return lambda weights: np.sqrt(squares(weights))


def r2(truth: Values, predicted: Values) -> Measure:
    """Return the coefficient of determination, the explained fraction of variance; NaN if true values are all equal."""
    squares = (predicted - truth) ** 2

    def measure(weights: Weights) -> Values:
        mean = (weights * truth).sum(1, keepdims=True) / weights.sum(1, keepdims=True)
        total = (weights * (truth - mean) ** 2).sum(1)
        residual = (weights * squares).sum(1)
        is_defined = _is_varied(weights, truth)
        return np.where(is_defined, 1 - residual / np.where(is_defined, total, 1), np.nan)

    return measure


def quadratic_kappa(truth: Values, predicted: Values) -> Measure:
    """Return Cohen's kappa with quadratic weights (1968): agreement beyond chance, errors weighted by their squares.

    The result is NaN for a resampled set in which all grades, true and predicted, are equal.
    """

    def measure(weights: Weights) -> Values:
        normalised = weights / weights.sum(1, keepdims=True)
        means = [normalised @ values for values in (truth, predicted)]
        variances = sum(
            (normalised * (values - mean[:, None]) ** 2).sum(1)
            for values, mean in zip((truth, predicted), means, strict=True)
        )
        expected = variances + (means[0] - means[1]) ** 2
        observed = normalised @ (truth - predicted) ** 2
        is_defined = _is_varied(weights, truth, predicted)
        return np.where(is_defined, 1 - observed / np.where(is_defined, expected, 1), np.nan)

    return measure


def _is_varied(weights: Weights, *values: Values) -> NDArray[np.bool_]:
    """Return (D,) booleans: whether the values in each draw differ.

    The variance is not used, since rounding errors can make the variance of equal values positive.
    """
    drawn = weights > 0
    highest = np.max([np.where(drawn, numbers, -np.inf).max(1) for numbers in values], axis=0)
    lowest = np.min([np.where(drawn, numbers, np.inf).min(1) for numbers in values], axis=0)
    return highest > lowest


@dataclass(frozen=True)
class RegressionReport:
    """The scores of a regression on one set of images."""

    images: int
    # "mae" and "rmse" in the unit of the target, "r2", and "coverage", the fraction of images whose true value is in
    # its prediction interval. For grades also "exact", the fraction of correct grades, and "kappa", with quadratic
    # weights.
    scores: dict[str, Score]
    baseline: float  # mean absolute error of always predicting the mean of the training images
    gain: Score  # baseline minus "mae", paired by image
    mean: float  # mean of the true values of the training images
    half_width: float  # half the mean width of the prediction intervals; infinite with too few training images
    level: float  # nominal coverage of the prediction intervals
    groups: int | None = None  # number of groups of similar images, resampled as a whole; None without groups

    @property
    def values(self) -> dict[str, float]:
        """The values of the scores, without confidence intervals."""
        return {name: score.value for name, score in self.scores.items()}


def regression_report(
    truth: Values,
    predicted: Values,
    ends: tuple[Values, Values],
    mean: float,
    level: float,
    seed: int,
    graded: bool,
    groups: NDArray[np.int64] | None = None,
) -> RegressionReport:
    """Score (N,) predicted values and the (N,) ends of their prediction intervals; see `RegressionReport`.

    If `graded` is True, the target values are grades, and the scores "exact" and "kappa" are added.
    """
    errors, bootstrap, count = predicted - truth, Bootstrap(seed=seed, groups=groups), len(truth)
    mae, baseline_mae = Mean(np.abs(errors)), Mean(np.abs(truth - mean))
    scores = {
        "mae": bootstrap.interval(mae, count),
        "rmse": bootstrap.interval(root_mean_square(errors), count),
        "r2": bootstrap.interval(r2(truth, predicted), count),
        "coverage": proportion_score((ends[0] <= truth) & (truth <= ends[1]), groups=groups),
    }
    if graded:
        kappa = bootstrap.interval(quadratic_kappa(truth, predicted), count)
        scores = {"exact": proportion_score(errors == 0, groups=groups), "kappa": kappa, **scores}
    half_width = float((ends[1] - ends[0]).mean() / 2)
    gain = bootstrap.difference(baseline_mae, mae, count)
    baseline, n_groups = float(np.abs(truth - mean).mean()), None if groups is None else len(np.unique(groups))
    return RegressionReport(count, scores, baseline, gain, mean, half_width, level, n_groups)


def conformal_half_width(residuals: Values, level: float) -> float:
    """Return the half-width of intervals that contain the true value of a new image with probability `level`.

    The half-width is the ceil(level (n + 1))-th smallest of n absolute errors on images that were not trained on (Vovk
    et al. 2005; Barber et al. 2021, "Predictive inference with the jackknife+", for errors of a cross-validation). With
    too few errors, the half-width is infinite.
    """
    rank = math.ceil(round(level * (len(residuals) + 1), 9))
    return float(np.sort(np.abs(residuals))[rank - 1]) if rank <= len(residuals) else math.inf
