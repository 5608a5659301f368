"""Race of heads on frozen features: repeated cross-validation decides whether the last stages are read too.

Each head of the table and the mean of all are compared with logistic regression on the last features. The measure is
the cross-entropy at each one's best temperature, since accuracies of few images cannot be told apart. Logistic
regression on the last features, the simplest head, stays unless the best one leads by more than a standard error.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from paucal.data.randomness import derive_seed
from paucal.evaluation.protocols.classifier import LinearClassifier, draw_folds
from paucal.tasks.classification.auto_tune.heads import HEADS, FitHead, fit_mixture
from paucal.tasks.classification.auto_tune.probe import (
    DEFAULT_STRENGTH,
    MOST_COMPARED,
    Head,
    fit_regression,
    stratified,
)
from paucal.tasks.classification.auto_tune.standardised import standardise

LAST, MEAN = "logistic regression on the last features", "mean of the heads on the last stages"
FOLDS, REPEATS, FEW = 5, 3, 300  # more than FEW images are folded once
TEMPERATURES = torch.logspace(-2, 1, 61, dtype=torch.float64)  # as multiples of the deviation of the logits


@dataclass(frozen=True)
class RaceResult:
    """Outcome of a race of heads.

    Attributes:
        name: Name of the winner.
        head: Winner, with weights for the last features and the stages; None for `LAST`.
        losses: Cross-validated cross-entropy by head, in nats.
        lead: Lead of the best other head over `LAST`, in nats.
        error: Standard error of the lead.
    """

    name: str = LAST
    head: Head | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    lead: float = 0.0
    error: float = 0.0


def race_heads(
    last: Tensor,
    staged: Tensor,
    labels: Tensor,
    n_classes: int,
    strength: float,
    seed: int = 0,
    heads: Mapping[str, FitHead] = HEADS,
) -> RaceResult:
    """Compare heads by cross-validation within the training images, and fit the winner to all of them.

    Args:
        last: (N, D) last features of the training images.
        staged: (N, D + S) last features and pooled stages.
        labels: (N,) classes in [0, K).
        n_classes: K.
        strength: L2 penalty of the regression on the last features.
        seed: Seed of the folds.
        heads: Table of heads.
    """
    counts = labels.bincount(minlength=n_classes)
    if int((counts > 1).sum()) < 2 or len(labels) < FOLDS:
        return RaceResult()
    rows = stratified(labels, MOST_COMPARED, seed)
    judged = counts[labels[rows]] > 1  # the single image of a class is in no other fold
    truth = labels[rows][judged]

    def fit_last(features: Tensor, labels: Tensor, n_classes: int) -> LinearClassifier:
        return fit_regression(features, labels, n_classes, strength)

    def logits_of(features: Tensor, fit: FitHead) -> Tensor:
        return held_out_logits(features, labels[rows], n_classes, fit, seed)[:, judged]

    coordinates = standardise(staged[rows]).coordinates
    logits = {name: logits_of(coordinates, fit) for name, fit in heads.items()}
    mixtures = _mixtures(logits, truth)
    losses = {name: _losses(_mixed(logits, mixture), truth) for name, mixture in mixtures.items()}
    usual = logits_of(standardise(last[rows]).coordinates, fit_last)
    losses[LAST] = _losses(usual / _temperature(usual, truth), truth)
    best = min(mixtures, key=lambda name: float(losses[name].mean()))
    leads = losses[LAST] - losses[best]
    lead, error = float(leads.mean()), float(leads.std()) / math.sqrt(len(leads))
    means = {name: float(values.mean()) for name, values in losses.items()}
    if not lead > error:
        return RaceResult(losses=means, lead=lead, error=error)
    right = (_mixed(logits, mixtures[best]).argmax(2) == truth).double().mean()
    weight, bias = fit_mixture(staged, labels, n_classes, mixtures[best], heads)
    return RaceResult(best, Head(weight, bias, DEFAULT_STRENGTH, float(right)), means, lead, error)


def held_out_logits(features: Tensor, labels: Tensor, n_classes: int, fit: FitHead, seed: int) -> Tensor:
    """Return (R, N, K) float64 logits of R repeats, each image's from a fit to the other folds."""
    repeats = REPEATS if len(labels) <= FEW else 1
    logits = torch.empty(repeats, len(labels), n_classes, dtype=torch.float64)
    for repeat in range(repeats):
        for rows, others in draw_folds(labels, derive_seed(seed, repeat), FOLDS):
            logits[repeat, others] = fit(features[rows], labels[rows], n_classes).scores(features[others])
    return logits


def _mixtures(logits: Mapping[str, Tensor], labels: Tensor) -> dict[str, dict[str, float]]:
    """Return the weights of the heads' logits for each calibrated head alone, and for the mean of all."""
    mixtures = {name: {name: 1 / _temperature(values, labels)} for name, values in logits.items()}
    if len(logits) > 1:
        mean = {name: mixture[name] / len(logits) for name, mixture in mixtures.items()}
        divisor = _temperature(_mixed(logits, mean), labels)
        mixtures[MEAN] = {name: share / divisor for name, share in mean.items()}
    return mixtures


def _mixed(logits: Mapping[str, Tensor], mixture: Mapping[str, float]) -> Tensor:
    return torch.stack([share * logits[name] for name, share in mixture.items()]).sum(0)


def _temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the divisor of (R, N, K) logits at which the labels are likeliest."""
    deviation = float(logits[logits.isfinite()].std().clamp(min=1e-12))
    return min(
        (deviation * float(step) for step in TEMPERATURES),
        key=lambda divisor: float(_losses(logits / divisor, labels).mean()),
    )


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the (N,) cross-entropies of (R, N, K) logits, as means over the repeats."""
    losses = F.cross_entropy(logits.flatten(0, 1), labels.repeat(len(logits)), reduction="none")
    return losses.view(len(logits), -1).mean(0)
