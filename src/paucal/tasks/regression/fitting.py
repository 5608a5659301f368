"""Ridge regression on frozen features, its penalty and its errors on unseen images by cross-validation."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold

STRENGTHS = (100.0, 1000.0, 10_000.0, 100_000.0)  # L2 penalties on standardised features and targets
FOLDS = 10
Array = NDArray[np.float64]


@dataclass(frozen=True)
class FittedRidge:
    """A linear function of features that are not standardised.

    Attributes:
        weight: (D,) weights.
        bias: Bias, in the unit of the target.
        strength: L2 penalty.
        residuals: (N,) errors, each of a fit to the other folds, in the unit of the target.
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

    The same errors make the intervals: among four penalties, choosing makes them hardly smaller, and fits to nine
    tenths of the images err a little more than the final one.
    """
    folds = list(KFold(min(FOLDS, len(targets)), shuffle=True, random_state=seed).split(features))
    residuals = {}
    for strength in STRENGTHS:
        errors = np.empty(len(targets))
        for rows, others in folds:
            weight, bias = _fit(features[rows], targets[rows], strength)
            errors[others] = features[others] @ weight + bias - targets[others]
        residuals[strength] = errors
    strength = min(STRENGTHS, key=lambda one: float((residuals[one] ** 2).mean()))
    return FittedRidge(*_fit(features, targets, strength), strength, residuals[strength])


def _fit(features: Array, targets: Array, strength: float) -> tuple[Array, float]:
    """Return (D,) weights and a bias for raw features.

    Features that hardly vary are not blown up to unit deviation: one that is zero in almost all images would otherwise
    throw the prediction for the next image where it is not.
    """
    mean, deviation = features.mean(0), features.std(0)
    deviation = np.maximum(deviation, np.median(deviation))
    deviation = np.where(deviation > 0, deviation, 1.0)
    centre, spread = float(targets.mean()), float(targets.std()) or 1.0
    ridge = Ridge(strength).fit((features - mean) / deviation, (targets - centre) / spread)
    weight = ridge.coef_ / deviation * spread
    return weight, float(ridge.intercept_) * spread + centre - float(weight @ mean)
