"""How good a classifier is on images that have several labels: average precision, which needs no threshold."""

from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray

from paucal.evaluation.predictions import Predictions, require_classes, require_finite
from paucal.evaluation.results import MultiLabelReport, MultiLabelRow
from paucal.evaluation.thresholds import marked
from paucal.metrics.bootstrap import Bootstrap
from paucal.metrics.intervals import Score, percentile, two_sided
from paucal.metrics.measures import MacroF1OfSeveral, Mean, mean_over_classes, value_of
from paucal.metrics.ranking import AveragePrecision
from paucal.types import UserError

MOST_DRAWS, FEWEST_DRAWS = 1000, 200
MOST_WORK = 400_000_000  # images times classes times draws: some ten seconds


def multi_label_report(
    predictions: Predictions, classes: Sequence[str], thresholds: Sequence[float], *, seed: int = 0, level: float = 0.95
) -> MultiLabelReport:
    """Score a classifier's answers, each score with a bootstrap interval over the choice of test images.

    The average precision of a class is the area under its precision-recall curve (as in torchmetrics); "map" is the
    mean over the classes that have a positive test image, each counting alike. Of scores that resampling shifts, such
    as these, the interval is the union of the percentiles and their mirror image. Fewer sets than usual are resampled
    of very many images and classes, 200 at least.

    Args:
        predictions: (N, K) logits, and labels of 1, 0 and -1 (image ignored for that class).
        classes: K names.
        thresholds: (K,) probabilities from which on a class is an answer, for F1 and the counts by class.
        seed: of the resampling.
        level: probability that an interval covers the truth.

    Raises:
        UserError: no image is known to be of any class, or logits that are not finite.
    """
    require_classes(predictions, classes)
    if not (predictions.labels == 1).any():
        raise UserError("none of the images to evaluate is of any class: give images that have labels.")
    require_finite(predictions)
    labels, n_images = predictions.labels, len(predictions)
    draws = int(min(MOST_DRAWS, max(FEWEST_DRAWS, MOST_WORK // max(1, labels.numel()))))
    measure = AveragePrecision(predictions.logits, labels, interpolated=False)
    f1 = MacroF1OfSeveral(labels, marked(predictions.probabilities, thresholds))
    losses, bootstrap = Mean(_losses(predictions)), Bootstrap(seed, draws, level)
    precisions, f1_draws, loss_draws = bootstrap.scores([measure.per_class, f1, losses], n_images)
    scores = {
        "map": two_sided(value_of(measure, n_images), mean_over_classes(precisions), level),
        "macro_f1": two_sided(value_of(f1, n_images), f1_draws, level),
        "loss": percentile(value_of(losses, n_images), loss_draws, level),
    }
    values = measure.per_class(np.ones((1, n_images)))[0].tolist()
    pairs = zip(values, precisions.T, strict=True)
    found = [None if np.isnan(value) else two_sided(value, column, level) for value, column in pairs]
    return MultiLabelReport(n_images, level, scores, _rows(predictions, classes, thresholds, found))


def quick_multi_label_scores(predictions: Predictions) -> dict[str, float]:
    """Return "loss" (nats) and "map" without intervals, cheap enough for every epoch.

    Logits that are not finite give a loss that is not finite, for the trainer to see, and a score of 0.
    """
    loss = float(np.mean(_losses(predictions)))
    measure = AveragePrecision(predictions.logits, predictions.labels, interpolated=False)
    return {"loss": loss, "map": value_of(measure, len(predictions)) if np.isfinite(loss) else 0.0}


def _losses(predictions: Predictions) -> NDArray[np.float64]:
    """Return the (N,) mean binary cross-entropy of each image, over the classes that are known of it."""
    known = (predictions.labels >= 0).double()
    targets = predictions.labels.clamp(min=0).double()
    each = F.binary_cross_entropy_with_logits(predictions.logits.double(), targets, reduction="none")
    return ((each * known).sum(1) / known.sum(1).clamp(min=1)).numpy()


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
