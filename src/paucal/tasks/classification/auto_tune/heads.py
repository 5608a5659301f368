"""The linear heads that may replace logistic regression on a network's last features.

These heads also read the mean and the standard deviation of the last stages' feature maps, see
`backbones/stage_classifier.py`. To add a head, add an entry to `HEADS`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from paucal.evaluation.protocols.classifier import LinearClassifier
from paucal.tasks.classification.auto_tune.probe import (
    ABSENT_LOGIT,
    DEFAULT_STRENGTH,
    FitHead,
    fit_logistic_regression,
    standardise,
)


def fit_gaussian(features: Tensor, labels: Tensor, n_classes: int) -> LinearClassifier:
    """Fit Gaussian classes with means m_k and one covariance S to (N, D) float64 features (Wang et al. 2024).

    The weights of class k are A m_k and its bias is -m_k' A m_k / 2, where A = D ((N - 1) S + tr(S) I)^-1 is the
    inverse of the shrunk covariance. A class without images gets a bias of minus infinity.

    Differences from the paper (arXiv 2402.04087): all classes have the same prior, and S is a multiple of the identity
    if every class has a single image.
    """
    one_hot = torch.nn.functional.one_hot(labels, n_classes).to(features)
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
    """Fit the classifier of `fit_gaussian` to soft labels, for more images than features.

    Args:
        features: (N, D) features, with N > D.
        class_weights: (N, K) weights of each image in each class. A class whose weights are all 0 gets a bias of minus
            infinity.
    """
    counts = class_weights.sum(0)
    means = class_weights.T @ features / counts.clamp(min=1e-9)[:, None]
    scatter = (features * class_weights.sum(1)[:, None]).T @ features - (counts[:, None] * means).T @ means
    scatter.diagonal().add_(scatter.diagonal().sum() / (counts.sum() - 1))
    weight = features.shape[1] * torch.linalg.solve(scatter, means.T).T
    bias = -(weight * means).sum(1) / 2
    return LinearClassifier(weight, torch.where(counts > 0, bias, -torch.inf))


def fit_logistic_stages(features: Tensor, labels: Tensor, n_classes: int) -> LinearClassifier:
    """Fit logistic regression with a fixed penalty; a choice among 1, 10, 100 and 1000 was no better on average."""
    return fit_logistic_regression(features, labels, n_classes, DEFAULT_STRENGTH)


HEADS: Mapping[str, FitHead] = {
    "logistic regression on the last stages": fit_logistic_stages,
    "Gaussian classes on the last stages": fit_gaussian,
}


def fit_mixture(
    features: Tensor, labels: Tensor, n_classes: int, mixture: Mapping[str, float], heads: Mapping[str, FitHead] = HEADS
) -> tuple[Tensor, Tensor]:
    """Fit heads to raw (N, D) features, and combine them into one head: the weighted sum of their logits.

    `mixture` maps the name of a head to the weight of its logits. Returns (K, D) float32 weights and (K,) float32
    biases for raw features.
    """
    standard = standardise(features)
    scaled_heads = [(scale, heads[name](standard.coordinates, labels, n_classes)) for name, scale in mixture.items()]
    weight = sum((scale * head.weight for scale, head in scaled_heads), start=0.0 * scaled_heads[0][1].weight)
    bias = sum((scale * head.bias for scale, head in scaled_heads), start=0.0 * weight[:, 0])
    weight, bias = standard.unstandardise(weight, bias.clamp(min=ABSENT_LOGIT))
    return weight.float(), bias.float()
