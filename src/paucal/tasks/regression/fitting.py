"""Ridge regression on frozen features, with cross-validated errors; for grades, an ordinal model of its outputs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold

from paucal.metrics.regression import conformal_half_width
from paucal.models.regression import INTERVAL_LEVEL, CumulativeLogitModel

PENALTIES = (100.0, 1000.0, 10_000.0, 100_000.0)  # L2 penalties on standardised features and targets
MAX_FOLDS = 10
# Weight of the penalty on the squared logarithms of the slope and of the gaps between the thresholds ("cuts") that
# separate grades. If a grade has no images, the penalty keeps the two cuts around this grade apart.
GRADES_PENALTY = 1e-3
Array = NDArray[np.float64]


@dataclass(frozen=True)
class FittedRidge:
    """A linear function of raw (not standardised) features, with its cross-validated errors."""

    weight: Array  # (D,) weights of the features
    bias: float  # constant term, in the unit of the target
    strength: float  # L2 penalty on standardised features and targets
    residuals: Array  # (N,) predictions, each from a fit to the other folds, minus targets of the training images

    def predict(self, features: Array) -> Array:
        """Return the (N,) predicted values for (N, D) features."""
        return features @ self.weight + self.bias


def fit_ridge(features: Array, targets: Array, seed: int = 0) -> FittedRidge:
    """Fit (N,) targets to (N, D) features, with the penalty that has the lowest squared error on held-out folds.

    The held-out errors of this penalty are also used for the prediction intervals. The choice among only four penalties
    hardly biases these errors. The errors are slightly too large, since each fit uses only nine tenths of the images.
    """
    folds = list(KFold(min(MAX_FOLDS, len(targets)), shuffle=True, random_state=seed).split(features))
    residuals = {}
    for strength in PENALTIES:
        errors = np.empty(len(targets))
        for fit_rows, held_out in folds:
            weight, bias = _fit_weights(features[fit_rows], targets[fit_rows], strength)
            errors[held_out] = features[held_out] @ weight + bias - targets[held_out]
        residuals[strength] = errors
    strength = min(PENALTIES, key=lambda penalty: float((residuals[penalty] ** 2).mean()))
    return FittedRidge(*_fit_weights(features, targets, strength), strength, residuals[strength])


def _fit_weights(features: Array, targets: Array, strength: float) -> tuple[Array, float]:
    """Fit (N,) targets to (N, D) raw features; return (D,) weights and a bias.

    Features that hardly vary are not scaled up to unit deviation. If they were, a feature that is zero in almost all
    training images would spoil the prediction for a new image in which it is not zero.
    """
    mean, deviation = features.mean(0), features.std(0)
    deviation = np.maximum(deviation, np.median(deviation))
    deviation = np.where(deviation > 0, deviation, 1.0)
    centre, scale = float(targets.mean()), float(targets.std()) or 1.0
    ridge = Ridge(strength).fit((features - mean) / deviation, (targets - centre) / scale)
    weight = ridge.coef_ / deviation * scale
    return weight, float(ridge.intercept_) * scale + centre - float(weight @ mean)


def fit_grades(outputs: Array, truth: Array, lowest: int, highest: int) -> tuple[CumulativeLogitModel, float]:
    """Fit an ordinal model of grades by maximum likelihood; return the model and the margin of its 90 % intervals.

    `outputs` are the (N,) outputs of the regression, each from a fit that did not include the image, and `truth` the
    (N,) true grades, whole numbers from `lowest` to `highest`.
    """
    rows, index = np.arange(len(truth)), (truth - lowest).astype(np.int64)

    # `values` holds the logarithm of the slope, the first cut, and the logarithms of the gaps between cuts.
    def unpack(values: Array) -> CumulativeLogitModel:
        cuts = values[1] + np.concatenate([[0.0], np.cumsum(np.exp(values[2:]))])
        return CumulativeLogitModel(lowest, tuple(cuts.tolist()), float(np.exp(values[0])))

    def loss(values: Array) -> float:
        likelihoods = unpack(values).probabilities(outputs)[rows, index]
        penalty = GRADES_PENALTY * (values[0] ** 2 + (values[2:] ** 2).sum())
        return float(-np.log(np.maximum(likelihoods, 1e-12)).mean() + penalty)

    initial = np.concatenate([[0.0, lowest + 0.5], np.zeros(highest - lowest - 1)])
    grades = unpack(minimize(loss, initial, bounds=[(-5, 5), (None, None), *[(-7, 5)] * (len(initial) - 2)]).x)
    return grades, conformal_half_width(grades.required_margins(outputs, truth), INTERVAL_LEVEL)
