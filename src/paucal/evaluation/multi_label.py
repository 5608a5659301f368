"""How good a classifier is on images that have several labels: average precision, which needs no threshold."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics.functional.classification import binary_average_precision

from paucal.evaluation.intervals import Score, percentile, two_sided
from paucal.evaluation.multi_label_results import MultiLabelReport, MultiLabelRow
from paucal.evaluation.predictions import Predictions
from paucal.evaluation.protocols.metrics import AveragePrecision, Mean, mean_over_classes
from paucal.evaluation.protocols.resampling import Resampling
from paucal.evaluation.thresholds import marked
from paucal.types import UserError
from paucal.wording import counted

MOST_DRAWS, FEWEST_DRAWS = 1000, 200
MOST_WORK = 400_000_000  # images times classes times draws: some ten seconds


def multi_label_report(
    predictions: Predictions, classes: Sequence[str], thresholds: Sequence[float], *, seed: int = 0, level: float = 0.95
) -> MultiLabelReport:
    """Score a classifier's answers, each score with a bootstrap interval over the choice of test images.

    The average precision of a class is the area under its precision-recall curve (torchmetrics); "map" is the mean over
    the classes that have a positive test image, each counting alike. Of scores that resampling shifts, such as these,
    the interval is the union of the percentiles and their mirror image. Fewer sets than usual are resampled of very
    many images and classes, 200 at least.

    Args:
        predictions: (N, K) logits, and labels of 1, 0 and -1 (image ignored for that class).
        classes: K names.
        thresholds: (K,) probabilities from which on a class is an answer, for F1 and the counts by class.
        seed: of the resampling.
        level: probability that an interval covers the truth.

    Raises:
        UserError: no image is known to be of any class, or logits that are not finite.
    """
    _check(predictions, classes)
    labels, n_images = predictions.labels, len(predictions)
    draws = int(min(MOST_DRAWS, max(FEWEST_DRAWS, MOST_WORK // max(1, labels.numel()))))
    measure = AveragePrecision(predictions.logits, labels, interpolated=False)
    losses, f1 = Mean(_losses(predictions)), _MacroF1(marked(predictions.probabilities, thresholds), labels)
    sampled = Resampling(seed, draws, level).scores([measure.per_class, losses, f1], n_images)
    precisions = average_precisions(predictions)
    whole = np.ones((1, n_images))
    scores = {
        "map": two_sided(float(np.nanmean(precisions)), mean_over_classes(sampled[0]), level),
        "macro_f1": two_sided(float(f1(whole)[0]), sampled[2], level),
        "loss": percentile(float(losses(whole)[0]), sampled[1], level),
    }
    found = [_of_draws(value, column, level) for value, column in zip(precisions, sampled[0].T, strict=True)]
    rows = _rows(predictions, classes, thresholds, found)
    return MultiLabelReport(n_images, level, scores, rows)


def quick_multi_label_scores(predictions: Predictions) -> dict[str, float]:
    """Return "loss" (nats) and "map" without intervals, cheap enough for every epoch.

    Logits that are not finite give a loss that is not finite, for the trainer to see, and a score of 0.
    """
    loss = float(np.mean(_losses(predictions)))
    if not np.isfinite(loss):
        return {"loss": loss, "map": 0.0}
    precisions = average_precisions(predictions)
    return {"loss": loss, "map": 0.0 if np.isnan(precisions).all() else float(np.nanmean(precisions))}


def average_precisions(predictions: Predictions) -> NDArray[np.float64]:
    """Return the (K,) average precision of each class; not a number for one without a positive image."""
    found = np.full(predictions.labels.shape[1], np.nan)
    shares = predictions.logits.double().sigmoid()
    for place, labels in enumerate(predictions.labels.T):
        known = labels >= 0
        if (labels == 1).any():
            found[place] = float(binary_average_precision(shares[known, place], labels[known]))
    return found


class _MacroF1:
    """The mean F1 over the classes that occur among labels or answers."""

    def __init__(self, answers: Tensor, labels: Tensor) -> None:
        known, positive = (labels >= 0).numpy(), (labels == 1).numpy()
        given = answers.numpy() & known
        self._right = (given & positive).astype(np.float64)
        self._both = given.astype(np.float64) + positive

    def __call__(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (D,) scores for (D, N) weights."""
        both = weights @ self._both
        values = 2 * (weights @ self._right) / np.maximum(both, 1e-12)
        return mean_over_classes(np.where(both > 0, values, np.nan))


def _losses(predictions: Predictions) -> NDArray[np.float64]:
    """Return the (N,) mean binary cross-entropy of each image, over the classes that are known of it."""
    known = (predictions.labels >= 0).double()
    targets = predictions.labels.clamp(min=0).double()
    each = F.binary_cross_entropy_with_logits(predictions.logits.double(), targets, reduction="none")
    return ((each * known).sum(1) / known.sum(1).clamp(min=1)).numpy()


def _of_draws(value: float, draws: NDArray[np.float64], level: float) -> Score | None:
    """Return the score of a class; None for one without a positive image."""
    if np.isnan(value):
        return None
    kept = draws[~np.isnan(draws)]
    return two_sided(float(value), kept, level) if len(kept) else Score(float(value))


def _rows(
    predictions: Predictions, classes: Sequence[str], thresholds: Sequence[float], found: Sequence[Score | None]
) -> list[MultiLabelRow]:
    labels, answers = predictions.labels, marked(predictions.probabilities, thresholds)
    rows = []
    for place, name in enumerate(classes):
        known, positive = labels[:, place] >= 0, labels[:, place] == 1
        given = answers[:, place] & known
        right, images, predicted = int((given & positive).sum()), int(positive.sum()), int(given.sum())
        rows.append(
            MultiLabelRow(
                name,
                images,
                images / int(known.sum()) if known.any() else 0.0,
                found[place],
                float(thresholds[place]),
                predicted,
                right / predicted if predicted else None,
                right / images if images else None,
                2 * right / (images + predicted) if images + predicted else None,
            )
        )
    return rows


def _check(predictions: Predictions, classes: Sequence[str]) -> None:
    logits, labels = predictions.logits, predictions.labels
    if tuple(labels.shape) != (len(predictions), len(classes)) or logits.shape != labels.shape:
        raise UserError(
            f"the model answers with {counted(logits.shape[1], 'class', 'classes')} and the data has {len(classes)}: "
            "evaluate on the classes that the model was trained on."
        )
    if not (labels == 1).any():
        raise UserError("none of the images to evaluate is of any class: give images that have labels.")
    broken = int((~torch.isfinite(logits).all(1)).sum())
    if broken:
        raise UserError(
            f"the model's answers for {broken} of {len(labels)} images are not finite numbers: its weights "
            "are damaged or training diverged; train again with a lower --lr or in full precision."
        )
