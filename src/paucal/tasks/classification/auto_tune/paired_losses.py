"""The loss on each validation image, to compare models of nearly equal accuracy."""

import math
from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F

from paucal.evaluation.calibration import fit_temperature
from paucal.evaluation.classification import multi_label_losses
from paucal.evaluation.predictions import Predictions

LOSSES = "losses"  # key of a step's details: loss of each validation image


def calibrated_losses(predictions: Predictions) -> list[float]:
    """Return the cross-entropy of each validation image in nats, at the best common temperature.

    This matches finished runs, whose model is calibrated too. Images with several labels have the uncalibrated mean of
    their binary cross-entropies.
    """
    logits, labels = predictions.logits.double(), predictions.labels
    if labels.ndim == 1:
        losses = F.cross_entropy(logits / fit_temperature(logits, labels), labels, reduction="none")
    else:
        losses = multi_label_losses(predictions)
    return [round(loss, 4) for loss in losses.tolist()]


def clearly_lower(losses: Sequence[float], others: Sequence[float]) -> bool:
    """Return whether the first losses are lower than the second, of the same images, by more than a standard error."""
    leads = np.subtract(others, losses)
    return bool(leads.mean() > leads.std() / math.sqrt(leads.size))


def differs(score: float, other: float, images: int, errors: float = 1.0) -> bool:
    """Return whether two accuracies differ by more than `errors` standard errors of the difference."""
    variance = sum(accuracy * (1 - accuracy) for accuracy in (score, other)) / max(images, 1)
    return abs(score - other) > errors * math.sqrt(variance)


def is_better(score: float, losses: Sequence[float], other: float, other_losses: Sequence[float]) -> bool:
    """Return whether a model is better: by its accuracy, or by its mean loss if the accuracies are too close.

    There is no margin: one standard error would have kept a first model with 82.0 % on 1,200 other images and refused a
    tuned one with 85.8 % (docs/lab, ways to tune).
    """
    if differs(score, other, len(losses)):
        return score > other
    return float(np.mean(losses)) < float(np.mean(other_losses))
