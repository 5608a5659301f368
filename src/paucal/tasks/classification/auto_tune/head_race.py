"""Comparison of heads on frozen features: repeated cross-validation decides whether to read the last stages too.

Each head of the table, and the mean of their logits, is compared with logistic regression on the last features by its
cross-entropy at its best temperature, since few images cannot separate accuracies. Logistic regression, the simplest
head, is kept unless the best other head leads by more than a standard error.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from paucal.data.randomness import derive_seed
from paucal.evaluation.protocols.classifier import LinearClassifier, draw_folds, even_folds
from paucal.runs import RunFolder
from paucal.runs.weights import read_weights, save_weights
from paucal.tasks.classification.auto_tune.heads import HEADS, FitHead, fit_mixture
from paucal.tasks.classification.auto_tune.probe import (
    DEFAULT_STRENGTH,
    Head,
    fit_regression,
    standardise,
    stratified_sample,
)

LAST, MEAN = "logistic regression on the last features", "mean of the heads on the last stages"
FILE = "held_out.safetensors"
FOLDS, REPEATS, FEW = 5, 3, 300  # more than FEW images are folded once
# Most images to compare heads on. With 2,160 to 2,761 images, a sample of 1,000 chose heads as accurate as all images
# did, in a third of the time.
MAX_RACED = 1000
Folds = list[tuple[Tensor, Tensor]]  # rows to fit on and rows to score on of each fold
TEMPERATURES = torch.logspace(-2, 1, 61, dtype=torch.float64)  # multiples of the deviation of the logits


@dataclass(frozen=True)
class RaceResult:
    """Outcome of a race of heads.

    Attributes:
        head: Winner, with weights for the last features and the stages; None for `LAST`.
        losses: Cross-validated cross-entropy by head, in nats.
        lead: Lead of the best other head over `LAST`, in nats.
        held_out: Logits of the winner for images that it was not fitted to; None with too few images.
        mixture: Weight of the logits of each head in the winner; empty for `LAST`.
    """

    name: str = LAST
    head: Head | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    lead: float = 0.0
    error: float = 0.0
    held_out: "HeldOut | None" = None
    mixture: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class HeldOut:
    """Logits of training images, each from a fit to the other folds of a repeated cross-validation.

    Attributes:
        rows: (M,) positions among the images of the cross-validation; once stored, among all training images.
        logits: (R, M, K) float64 calibrated logits of R repeats.
        temperature: Divisor that calibrates the head's logits.
    """

    rows: Tensor
    logits: Tensor
    labels: Tensor
    folds: int = FOLDS
    temperature: float = 1.0

    @property
    def hits(self) -> Tensor:
        """(R, M) booleans: whether the predicted class is the label."""
        return self.logits.argmax(2) == self.labels


def store_held_out(run: RunFolder, held_out: HeldOut, fitted: Tensor) -> None:
    """Store the predictions of a cross-validation among images at (N,) positions `fitted` of all training images."""
    values = {"rows": fitted[held_out.rows], "logits": held_out.logits, "labels": held_out.labels}
    save_weights(run.path / FILE, {**values, "folds": torch.tensor(held_out.folds)})


def read_held_out(run: RunFolder) -> HeldOut:
    """Read the predictions of a cross-validation, whose rows are positions among all training images."""
    arrays = read_weights(run.path / FILE)
    return HeldOut(arrays["rows"], arrays["logits"], arrays["labels"], int(arrays["folds"]))


def race_heads(  # noqa: PLR0913 (a caller may choose any of them)
    last: Tensor,
    staged: Tensor,
    labels: Tensor,
    n_classes: int,
    strength: float,
    seed: int = 0,
    heads: Mapping[str, FitHead] = HEADS,
    max_images: int = MAX_RACED,
    groups: Tensor | None = None,
) -> RaceResult:
    """Compare heads by cross-validation within the training images, and fit the winner to all of them.

    `last` has (N, D) last features and `staged` (N, D + S) last features and pooled stages, for labels in [0, K). The
    L2 penalty is that of the regression on the last features. At most `max_images` are used to compare. Folds keep
    (N,) groups whole.
    """
    counts = labels.bincount(minlength=n_classes)
    if int((counts > 1).sum()) < 2:
        return RaceResult()
    if len(labels) < FOLDS:  # too few to compare heads
        heads = {}
    rows = stratified_sample(labels, max_images, seed)
    splits = repeated_folds(labels[rows], seed, None if groups is None else groups[rows])
    is_evaluated = is_fitted(labels[rows], splits)
    truth, folds = labels[rows][is_evaluated], len(splits[0])
    if not len(truth):
        return RaceResult()

    def fit_last(features: Tensor, labels: Tensor, n_classes: int) -> LinearClassifier:
        return fit_regression(features, labels, n_classes, strength)

    def logits_of(features: Tensor, fit: FitHead) -> Tensor:
        return held_out_logits(features, labels[rows], n_classes, fit, splits)[:, is_evaluated]

    coordinates = standardise(staged[rows]).coordinates
    logits = {name: logits_of(coordinates, fit) for name, fit in heads.items()}
    mixtures = _candidate_mixtures(logits, truth)
    losses = {name: _mean_losses(_mix_logits(logits, mixture), truth) for name, mixture in mixtures.items()}
    usual = logits_of(standardise(last[rows]).coordinates, fit_last)
    temperature = best_temperature(usual, truth)
    usual_held_out = HeldOut(rows[is_evaluated], usual / temperature, truth, folds, temperature)
    losses[LAST] = _mean_losses(usual_held_out.logits, truth)
    if not mixtures:
        return RaceResult(losses={LAST: float(losses[LAST].mean())}, held_out=usual_held_out)
    best = min(mixtures, key=lambda name: float(losses[name].mean()))
    leads = losses[LAST] - losses[best]
    lead, error = float(leads.mean()), float(leads.std()) / math.sqrt(len(leads))
    means = {name: float(values.mean()) for name, values in losses.items()}
    if not lead > error:
        return RaceResult(losses=means, lead=lead, error=error, held_out=usual_held_out)
    held_out = HeldOut(rows[is_evaluated], _mix_logits(logits, mixtures[best]), truth, folds)
    weight, bias = fit_mixture(staged, labels, n_classes, mixtures[best], heads)
    head = Head(weight, bias, DEFAULT_STRENGTH, float(held_out.hits.double().mean()))
    return RaceResult(best, head, means, lead, error, held_out, mixtures[best])


def repeated_folds(labels: Tensor, seed: int, groups: Tensor | None = None) -> list[Folds]:
    """Return the folds of each repeat of a cross-validation; few images are folded several times.

    Args:
        labels: (N,) classes.
        seed: Seed of the folds.
        groups: (N,) numbers of groups that folds keep whole; None for independent images.
    """
    repeats, folds = REPEATS if len(labels) <= FEW else 1, even_folds(labels, FOLDS, groups)
    return [draw_folds(labels, derive_seed(seed, repeat), folds, groups) for repeat in range(repeats)]


def is_fitted(labels: Tensor, splits: Sequence[Folds]) -> Tensor:
    """Return (N,) booleans: whether the class of an image is always among the images fitted without it.

    A class that has a single image, or a single group, is not.
    """
    fitted = torch.ones(len(labels), dtype=torch.bool)
    for rows, held_out in itertools.chain.from_iterable(splits):
        fitted[held_out] &= torch.isin(labels[held_out], labels[rows])
    return fitted


def held_out_logits(features: Tensor, labels: Tensor, n_classes: int, fit: FitHead, splits: Sequence[Folds]) -> Tensor:
    """Return (R, N, K) float64 logits of R repeats; those of an image come from a fit to the other folds."""
    logits = torch.empty(len(splits), len(labels), n_classes, dtype=torch.float64)
    for repeat, folds in enumerate(splits):
        for rows, held_out in folds:
            logits[repeat, held_out] = fit(features[rows], labels[rows], n_classes).scores(features[held_out])
    return logits


def _candidate_mixtures(logits: Mapping[str, Tensor], labels: Tensor) -> dict[str, dict[str, float]]:
    """Return the weights of the heads' logits in each candidate: every calibrated head alone, and the mean of all."""
    mixtures = {name: {name: 1 / best_temperature(values, labels)} for name, values in logits.items()}
    if len(logits) > 1:
        mean = {name: mixture[name] / len(logits) for name, mixture in mixtures.items()}
        divisor = best_temperature(_mix_logits(logits, mean), labels)
        mixtures[MEAN] = {name: share / divisor for name, share in mean.items()}
    return mixtures


def _mix_logits(logits: Mapping[str, Tensor], mixture: Mapping[str, float]) -> Tensor:
    return torch.stack([share * logits[name] for name, share in mixture.items()]).sum(0)


def best_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the divisor of (R, N, K) logits that gives the labels the highest likelihood."""
    deviation = float(logits[logits.isfinite()].std().clamp(min=1e-12))
    return min(
        (deviation * float(step) for step in TEMPERATURES),
        key=lambda divisor: float(_mean_losses(logits / divisor, labels).mean()),
    )


def _mean_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the (N,) cross-entropies of (R, N, K) logits, as means over the repeats."""
    losses = F.cross_entropy(logits.flatten(0, 1), labels.repeat(len(logits)), reduction="none")
    return losses.view(len(logits), -1).mean(0)
