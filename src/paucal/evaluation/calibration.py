"""Temperature scaling: one number that calibrates a classifier's probabilities (Guo et al. 2017)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paucal.evaluation.predictions import Predictions
from paucal.metrics.measures import CalibrationError, value_of

MIN_IMAGES = 20  # with fewer images no temperature is fitted
PRIOR = 0.5  # standard deviation of the normal prior on the logarithm of the temperature
LOWEST, HIGHEST = 0.05, 20.0


@dataclass(frozen=True)
class Calibration:
    """How a temperature changes the probabilities of a classifier on its test images.

    Attributes:
        temperature: Divisor of the logits; 1 if nothing was fitted.
        images: Number of validation images that the temperature was fitted to.
        error: Expected calibration error on the test images, before and after.
        loss: Mean negative log-likelihood of the test images in nats, before and after.
    """

    temperature: float
    images: int
    error: tuple[float, float]
    loss: tuple[float, float]


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature that makes the labels most likely, fitted to images that were not trained on.

    Differs from Guo et al. 2017 (section 4.2, temperature scaling) in a weak normal prior on the log temperature, with
    mean 0 and deviation 0.5: without it, a few correctly classified images would make the classifier certain of
    everything. With a few hundred images the prior has no effect.

    Args:
        logits: (N, K).
        labels: (N,) in [0, K).

    Returns:
        A number from 0.05 to 20; 1 for fewer than 20 images, or for logits that are not finite.
    """
    if len(labels) < MIN_IMAGES or not bool(torch.isfinite(logits).all()):
        return 1.0
    logits, log_temperature = logits.double(), torch.zeros((), dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([log_temperature], max_iter=100, line_search_fn="strong_wolfe")

    def cost() -> Tensor:
        search.zero_grad()
        likelihood = F.cross_entropy(logits / log_temperature.exp(), labels, reduction="sum")
        total = likelihood + log_temperature.square() / (2 * PRIOR**2)
        total.backward()
        return total

    with torch.enable_grad():
        search.step(cost)
    temperature = float(log_temperature.detach().exp())
    return min(max(temperature, LOWEST), HIGHEST) if math.isfinite(temperature) else 1.0


def calibration(plain: Predictions, temperature: float, images: int) -> Calibration:
    """Return how a temperature, fitted to that many other images, changes the calibration on test images."""
    errors, losses = [], []
    for predictions in (plain, plain.at_temperature(temperature)):
        errors.append(value_of(calibration_error(predictions), len(predictions)))
        losses.append(float(F.cross_entropy(predictions.logits, predictions.labels)))
    return Calibration(temperature, images, (errors[0], errors[1]), (losses[0], losses[1]))


def calibration_error(predictions: Predictions) -> CalibrationError:
    """Return the measure of the expected calibration error of predictions."""
    confidence = predictions.probabilities.max(1).values.numpy()
    return CalibrationError(confidence, (predictions.predicted == predictions.labels).numpy())


DEFAULT_THRESHOLD = 0.5
MIN_POSITIVES = 5  # a class with fewer images uses the threshold chosen for all classes together


def choose_thresholds(probabilities: Tensor, labels: Tensor) -> tuple[float, ...]:
    """Return the threshold with the highest F1 for each class, on images that were not trained on.

    A class with fewer than five such images gets the threshold that is best for all classes together. A threshold lies
    midway between two adjacent probabilities; of several with the same F1, the highest is taken.

    Args:
        probabilities: (N, K) in [0, 1].
        labels: (N, K) of 1, 0 and -1 (image ignored for that class).

    Returns:
        K numbers in (0, 1); 0.5 without positive images.
    """
    shares, truth = probabilities.double().numpy(), labels.numpy()
    common = _threshold_of_best_f1(shares[truth >= 0], truth[truth >= 0] == 1)
    thresholds = []
    for column, column_truth in zip(shares.T, truth.T, strict=True):
        is_known, positive = column_truth >= 0, column_truth == 1
        is_enough = positive.sum() >= MIN_POSITIVES
        thresholds.append(_threshold_of_best_f1(column[is_known], positive[is_known]) if is_enough else common)
    return tuple(thresholds)


def reach_thresholds(probabilities: Tensor, thresholds: Sequence[float]) -> Tensor:
    """Return (N, K) booleans: whether each class reaches its threshold."""
    return probabilities >= torch.tensor(thresholds, dtype=probabilities.dtype)


def _threshold_of_best_f1(shares: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    if not positive.any():
        return DEFAULT_THRESHOLD
    order = np.argsort(-shares, kind="stable")
    ranked, right = shares[order], positive[order].cumsum()
    ends = np.flatnonzero(np.r_[ranked[1:] != ranked[:-1], True])  # thresholds lie only where the probability changes
    f1 = 2 * right[ends] / (ends + 1 + positive.sum())
    last = int(ends[f1.argmax()])
    next_share = ranked[last + 1] if last + 1 < len(ranked) else 0.0
    return float(np.clip((ranked[last] + next_share) / 2, 1e-6, 1 - 1e-6))
