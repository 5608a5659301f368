"""A linear head that also learns from images without labels, with the predictions of a first head as soft targets.

The first head is fitted to the labelled images; its sharpened probabilities are the soft labels of the unlabelled
images. Gaussian classes with one covariance are fitted to all images, and give new probabilities for the next round.
Many unlabelled images give a good estimate of the covariance; few labelled ones do not. Cross-validation within the
labelled images decides whether they help: the Brier score of the best head must lead by more than half a standard
error. Of the heads that lead, the most accurate one replaces the first; with very few labels, which cannot show which
head is more accurate, the Gaussian one does.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from paucal.evaluation.principal_axes import principal_axes
from paucal.tasks.classification.auto_tune.head_race import (
    HeldOut,
    RaceResult,
    best_temperature,
    is_fitted,
    repeated_folds,
)
from paucal.tasks.classification.auto_tune.heads import fit_mixture, fit_shares
from paucal.tasks.classification.auto_tune.probe import (
    ABSENT,
    MAX_COMPARED,
    Head,
    fit_regression,
    standardise,
    stratified_sample,
)

ALONE, GAUSSIAN, BOTH = "labels alone", "Gaussian classes of all images", "mean of the two"
MAX_WEIGHT = 3.0  # total weight of the unlabelled images, relative to the labelled ones
POWER, ROUNDS = 3.0, 3  # exponent that sharpens probabilities, and number of rounds
AXES = 512  # principal axes of the features, with most of their variance
# Minimum lead in standard errors. In 112 draws of clothing and CIFAR-10 a limit of 1 refused ten gains of up to 5.7
# points and one small loss, a limit of 0 allowed a loss of 1.7 points, and one of 0.5 no loss above 0.2 (docs/lab).
MIN_LEAD = 0.5
# Up to this mean number of labelled images per class, the Gaussian head is chosen whenever it leads. With 5 and 10
# images this gained 0.2 to 1.0 points over a choice by accuracy; with 20 and 40 the worst draws lost 1.5 to 3.5 points.
FEW_EACH = 10

# From (N, D) raw features and (N,) labels: (K, D) weights and (K,) biases of calibrated logits.
FitBase = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Pool:
    """Features of unlabelled images, and their coordinates on principal axes.

    Attributes:
        features: (U, D) float32 raw features.
        mean: (D,) means.
        deviation: (D,) standard deviations; 1 for a constant feature.
        axes: (D, R) principal axes of the standardised features.
        rows: (U, R) coordinates of the features.
    """

    features: Tensor
    mean: Tensor
    deviation: Tensor
    axes: Tensor
    rows: Tensor

    def coordinates(self, features: Tensor) -> Tensor:
        """Return the (N, R) coordinates of (N, D) raw features."""
        return ((features - self.mean) / self.deviation) @ self.axes

    def carry_back(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return (K, D) weights and (K,) biases for raw features from those for coordinates."""
        weight = (weight @ self.axes.T) / self.deviation
        return weight, bias - weight @ self.mean


def pool_of(features: Tensor) -> Pool:
    """Return (U, D) features of unlabelled images with their principal axes."""
    mean, deviation = features.mean(0), features.std(0)
    deviation = torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation))
    rows = (features - mean) / deviation
    axes = principal_axes(rows, AXES)
    return Pool(features, mean, deviation, axes, rows @ axes)


@dataclass(frozen=True)
class UnlabelledResult:
    """Outcome of a comparison with the head of the labelled images alone.

    Attributes:
        weight: (K, D) float32 weights of its calibrated logits, from all labelled images; None for `ALONE`.
        bias: (K,) float32 biases; None for `ALONE`.
        scores: Cross-validated Brier score by name; lower is better.
        lead: Lead of the best other head over `ALONE`.
        held_out: Logits of the winner for images that it was not fitted to; None for `ALONE`.
    """

    name: str = ALONE
    weight: Tensor | None = None
    bias: Tensor | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    lead: float = 0.0
    error: float = 0.0
    held_out: HeldOut | None = None


def base_of(race: RaceResult, last: Head, n_classes: int) -> FitBase:
    """Return the function that fits the winner of a race of heads on (N, D + S) features to some of the images.

    `last` is the logistic regression on the D last features.
    """
    width, temperature = last.weight.shape[1], 1.0 if race.held_out is None else race.held_out.temperature

    def fit(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if race.mixture:
            return fit_mixture(features, labels, n_classes, race.mixture)
        standard = standardise(features[:, :width])
        fitted = fit_regression(standard.coordinates, labels, n_classes, last.strength)
        weight, bias = standard.carry_back(fitted.weight, fitted.bias.clamp(min=ABSENT))
        padded = torch.zeros(n_classes, features.shape[1])
        padded[:, :width] = weight / temperature
        return padded, bias.float() / temperature

    return fit


def race_unlabelled(
    features: Tensor,
    labels: Tensor,
    n_classes: int,
    unlabelled: Tensor,
    base: FitBase,
    seed: int,
    groups: Tensor | None = None,
) -> UnlabelledResult:
    """Compare heads that learn from unlabelled images with the one that does not, by cross-validation.

    Features are raw, and labels are in [0, K); at least two classes have two images or more. `base` fits the head of
    the labelled images alone. Folds keep (N,) groups whole.
    """
    pool, rows = pool_of(unlabelled), stratified_sample(labels, MAX_COMPARED, seed)
    labelled_features, truth = features[rows], labels[rows]
    splits = repeated_folds(truth, seed, None if groups is None else groups[rows])
    is_evaluated, folds = is_fitted(truth, splits), len(splits[0])
    if not is_evaluated.any():
        return UnlabelledResult()
    shape, names = (len(splits), len(truth), n_classes), (ALONE, GAUSSIAN, BOTH)
    logits = {name: torch.empty(shape, dtype=torch.float64) for name in names}
    for repeat, split in enumerate(splits):
        for fitted, held_out_rows in split:
            heads = fit_heads(labelled_features[fitted], truth[fitted], n_classes, pool, base)
            for name, (weight, bias) in heads.items():
                logits[name][repeat, held_out_rows] = (labelled_features[held_out_rows] @ weight.T + bias).double()
    logits = {name: values[:, is_evaluated] for name, values in logits.items()}
    rows, truth = rows[is_evaluated], truth[is_evaluated]
    temperatures = {name: best_temperature(values, truth) for name, values in logits.items()}
    held_out = {name: HeldOut(rows, logits[name] / temperatures[name], truth, folds) for name in logits}
    scores = {name: brier_scores(part.logits, part.labels) for name, part in held_out.items()}
    means = {name: float(values.mean()) for name, values in scores.items()}
    leads = scores[ALONE] - scores[min((GAUSSIAN, BOTH), key=lambda name: means[name])]
    lead, error = float(leads.mean()), float(leads.std()) / math.sqrt(len(leads))
    if not lead > MIN_LEAD * error:
        return UnlabelledResult(scores=means, lead=lead, error=error)
    better = [name for name in (GAUSSIAN, BOTH) if means[name] < means[ALONE]]
    best = max(better, key=lambda name: float(held_out[name].hits.double().mean()))
    if GAUSSIAN in better and len(labels) <= FEW_EACH * n_classes:
        best = GAUSSIAN
    weight, bias = (part / temperatures[best] for part in fit_heads(features, labels, n_classes, pool, base)[best])
    return UnlabelledResult(best, weight.float(), bias.float(), means, lead, error, held_out[best])


def brier_scores(logits: Tensor, labels: Tensor) -> Tensor:
    """Return (N,) Brier scores of (R, N, K) calibrated logits, averaged over R repeats.

    A score is the squared distance of the probabilities from the one-hot label. With few images, a single confident
    mistake would decide a comparison by cross-entropy; here it costs at most 2.
    """
    return (logits.softmax(2) - F.one_hot(labels, logits.shape[2])).square().sum(2).mean(0)


def fit_heads(
    features: Tensor, labels: Tensor, n_classes: int, pool: Pool, base: FitBase
) -> dict[str, tuple[Tensor, Tensor]]:
    """Fit the head of the labelled images with `base`, the Gaussian head of all images, and the mean of the two.

    Returns (K, D) weights and (K,) biases for raw features by name.
    """
    labelled_head = base(features, labels)
    shares = (pool.features @ labelled_head[0].T + labelled_head[1]).softmax(1)
    confidence = float(shares.amax(1).mean())
    one_hot, has_images = F.one_hot(labels, n_classes).to(shares), labels.bincount(minlength=n_classes) > 0
    weight_of_each = min(1.0, MAX_WEIGHT * len(labels) / len(shares))
    rows = torch.cat([pool.coordinates(features), pool.rows])
    weight, bias = shares.new_zeros(n_classes, rows.shape[1]), shares.new_zeros(n_classes)
    for _ in range(ROUNDS):
        sharpened = shares**POWER / (shares**POWER).sum(1, keepdim=True)
        fitted = fit_shares(rows, torch.cat([one_hot, weight_of_each * sharpened]))
        divisor = divisor_for(fitted.scores(pool.rows), confidence)
        weight, bias = fitted.weight / divisor, torch.where(has_images, fitted.bias / divisor, ABSENT)
        shares = (pool.rows @ weight.T + bias).softmax(1)
    gaussian = pool.carry_back(weight, bias)
    mean = (labelled_head[0] + gaussian[0]) / 2, (labelled_head[1] + gaussian[1]) / 2
    return {ALONE: labelled_head, GAUSSIAN: gaussian, BOTH: mean}


def divisor_for(scores: Tensor, confidence: float) -> float:
    """Return the divisor at which the largest probabilities of (N, K) scores are on average `confidence`."""
    low, high = -8.0, 8.0  # natural logarithms of multiples of the scores' standard deviation
    start = math.log(float(scores[scores.isfinite()].std().clamp(min=1e-12)))
    for _ in range(30):
        middle = (low + high) / 2
        is_too_confident = float((scores / math.exp(start + middle)).softmax(1).amax(1).mean()) > confidence
        low, high = (middle, high) if is_too_confident else (low, middle)
    return math.exp(start + (low + high) / 2)
