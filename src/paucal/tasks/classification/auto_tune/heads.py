"""Linear heads on frozen features, and their comparison by repeated cross-validation.

The default head is logistic regression on the last features, which are the inputs of the network's own classifier. The
heads of `HEADS`, and the mean of their logits, also read the mean and the standard deviation of the last stages'
feature maps, see `backbones/stage_classifier.py`. Heads are compared by their cross-entropy at the best temperature,
because accuracies on few images are too noisy. The default head is kept unless the best other head leads by more than a
standard error. To add a head, add an entry to `HEADS`.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from paucal.data.randomness import derive_seed
from paucal.evaluation.protocols.classifier import LinearClassifier, balanced_fold_count, draw_folds
from paucal.runs import RunFolder
from paucal.runs.weights import read_weights, save_weights
from paucal.tasks.classification.auto_tune.probe import (
    ABSENT_LOGIT,
    DEFAULT_STRENGTH,
    FitHead,
    Folds,
    Head,
    fit_logistic_regression,
    held_out_logits,
    standardise,
    stratified_sample,
)

DEFAULT_HEAD, MEAN_HEAD = "logistic regression on the last features", "mean of the heads on the last stages"
HELD_OUT_FILE = "held_out.safetensors"
N_FOLDS, N_REPEATS = 5, 3
MAX_IMAGES_TO_REPEAT = 300  # with more images, the cross-validation is not repeated
# Maximum number of images to compare heads on. In sets of 2,160 to 2,761 images, heads chosen on a sample of 1,000
# images were as accurate as heads chosen on all images, and the comparison took a third of the time.
MAX_COMPARISON_IMAGES = 1000
# Temperatures to try, as multiples of the standard deviation of the logits.
TEMPERATURES = torch.logspace(-2, 1, 61, dtype=torch.float64)


def fit_gaussian(features: Tensor, labels: Tensor, n_classes: int) -> LinearClassifier:
    """Fit Gaussian classes with means m_k and one covariance S to (N, D) float64 features (Wang et al. 2024).

    The weights of class k are A m_k and its bias is -m_k' A m_k / 2, where A = D ((N - 1) S + tr(S) I)^-1 is the
    inverse of the shrunk covariance. A class without images gets a bias of minus infinity. Unlike in the paper (arXiv
    2402.04087), all classes have the same prior, and S is a multiple of the identity if every class has a single image.
    """
    one_hot = F.one_hot(labels, n_classes).to(features)
    counts = one_hot.sum(0)
    means = one_hot.T @ features / counts.clamp(min=1)[:, None]
    centred = features - means[labels]
    rows, dim = centred.shape
    mean_variance = centred.square().sum() / max(rows - 1, 1)
    if not mean_variance > 0:  # a single image of each class: predict the class of the nearest mean
        mean_variance = features.square().sum() / rows + torch.finfo(centred.dtype).tiny
    if rows < dim:  # the inverse of a rows x rows matrix suffices (Woodbury)
        products = centred @ centred.T
        products.diagonal().add_(mean_variance)
        inner = torch.linalg.solve(products, centred @ means.T)
        weight = dim * (means - inner.T @ centred) / mean_variance
    else:
        scatter = centred.T @ centred
        scatter.diagonal().add_(mean_variance)
        weight = dim * torch.linalg.solve(scatter, means.T).T
    bias = -(weight * means).sum(1) / 2
    return LinearClassifier(weight, torch.where(counts > 0, bias, -torch.inf))


def fit_soft_gaussian(features: Tensor, class_weights: Tensor) -> LinearClassifier:
    """Fit the classifier of `fit_gaussian` to (N, D) features with (N, K) weights of each image in each class."""
    counts = class_weights.sum(0)
    means = class_weights.T @ features / counts.clamp(min=1e-9)[:, None]
    scatter = (features * class_weights.sum(1)[:, None]).T @ features - (counts[:, None] * means).T @ means
    scatter.diagonal().add_(scatter.diagonal().sum() / (counts.sum() - 1))
    weight = features.shape[1] * torch.linalg.solve(scatter, means.T).T
    bias = -(weight * means).sum(1) / 2
    return LinearClassifier(weight, torch.where(counts > 0, bias, -torch.inf))


HEADS: Mapping[str, FitHead] = {
    # The penalty is fixed, since a choice among 1, 10, 100 and 1000 was no better on average.
    "logistic regression on the last stages": partial(fit_logistic_regression, strength=DEFAULT_STRENGTH),
    "Gaussian classes on the last stages": fit_gaussian,
}


def fit_mixture(
    features: Tensor, labels: Tensor, n_classes: int, mixture: Mapping[str, float], heads: Mapping[str, FitHead] = HEADS
) -> tuple[Tensor, Tensor]:
    """Fit heads to raw (N, D) features; return the (K, D) weights and (K,) biases of the `mixture` of their logits."""
    standard = standardise(features)
    scaled_heads = [(scale, heads[name](standard.coordinates, labels, n_classes)) for name, scale in mixture.items()]
    weight = sum((scale * head.weight for scale, head in scaled_heads), start=0.0 * scaled_heads[0][1].weight)
    bias = sum((scale * head.bias for scale, head in scaled_heads), start=0.0 * weight[:, 0])
    weight, bias = standard.unstandardise(weight, bias.clamp(min=ABSENT_LOGIT))
    return weight.float(), bias.float()


@dataclass(frozen=True)
class HeadComparison:
    """Outcome of a comparison of heads with a default head, by cross-validated losses."""

    name: str = DEFAULT_HEAD  # name of the best head
    head: Head | None = None  # best head, with calibrated logits; None if the default head is best
    # Cross-entropy in nats, or Brier score of heads that use unlabelled images, by name of the head.
    losses: Mapping[str, float] = field(default_factory=dict)
    lead: float = 0.0  # loss of the default head minus that of the best other head
    lead_error: float = 0.0  # standard error of the lead
    # Held-out logits of the best head. None if there are too few images, or if no head that uses unlabelled images is
    # better than the default head.
    held_out: "HeldOutLogits | None" = None
    # Weights of the logits of `HEADS` in the best head; empty for all other heads.
    mixture: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class HeldOutLogits:
    """Logits of training images in a repeated cross-validation, each from a head that was not fitted to the image."""

    rows: Tensor  # (M,) positions among the cross-validated images; in the stored file, among all training images
    logits: Tensor  # (R, M, K) float64 calibrated logits of R repeats
    labels: Tensor  # (M,) classes
    folds: int = N_FOLDS
    temperature: float = 1.0  # divisor that calibrates the head's logits

    @property
    def is_correct(self) -> Tensor:
        """(R, M) booleans: whether the predicted class is the label."""
        return self.logits.argmax(2) == self.labels


def store_held_out_logits(run: RunFolder, held_out: HeldOutLogits, train_rows: Tensor) -> None:
    """Store cross-validated logits; `train_rows` are the positions of their images among all training images."""
    values = {"rows": train_rows[held_out.rows], "logits": held_out.logits, "labels": held_out.labels}
    save_weights(run.path / HELD_OUT_FILE, {**values, "folds": torch.tensor(held_out.folds)})


def read_held_out_logits(run: RunFolder) -> HeldOutLogits:
    """Read stored cross-validated logits, whose rows are indices into all training images."""
    arrays = read_weights(run.path / HELD_OUT_FILE)
    return HeldOutLogits(arrays["rows"], arrays["logits"], arrays["labels"], int(arrays["folds"]))


def compare_heads(  # noqa: PLR0913 (callers pass different options)
    last_features: Tensor,
    staged_features: Tensor,
    labels: Tensor,
    n_classes: int,
    strength: float,
    seed: int = 0,
    heads: Mapping[str, FitHead] = HEADS,
    max_images: int = MAX_COMPARISON_IMAGES,
    groups: Tensor | None = None,
) -> HeadComparison:
    """Compare heads by cross-validation on training images, and fit the best head to all training images.

    `last_features` are (N, D), and `staged_features` (N, D + S), with the pooled last stages. `strength` is the L2
    penalty of the logistic regression on the last features; if `heads` is empty, this regression is cross-validated but
    not compared. `groups` are (N,) groups whose images stay in one fold; None for independent images.
    """
    counts = labels.bincount(minlength=n_classes)
    if int((counts > 1).sum()) < 2:
        return HeadComparison()
    if len(labels) < N_FOLDS:  # too few images to compare heads
        heads = {}
    rows = stratified_sample(labels, max_images, seed)
    splits = repeated_folds(labels[rows], seed, None if groups is None else groups[rows])
    is_evaluated = find_scorable_images(labels[rows], splits)
    truth, n_folds = labels[rows][is_evaluated], len(splits[0])
    if not len(truth):
        return HeadComparison()

    def compute_logits(features: Tensor, fit: FitHead) -> Tensor:
        return held_out_logits(features, labels[rows], n_classes, fit, splits)[:, is_evaluated]

    coordinates = standardise(staged_features[rows]).coordinates
    logits = {name: compute_logits(coordinates, fit) for name, fit in heads.items()}
    mixtures = _candidate_mixtures(logits, truth)
    losses = {name: _mean_losses(_mix_logits(logits, mixture), truth) for name, mixture in mixtures.items()}
    fit_last = partial(fit_logistic_regression, strength=strength)
    last_logits = compute_logits(standardise(last_features[rows]).coordinates, fit_last)
    temperature = best_temperature(last_logits, truth)
    last_held_out = HeldOutLogits(rows[is_evaluated], last_logits / temperature, truth, n_folds, temperature)
    losses[DEFAULT_HEAD] = _mean_losses(last_held_out.logits, truth)
    if not mixtures:
        return HeadComparison(losses={DEFAULT_HEAD: float(losses[DEFAULT_HEAD].mean())}, held_out=last_held_out)
    best = min(mixtures, key=lambda name: float(losses[name].mean()))
    leads = losses[DEFAULT_HEAD] - losses[best]
    lead, error = float(leads.mean()), float(leads.std()) / math.sqrt(len(leads))
    means = {name: float(values.mean()) for name, values in losses.items()}
    if not lead > error:
        return HeadComparison(losses=means, lead=lead, lead_error=error, held_out=last_held_out)
    held_out = HeldOutLogits(rows[is_evaluated], _mix_logits(logits, mixtures[best]), truth, n_folds)
    weight, bias = fit_mixture(staged_features, labels, n_classes, mixtures[best], heads)
    head = Head(weight, bias, DEFAULT_STRENGTH, float(held_out.is_correct.double().mean()))
    return HeadComparison(best, head, means, lead, error, held_out, mixtures[best])


def repeated_folds(labels: Tensor, seed: int, groups: Tensor | None = None) -> list[Folds]:
    """Return the folds of each repeat of a cross-validation; one repeat for more than `MAX_IMAGES_TO_REPEAT` images."""
    repeats = N_REPEATS if len(labels) <= MAX_IMAGES_TO_REPEAT else 1
    folds = balanced_fold_count(labels, N_FOLDS, groups)
    return [draw_folds(labels, derive_seed(seed, repeat), folds, groups) for repeat in range(repeats)]


def find_scorable_images(labels: Tensor, splits: Sequence[Folds]) -> Tensor:
    """Return (N,) booleans: whether all fits that leave out an image are trained on other images of its class."""
    has_class = torch.ones(len(labels), dtype=torch.bool)
    for rows, held_out in itertools.chain.from_iterable(splits):
        has_class[held_out] &= torch.isin(labels[held_out], labels[rows])
    return has_class


def _candidate_mixtures(logits: Mapping[str, Tensor], labels: Tensor) -> dict[str, dict[str, float]]:
    """Return the weights of the heads' logits in each candidate mixture: single calibrated heads, and their mean."""
    mixtures = {name: {name: 1 / best_temperature(values, labels)} for name, values in logits.items()}
    if len(logits) > 1:
        mean = {name: mixture[name] / len(logits) for name, mixture in mixtures.items()}
        divisor = best_temperature(_mix_logits(logits, mean), labels)
        mixtures[MEAN_HEAD] = {name: weight / divisor for name, weight in mean.items()}
    return mixtures


def _mix_logits(logits: Mapping[str, Tensor], mixture: Mapping[str, float]) -> Tensor:
    return torch.stack([weight * logits[name] for name, weight in mixture.items()]).sum(0)


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
