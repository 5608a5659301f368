"""A linear head that also learns from images without labels, with the predictions of a first head as soft targets.

The first head is fitted to the labelled images; its sharpened probabilities are the soft labels of the unlabelled
images. A Gaussian classifier with one covariance matrix for all classes is fitted to all images, and its sharpened
probabilities are the soft labels of the next round. Unlabelled images help because they are numerous
enough for a good estimate of the covariance.

Heads are compared by their cross-validated Brier scores on labelled images: the best head must lead the first head by
more than half a standard error. Of the heads with a better Brier score than the first head, the most accurate replaces
the first head. With at most `FEW_PER_CLASS` labelled images per class, accuracies are too noisy, and the Gaussian head
is chosen if its Brier score is better.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from paucal.evaluation.principal_axes import principal_axes
from paucal.tasks.classification.auto_tune.heads import (
    HeadComparison,
    HeldOutLogits,
    best_temperature,
    find_scorable_images,
    fit_mixture,
    fit_soft_gaussian,
    repeated_folds,
)
from paucal.tasks.classification.auto_tune.probe import (
    ABSENT_LOGIT,
    DEFAULT_STRENGTH,
    MAX_COMPARED,
    Head,
    fit_raw_logistic_regression,
    stratified_sample,
)

LABELS_ALONE, GAUSSIAN_HEAD, MEAN_OF_HEADS = "labels alone", "Gaussian classes of all images", "mean of the two"
MAX_WEIGHT = 3.0  # maximum total weight of the unlabelled images, relative to the labelled images
SHARPENING_POWER, N_ROUNDS = 3.0, 3  # exponent of the probabilities, and number of Gaussian fits
MAX_AXES = 512  # number of principal axes of the features that are used
# Minimum lead of the best head over the head `LABELS_ALONE` in Brier score, in standard errors of the lead. In 112
# random draws of images from the clothing data set and CIFAR-10, a minimum of 1 rejected ten gains in accuracy of up to
# 5.7 points and one small loss. A minimum of 0 accepted a loss of 1.7 points, and a minimum of 0.5 accepted no loss
# above 0.2 points (docs/lab/2026-11-26-unlabelled.md).
MIN_LEAD = 0.5
# Up to this mean number of labelled images per class, the Gaussian head is chosen whenever its Brier score is better
# than that of `LABELS_ALONE`. With 5 and 10 images per class, this rule gained 0.2 to 1.0 points over a choice by
# accuracy. With 20 and 40 images per class, the rule lost 1.5 to 3.5 points in the worst draws.
FEW_PER_CLASS = 10

# A function that fits a head to (N, D) raw features and (N,) labels, and returns (K, D) weights and (K,) biases of
# calibrated logits.
FitBase = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class UnlabelledFeatures:
    """Features of unlabelled images, and their coordinates on principal axes."""

    features: Tensor  # (U, D) float32 raw features
    mean: Tensor  # (D,) means of the features
    deviation: Tensor  # (D,) standard deviations of the features; 1 for a constant feature
    axes: Tensor  # (D, R) principal axes of the standardised features
    rows: Tensor  # (U, R) coordinates of the unlabelled images on these axes

    def coordinates(self, features: Tensor) -> Tensor:
        """Return the (N, R) coordinates of (N, D) raw features."""
        return ((features - self.mean) / self.deviation) @ self.axes

    def unstandardise(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return (K, D) weights and (K,) biases for raw features, converted from weights and biases for coordinates."""
        weight = (weight @ self.axes.T) / self.deviation
        return weight, bias - weight @ self.mean


def compute_principal_axes(features: Tensor) -> UnlabelledFeatures:
    """Compute the principal axes of (U, D) features of unlabelled images, and the coordinates on these axes."""
    mean, deviation = features.mean(0), features.std(0)
    deviation = torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation))
    rows = (features - mean) / deviation
    axes = principal_axes(rows, MAX_AXES)
    return UnlabelledFeatures(features, mean, deviation, axes, rows @ axes)


def make_base_fit(comparison: HeadComparison, last: Head, n_classes: int) -> FitBase:
    """Return a function that fits the best head of a comparison to (N, D + S) features; `last` is the default head."""
    width, temperature = last.weight.shape[1], 1.0 if comparison.held_out is None else comparison.held_out.temperature

    def fit(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if comparison.mixture:
            return fit_mixture(features, labels, n_classes, comparison.mixture)
        weight, bias = fit_raw_logistic_regression(features[:, :width], labels, n_classes, last.strength)
        padded_weight = torch.zeros(n_classes, features.shape[1])
        padded_weight[:, :width] = weight / temperature
        return padded_weight, bias.float() / temperature

    return fit


def compare_unlabelled_heads(
    features: Tensor,
    labels: Tensor,
    n_classes: int,
    unlabelled_features: Tensor,
    fit_base: FitBase,
    seed: int,
    groups: Tensor | None = None,
) -> HeadComparison:
    """Compare heads that learn from unlabelled images with `LABELS_ALONE`, which does not, by cross-validation.

    `features` (N, D) and `unlabelled_features` (U, D) are raw. At least two classes have two images or more. `fit_base`
    fits the head to labelled images alone. `groups` are (N,) groups whose images stay in one fold; None for independent
    images.
    """
    pool, rows = compute_principal_axes(unlabelled_features), stratified_sample(labels, MAX_COMPARED, seed)
    labelled_features, truth = features[rows], labels[rows]
    splits = repeated_folds(truth, seed, None if groups is None else groups[rows])
    is_evaluated, n_folds = find_scorable_images(truth, splits), len(splits[0])
    if not is_evaluated.any():
        return HeadComparison(LABELS_ALONE)
    shape, names = (len(splits), len(truth), n_classes), (LABELS_ALONE, GAUSSIAN_HEAD, MEAN_OF_HEADS)
    logits = {name: torch.empty(shape, dtype=torch.float64) for name in names}
    for repeat, split in enumerate(splits):
        for fit_rows, held_out_rows in split:
            heads = fit_heads(labelled_features[fit_rows], truth[fit_rows], n_classes, pool, fit_base)
            for name, (weight, bias) in heads.items():
                logits[name][repeat, held_out_rows] = (labelled_features[held_out_rows] @ weight.T + bias).double()
    logits = {name: values[:, is_evaluated] for name, values in logits.items()}
    rows, truth = rows[is_evaluated], truth[is_evaluated]
    temperatures = {name: best_temperature(values, truth) for name, values in logits.items()}
    held_out = {name: HeldOutLogits(rows, logits[name] / temperatures[name], truth, n_folds) for name in logits}
    scores = {name: brier_scores(head.logits, head.labels) for name, head in held_out.items()}
    means = {name: float(values.mean()) for name, values in scores.items()}
    leads = scores[LABELS_ALONE] - scores[min((GAUSSIAN_HEAD, MEAN_OF_HEADS), key=lambda name: means[name])]
    lead, error = float(leads.mean()), float(leads.std()) / math.sqrt(len(leads))
    if not lead > MIN_LEAD * error:
        return HeadComparison(LABELS_ALONE, losses=means, lead=lead, lead_error=error)
    better = [name for name in (GAUSSIAN_HEAD, MEAN_OF_HEADS) if means[name] < means[LABELS_ALONE]]
    best = max(better, key=lambda name: float(held_out[name].is_correct.double().mean()))
    if GAUSSIAN_HEAD in better and len(labels) <= FEW_PER_CLASS * n_classes:
        best = GAUSSIAN_HEAD
    weight, bias = (
        array / temperatures[best] for array in fit_heads(features, labels, n_classes, pool, fit_base)[best]
    )
    accuracy = float(held_out[best].is_correct.double().mean())
    head = Head(weight.float(), bias.float(), DEFAULT_STRENGTH, accuracy)
    return HeadComparison(best, head, means, lead, error, held_out[best])


def brier_scores(logits: Tensor, labels: Tensor) -> Tensor:
    """Return (N,) Brier scores of (R, N, K) calibrated logits, averaged over R repeats.

    The Brier score is the squared distance of the probabilities from the one-hot label, and is at most 2. The
    cross-entropy has no upper bound, so that a single confident mistake could decide a comparison on few images.
    """
    return (logits.softmax(2) - F.one_hot(labels, logits.shape[2])).square().sum(2).mean(0)


def fit_heads(
    features: Tensor, labels: Tensor, n_classes: int, pool: UnlabelledFeatures, fit_base: FitBase
) -> dict[str, tuple[Tensor, Tensor]]:
    """Fit a head to the labelled images with `fit_base`, and a Gaussian head to all images.

    Returns these heads and their mean: (K, D) weights and (K,) biases for raw features, by name of the head.
    """
    labelled_head = fit_base(features, labels)
    probabilities = (pool.features @ labelled_head[0].T + labelled_head[1]).softmax(1)
    confidence = float(probabilities.amax(1).mean())
    one_hot, has_images = F.one_hot(labels, n_classes).to(probabilities), labels.bincount(minlength=n_classes) > 0
    image_weight = min(1.0, MAX_WEIGHT * len(labels) / len(probabilities))
    rows = torch.cat([pool.coordinates(features), pool.rows])
    weight, bias = probabilities.new_zeros(n_classes, rows.shape[1]), probabilities.new_zeros(n_classes)
    for _ in range(N_ROUNDS):
        sharpened = probabilities**SHARPENING_POWER / (probabilities**SHARPENING_POWER).sum(1, keepdim=True)
        fitted = fit_soft_gaussian(rows, torch.cat([one_hot, image_weight * sharpened]))
        divisor = find_temperature(fitted.scores(pool.rows), confidence)
        weight, bias = fitted.weight / divisor, torch.where(has_images, fitted.bias / divisor, ABSENT_LOGIT)
        probabilities = (pool.rows @ weight.T + bias).softmax(1)
    gaussian = pool.unstandardise(weight, bias)
    mean = (labelled_head[0] + gaussian[0]) / 2, (labelled_head[1] + gaussian[1]) / 2
    return {LABELS_ALONE: labelled_head, GAUSSIAN_HEAD: gaussian, MEAN_OF_HEADS: mean}


def find_temperature(logits: Tensor, confidence: float) -> float:
    """Return the divisor of (N, K) logits at which the mean confidence (largest probability) is `confidence`."""
    low, high = -8.0, 8.0  # limits of log(divisor / standard deviation of the logits)
    log_deviation = math.log(float(logits[logits.isfinite()].std().clamp(min=1e-12)))
    for _ in range(30):
        middle = (low + high) / 2
        is_too_confident = float((logits / math.exp(log_deviation + middle)).softmax(1).amax(1).mean()) > confidence
        low, high = (middle, high) if is_too_confident else (low, middle)
    return math.exp(log_deviation + (low + high) / 2)
