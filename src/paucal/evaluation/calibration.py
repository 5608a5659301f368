"""Temperature scaling, which calibrates a classifier's probabilities with a single parameter (Guo et al. 2017)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paucal.evaluation.predictions import Predictions
from paucal.metrics.measures import Measure, expected_calibration_error, value_of

MIN_IMAGES = 20  # smallest number of validation images for which a temperature is fitted
PRIOR_DEVIATION = 0.5  # standard deviation of the normal prior on the logarithm of the temperature
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0


@dataclass(frozen=True)
class Calibration:
    """The effect of temperature scaling on a classifier's calibration on test images."""

    temperature: float  # divisor of the logits; 1 if nothing was fitted
    images: int  # number of validation images that the temperature was fitted to
    error: tuple[float, float]  # expected calibration error on the test images, before and after scaling
    loss: tuple[float, float]  # mean negative log-likelihood of the test images in nats, before and after scaling


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the most probable temperature, given (N, K) logits and (N,) labels of images not used for training.

    Unlike Guo et al. 2017 (section 4.2, temperature scaling), we use a weak normal prior on the log temperature, with
    mean 0 and standard deviation 0.5. Without the prior, the temperature would approach 0 if there are few images and
    all of them are classified correctly. With a few hundred images, the prior has hardly any effect. The temperature is
    1 if there are fewer than 20 images or if a logit is not finite.
    """
    if len(labels) < MIN_IMAGES or not bool(torch.isfinite(logits).all()):
        return 1.0
    logits, log_temperature = logits.double(), torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_temperature], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        negative_log_likelihood = F.cross_entropy(logits / log_temperature.exp(), labels, reduction="sum")
        total = negative_log_likelihood + log_temperature.square() / (2 * PRIOR_DEVIATION**2)
        total.backward()
        return total

    with torch.enable_grad():
        optimizer.step(closure)
    temperature = float(log_temperature.detach().exp())
    return min(max(temperature, MIN_TEMPERATURE), MAX_TEMPERATURE) if math.isfinite(temperature) else 1.0


def calibration(predictions: Predictions, temperature: float, images: int) -> Calibration:
    """Measure the calibration of test predictions before and after scaling, with a temperature fitted to `images`."""
    errors, losses = [], []
    for scaled in (predictions, predictions.at_temperature(temperature)):
        errors.append(value_of(calibration_error(scaled), len(scaled)))
        losses.append(float(F.cross_entropy(scaled.logits, scaled.labels)))
    return Calibration(temperature, images, (errors[0], errors[1]), (losses[0], losses[1]))


def calibration_error(predictions: Predictions) -> Measure:
    """Return the expected calibration error of predictions as a `Measure`, which can be bootstrapped."""
    confidence = predictions.probabilities.max(1).values.numpy()
    return expected_calibration_error(confidence, (predictions.predicted == predictions.labels).numpy())


DEFAULT_THRESHOLD = 0.5  # threshold if there are no positive images
MIN_POSITIVES = 5  # smallest number of positive images for which a class gets its own threshold


def choose_thresholds(probabilities: Tensor, labels: Tensor) -> tuple[float, ...]:
    """Return for each class the threshold with the highest F1 on images that were not used for training.

    Classes with fewer than five positive images share one threshold, which has the highest F1 on the labels of all
    classes together. A threshold is the midpoint of two adjacent probabilities. If several thresholds have the same F1,
    the highest is returned. `labels` are (N, K): 1, 0 or -1 (the image is ignored for the class).
    """
    values, truth = probabilities.double().numpy(), labels.numpy()
    common_threshold = _threshold_of_best_f1(values[truth >= 0], truth[truth >= 0] == 1)
    thresholds = []
    for column, column_truth in zip(values.T, truth.T, strict=True):
        is_known, is_positive = column_truth >= 0, column_truth == 1
        if is_positive.sum() >= MIN_POSITIVES:
            thresholds.append(_threshold_of_best_f1(column[is_known], is_positive[is_known]))
        else:
            thresholds.append(common_threshold)
    return tuple(thresholds)


def reach_thresholds(probabilities: Tensor, thresholds: Sequence[float]) -> Tensor:
    """Return (N, K) booleans: whether each probability is at least the threshold of its class."""
    return probabilities >= torch.tensor(thresholds, dtype=probabilities.dtype)


def _threshold_of_best_f1(probabilities: NDArray[np.float64], is_positive: NDArray[np.bool_]) -> float:
    if not is_positive.any():
        return DEFAULT_THRESHOLD
    order = np.argsort(-probabilities, kind="stable")
    ranked, n_correct = probabilities[order], is_positive[order].cumsum()
    ends = np.flatnonzero(np.r_[ranked[1:] != ranked[:-1], True])  # a threshold cannot separate equal probabilities
    f1 = 2 * n_correct[ends] / (ends + 1 + is_positive.sum())
    last = int(ends[f1.argmax()])
    next_probability = ranked[last + 1] if last + 1 < len(ranked) else 0.0
    return float(np.clip((ranked[last] + next_probability) / 2, 1e-6, 1 - 1e-6))
