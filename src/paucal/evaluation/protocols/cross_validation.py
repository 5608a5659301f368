"""What the protocols choose where no images are kept for validation: by cross-validation within the training images.

Five folds, each class spread evenly over them (Kohavi 1995, "A study of cross-validation and bootstrap for accuracy
estimation and model selection"); the mean score over the folds chooses, and the last fit is on all training images.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from paucal.data.randomness import derive_seed
from paucal.evaluation.protocols.classifier import LinearClassifier, require_finite, validation_score
from paucal.evaluation.protocols.lambda_search import search_strength
from paucal.evaluation.protocols.linear_probe import (
    Batches,
    Probed,
    ProbeSettings,
    cached_batches,
    for_images,
    train_probes,
)
from paucal.evaluation.protocols.logistic import DEFAULT, Selected, Solver, fit_logistic
from paucal.metrics.measures import best_of
from paucal.metrics.named import MetricName
from paucal.types import UserError

FOLDS = 5


def draw_folds(labels: Tensor, seed: int = 0, folds: int = FOLDS) -> list[tuple[Tensor, Tensor]]:
    """Return the rows to fit on and the rows to score on of each fold, both ascending.

    Args:
        labels: (N,) int64, whose classes are spread evenly; or (N, K) where an image has several, which are drawn as
            they come.
        seed: of the draw.
        folds: how many; fewer where there are fewer images.

    Raises:
        UserError: fewer than two classes have two images, so that a fold would leave nothing to tell apart.
    """
    if labels.ndim == 1 and int((labels.unique(return_counts=True)[1] > 1).sum()) < 2:
        raise UserError(
            "without validation images the training images are cross-validated, which takes two classes of two images "
            "or more: give more images, or --val-fraction 0.1."
        )
    order = np.random.default_rng(derive_seed(seed, len(labels))).permutation(len(labels))
    if labels.ndim == 1:  # class by class, so that the images of each are dealt out in turn
        order = order[np.argsort(labels.cpu().numpy()[order], kind="stable")]
    turn = torch.empty(len(labels), dtype=torch.int64)
    turn[torch.from_numpy(order)] = torch.arange(len(labels)) % min(folds, len(labels))
    return [((turn != fold).nonzero()[:, 0], (turn == fold).nonzero()[:, 0]) for fold in range(int(turn.max()) + 1)]


def fit_by_folds(
    train: tuple[Tensor, Tensor], n_classes: int, metric: MetricName = "accuracy", solver: Solver = DEFAULT
) -> Selected:
    """Choose lambda of the logistic regression by cross-validation, then fit to all training images.

    Args:
        train: (N, D) features and labels as `fit_logistic` takes them.
        n_classes: K.
        metric: whose mean over the folds is highest at the best lambda.
        solver: backend and when to stop.

    Raises:
        UserError: features that are no finite numbers, or too few images.
    """
    features, labels = train
    folds = draw_folds(labels)

    def score(strength: float) -> float:
        def score_of(rows: Tensor, others: Tensor) -> float:
            found = fit_logistic(_rows(features, rows), _rows(labels, rows), n_classes, strength, solver)
            return validation_score(found, _rows(features, others), _rows(labels, others), metric)

        return float(np.mean([score_of(*fold) for fold in folds]))

    found = search_strength(score)
    classifier = fit_logistic(features, labels, n_classes, found.strength, solver)
    return Selected(classifier, found, len(folds) * len(found.scores) + 1)


def fit_probe_by_folds(
    train: tuple[Tensor, Tensor],
    batches: Batches,
    n_classes: int,
    settings: ProbeSettings,
    metric: MetricName = "accuracy",
    progress: Callable[[int, int], None] | None = None,
) -> Probed:
    """Choose the rate of the linear probe by cross-validation, then train with it alone.

    Args:
        train: (N, D) features of the plain images and (N,) labels, which choose the rate.
        batches: what the last training sees, which may be augmented views.
        n_classes: K.
        settings: the schedule.
        metric: whose mean over the folds is highest at the best rate, the lower of equal ones.
        progress: called after every epoch with (done, all).

    Raises:
        UserError: too few images.
    """
    features, labels = train
    require_finite(features, "training images")
    folds = draw_folds(labels, settings.seed)
    trainings, scores = len(folds) + 1, []

    def advance(number: int) -> Callable[[int, int], None]:
        return lambda done, total: progress and progress(number * total + done, trainings * total)

    for number, (rows, others) in enumerate(folds):
        schedule = for_images(settings, len(rows))
        part = cached_batches(features, labels, schedule, rows)
        pairs = zip(*train_probes(part, features.shape[1], n_classes, schedule, advance(number)), strict=True)
        held_out = _rows(features, others), _rows(labels, others)
        scores.append([validation_score(LinearClassifier(*pair), *held_out, metric) for pair in pairs])
    means = np.mean(scores, axis=0).tolist()
    rate = settings.rates[best_of(means)]
    alone = replace(settings, rates=(rate,))
    weight, bias = train_probes(batches, features.shape[1], n_classes, alone, advance(len(folds)))
    return Probed(LinearClassifier(weight[0], bias[0]), rate, dict(zip(settings.rates, means, strict=True)))


def _rows(values: Tensor, rows: Tensor) -> Tensor:
    return values[rows.to(values.device)]
