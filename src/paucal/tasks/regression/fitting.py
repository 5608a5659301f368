"""Ridge regression on frozen features with its errors on unseen images, and grades read from such a regression."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold

from paucal.metrics.regression import conformal_half_width
from paucal.models.regression import INTERVAL_LEVEL, Grades

STRENGTHS = (100.0, 1000.0, 10_000.0, 100_000.0)  # L2 penalties on standardised features and targets
FOLDS = 10
PULL = 1e-3  # penalty on the logarithms of the slope and of the gaps; it keeps grades without an image apart
Array = NDArray[np.float64]


@dataclass(frozen=True)
class FittedRidge:
    """A linear function of features that are not standardised.

    `residuals` are (N,) errors, each of a fit to the other folds, in the unit of the target, as the bias is.
    """

    weight: Array
    bias: float
    strength: float
    residuals: Array

    def predict(self, features: Array) -> Array:
        """Return the (N,) numbers of (N, D) features."""
        return features @ self.weight + self.bias


def fit_ridge(features: Array, targets: Array, seed: int = 0) -> FittedRidge:
    """Fit (N,) targets to (N, D) features; the penalty with the least squared error on held-out folds is taken.

    The errors of the chosen penalty are also used for the prediction intervals. Choosing among only four penalties
    hardly biases them, and a fit to nine tenths of the images is slightly less accurate than the final fit.
    """
    folds = list(KFold(min(FOLDS, len(targets)), shuffle=True, random_state=seed).split(features))
    residuals = {}
    for strength in STRENGTHS:
        errors = np.empty(len(targets))
        for rows, held_out in folds:
            weight, bias = _fit_weights(features[rows], targets[rows], strength)
            errors[held_out] = features[held_out] @ weight + bias - targets[held_out]
        residuals[strength] = errors
    strength = min(STRENGTHS, key=lambda penalty: float((residuals[penalty] ** 2).mean()))
    return FittedRidge(*_fit_weights(features, targets, strength), strength, residuals[strength])


def _fit_weights(features: Array, targets: Array, strength: float) -> tuple[Array, float]:
    """Return (D,) weights and a bias for raw features.

    Features that hardly vary are not scaled up to unit deviation. Otherwise a feature that is zero in almost all images
    would spoil the prediction for the next image in which it is not zero.
    """
    mean, deviation = features.mean(0), features.std(0)
    deviation = np.maximum(deviation, np.median(deviation))
    deviation = np.where(deviation > 0, deviation, 1.0)
    centre, scale = float(targets.mean()), float(targets.std()) or 1.0
    ridge = Ridge(strength).fit((features - mean) / deviation, (targets - centre) / scale)
    weight = ridge.coef_ / deviation * scale
    return weight, float(ridge.intercept_) * scale + centre - float(weight @ mean)


def fit_grades(outputs: Array, truth: Array, lowest: int, highest: int) -> tuple[Grades, float]:
    """Return the grades by maximum likelihood, and the margin of their 90 % intervals; see `Grades.read`.

    `outputs` are of images that the regression was not fitted to.
    """
    rows, index = np.arange(len(truth)), (truth - lowest).astype(np.int64)

    def unpack(values: Array) -> Grades:
        cuts = values[1] + np.concatenate([[0.0], np.cumsum(np.exp(values[2:]))])
        return Grades(lowest, tuple(cuts.tolist()), float(np.exp(values[0])))

    def loss(values: Array) -> float:
        shares = unpack(values).probabilities(outputs)[rows, index]
        pull = PULL * (values[0] ** 2 + (values[2:] ** 2).sum())
        return float(-np.log(np.maximum(shares, 1e-12)).mean() + pull)

    start = np.concatenate([[0.0, lowest + 0.5], np.zeros(highest - lowest - 1)])
    grades = unpack(minimize(loss, start, bounds=[(-5, 5), (None, None), *[(-7, 5)] * (len(start) - 2)]).x)
    return grades, conformal_half_width(grades.misses(outputs, truth), INTERVAL_LEVEL)
