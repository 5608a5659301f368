"""The linear probe: logistic regression on standardised frozen features, converted to a classifier of raw features."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from paucal.data.splits.groups import stratify_iteratively
from paucal.evaluation.protocols.classifier import LinearClassifier, balanced_fold_count, draw_folds
from paucal.evaluation.protocols.logistic import SolverSettings, fit_independent, fit_logistic
from paucal.metrics.measures import measure_of, value_of

# L2 penalties on standardised features; a few suffice, since the optimum is flat.
PENALTIES = (1.0, 10.0, 100.0, 1000.0)
DEFAULT_STRENGTH = 100.0  # L2 penalty if there are too few images for cross-validation
N_FOLDS = 3
MAX_COMPARED = 3000  # maximum number of images for cross-validation
SOLVER = SolverSettings(max_iterations=200)
ABSENT_LOGIT = -30.0  # logit of a class without training images: below all other logits, but finite, as losses need
Folds = list[tuple[Tensor, Tensor]]  # for each fold, the rows to fit on and the held-out rows
# A function that fits a linear classifier, given (N, D) float64 standardised features (or coordinates with the same
# inner products), (N,) labels and the number of classes.
FitHead = Callable[[Tensor, Tensor, int], LinearClassifier]

MIN_DEVIATION = 1e-8  # features with a smaller standard deviation are not scaled
# Each feature's variance is averaged with the median variance of all features, which counts as this number of images.
PRIOR_IMAGES = 50
JITTER = 1e-10  # added to the diagonal, relative to the trace: keeps the Cholesky factor finite for dependent rows


@dataclass(frozen=True)
class StandardisedFeatures:
    """Standardised features, and at most N coordinates per image that have the same inner products.

    The fit of a linear classifier with an L2 penalty, or of a Gaussian classifier whose covariance is shrunk towards a
    multiple of the identity, depends only on inner products. With fewer images than features, the fit in coordinates is
    several times as fast; `unstandardise` converts the fitted weights to weights for raw features.
    """

    mean: Tensor  # (D,) means of the features
    # (D,) standard deviations, shrunk towards the median of all features; 1 if all features are constant.
    deviation: Tensor
    rows: Tensor  # (N, D) float64 standardised features
    coordinates: Tensor  # (N, min(N, D)) float64, with the inner products of `rows`

    def unstandardise(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return (K, D) weights and (K,) biases for raw features, converted from weights and biases for coordinates."""
        if self.coordinates.shape[1] < self.rows.shape[1]:
            weight = torch.linalg.solve_triangular(self.coordinates.T, weight.T, upper=True).T @ self.rows
        weight = weight / self.deviation
        return weight, bias - weight @ self.mean


def standardise(features: Tensor) -> StandardisedFeatures:
    """Standardise (N, D) features over the images, with variances shrunk towards their median."""
    values = features.double()
    mean, variance = values.mean(0), values.var(0)
    # If there are only a few images, some features are nearly constant across them. Division by such a tiny deviation
    # would give huge values for other images.
    variance = (len(values) * variance + PRIOR_IMAGES * variance.median()) / (len(values) + PRIOR_IMAGES)
    deviation = variance.sqrt()
    deviation = torch.where(deviation > MIN_DEVIATION, deviation, torch.ones_like(deviation))
    rows = (values - mean) / deviation
    if len(rows) >= rows.shape[1]:
        return StandardisedFeatures(mean, deviation, rows, rows)
    products = rows @ rows.T
    products.diagonal().add_(JITTER * products.diagonal().sum() + torch.finfo(products.dtype).tiny)
    return StandardisedFeatures(mean, deviation, rows, torch.linalg.cholesky(products))


@dataclass(frozen=True)
class Head:
    """A linear classifier for raw (not standardised) features."""

    weight: Tensor  # (K, D) float32 weights
    bias: Tensor  # (K,) float32 biases
    strength: float  # L2 penalty of the fit
    cross_validated: float | None  # accuracy, or mean average precision for several labels; None for too few images

    def copy_to(self, classifier: nn.Linear) -> None:
        """Copy the head into a network's classifier."""
        with torch.no_grad():
            classifier.weight.copy_(self.weight)
            classifier.bias.copy_(self.bias)

    def scores(self, features: Tensor) -> Tensor:
        """Return (N, K) logits of (N, D) features."""
        return features @ self.weight.T + self.bias


def fit_head(
    features: Tensor,
    labels: Tensor,
    n_classes: int,
    seed: int = 0,
    strengths: Sequence[float] = PENALTIES,
    groups: Tensor | None = None,
) -> Head:
    """Fit logistic regression to (N, D) raw features, with a cross-validated penalty; return a head for raw features.

    `labels` are (N,) classes in [0, K); or, for several labels, (N, K) values of 1, 0 and -1 (unknown), for which each
    class gets its own binary regression. `strengths` are ascending L2 penalties; of penalties with equal scores, the
    strongest is chosen. `groups` are (N,) groups whose images stay in one fold; None for independent images.
    """
    standard, strength, score = standardise(features), DEFAULT_STRENGTH, None
    # With one label per image, at least two classes need two images or more.
    can_fold = labels.ndim == 2 or int((labels.unique(return_counts=True)[1] > 1).sum()) >= 2
    if can_fold and len(labels) >= N_FOLDS:
        subset = stratified_sample(labels, MAX_COMPARED, seed)  # to save time with a large set
        coordinates, truth = standard.coordinates[subset], labels[subset]
        folds = _stratified_folds(truth, seed, None if groups is None else groups[subset])
        scores = {}
        for penalty in strengths:
            fit = partial(fit_logistic_regression, strength=penalty)
            scores[penalty] = _score(held_out_logits(coordinates, truth, n_classes, fit, [folds])[0], truth)
        strength = max(strengths, key=lambda penalty: (scores[penalty], penalty))
        score = scores[strength]
    fitted = fit_logistic_regression(standard.coordinates, labels, n_classes, strength)
    weight, bias = standard.unstandardise(fitted.weight, fitted.bias.clamp(min=ABSENT_LOGIT))
    return Head(weight.float(), bias.float(), strength, score)


def held_out_logits(features: Tensor, labels: Tensor, n_classes: int, fit: FitHead, splits: Sequence[Folds]) -> Tensor:
    """Return (R, N, K) float64 logits of R repeats; each image is scored by a head fitted to the other folds."""
    logits = torch.empty(len(splits), len(labels), n_classes, dtype=torch.float64)
    for repeat, folds in enumerate(splits):
        for rows, held_out in folds:
            logits[repeat, held_out] = fit(features[rows], labels[rows], n_classes).scores(features[held_out]).double()
    return logits


def fit_logistic_regression(features: Tensor, labels: Tensor, n_classes: int, strength: float) -> LinearClassifier:
    """Fit logistic regression with an L2 penalty; one regression per class for (N, K) labels."""
    if labels.ndim == 1:
        return fit_logistic(features, labels, n_classes, strength, SOLVER)
    # One fit of all classes is K times as fast as one fit per class. Unlike `fit_logistic`, `fit_independent` supports
    # a class without images, which gets a very low bias.
    return LinearClassifier(*fit_independent(features, labels, strength, SOLVER))


def fit_raw_logistic_regression(
    features: Tensor, labels: Tensor, n_classes: int, strength: float
) -> tuple[Tensor, Tensor]:
    """Fit logistic regression to (N, D) features; return (K, D) weights and (K,) biases for raw features."""
    standard = standardise(features)
    fitted = fit_logistic_regression(standard.coordinates, labels, n_classes, strength)
    return standard.unstandardise(fitted.weight, fitted.bias.clamp(min=ABSENT_LOGIT))


def _stratified_folds(labels: Tensor, seed: int, groups: Tensor | None) -> Folds:
    if labels.ndim == 1:
        return draw_folds(labels, seed, balanced_fold_count(labels, N_FOLDS, groups), groups)
    if groups is not None:
        return draw_folds(labels, seed, N_FOLDS, groups)
    fold_of_row = torch.from_numpy(stratify_iteratively(labels.numpy().astype(np.int8), [1 / N_FOLDS] * N_FOLDS, seed))
    return [((fold_of_row != fold).nonzero()[:, 0], (fold_of_row == fold).nonzero()[:, 0]) for fold in range(N_FOLDS)]


def stratified_sample(labels: Tensor, count: int, seed: int = 0) -> Tensor:
    """Return ascending indices of about `count` images, stratified, with at least two per class for single labels."""
    fraction = min(1.0, count / max(len(labels), 1))
    if labels.ndim == 2:
        parts = stratify_iteratively(labels.numpy().astype(np.int8), [fraction, 1 - fraction], seed)
        return torch.from_numpy(np.flatnonzero(parts == 0))
    generator, sampled = np.random.default_rng(seed), []
    for label in labels.unique().tolist():
        rows = np.flatnonzero(labels.numpy() == label)
        sampled.append(generator.permutation(rows)[: max(2, round(fraction * len(rows)))])
    return torch.from_numpy(np.sort(np.concatenate(sampled)))


def score_head(head: Head, features: Tensor, labels: Tensor) -> float:
    """Return the accuracy of a head, or its mean average precision for several labels."""
    return _score(head.scores(features), labels)


def _score(scores: Tensor, labels: Tensor) -> float:
    if labels.ndim == 1:
        return float((scores.argmax(1) == labels).double().mean())
    return value_of(measure_of("map", scores, labels), len(labels))
