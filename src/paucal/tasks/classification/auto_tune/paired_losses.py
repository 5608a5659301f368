"""Comparison of two models of nearly equal accuracy by their losses on each validation image."""

import math
from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F

from paucal.evaluation.calibration import fit_temperature
from paucal.evaluation.classification import multi_label_losses
from paucal.evaluation.predictions import Predictions

LOSSES_KEY = "losses"  # key of the losses on the validation images, in the details of a step


def calibrated_losses(predictions: Predictions) -> list[float]:
    """Return the cross-entropy of each validation image in nats, at the temperature that suits all these images best.

    Finished models are calibrated in the same manner. For images with several labels, the loss is the mean of the
    binary cross-entropies, without calibration.
    """
    logits, labels = predictions.logits.double(), predictions.labels
    if labels.ndim == 1:
        losses = F.cross_entropy(logits / fit_temperature(logits, labels), labels, reduction="none")
    else:
        losses = multi_label_losses(predictions)
    return [round(loss, 4) for loss in losses.tolist()]


def is_clearly_lower(losses: Sequence[float], other_losses: Sequence[float]) -> bool:
    """Return whether the mean of `losses` is lower than the mean of `other_losses` by more than one standard error.

    Both sequences have the losses of the same images. The standard error is computed from the differences per image.
    """
    leads = np.subtract(other_losses, losses)
    return bool(leads.mean() > leads.std() / math.sqrt(leads.size))


def accuracies_differ(score: float, other_score: float, n_images: int, errors: float = 1.0) -> bool:
    """Return whether two accuracies on `n_images` images differ by more than `errors` standard errors."""
    variance = sum(accuracy * (1 - accuracy) for accuracy in (score, other_score)) / max(n_images, 1)
    return abs(score - other_score) > errors * math.sqrt(variance)


def is_better(score: float, losses: Sequence[float], other_score: float, other_losses: Sequence[float]) -> bool:
    """Return whether a model is better than another: by accuracy, or by mean loss if the accuracies hardly differ.

    Any lower mean loss counts, without a margin. A margin of one standard error would have kept a first model that
    classified 82.0 % of 1,200 test images correctly, and rejected a tuned model with 85.8 %
    (docs/lab/2026-11-26-ways-to-tune.md).
    """
    if accuracies_differ(score, other_score, len(losses)):
        return score > other_score
    return float(np.mean(losses)) < float(np.mean(other_losses))
