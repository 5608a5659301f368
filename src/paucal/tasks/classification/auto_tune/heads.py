"""The linear heads that may replace logistic regression on a network's last features.

They also read the mean and the spread of the last stages' maps, see `backbones/stage_classifier.py`. A new head is one
entry of `HEADS`.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from paucal.evaluation.protocols.classifier import LinearClassifier
from paucal.tasks.classification.auto_tune.probe import ABSENT, DEFAULT_STRENGTH, fit_regression, standardise


def fit_gaussian(features: Tensor, labels: Tensor, n_classes: int) -> LinearClassifier:
    """Fit class means m_k and one shrunk covariance S: weights A m_k, biases -m_k' A m_k / 2 (Wang et al. 2024).

    A is D ((N - 1) S + tr(S) I)^-1 for (N, D) float64 features and labels in [0, K). Differences from the paper (arXiv
    2402.04087): all classes have the same prior, and S is a multiple of the identity if no class has a second image. A
    class without images gets a bias of minus infinity.
    """
    members = torch.nn.functional.one_hot(labels, n_classes).to(features)
    counts = members.sum(0)
    means = members.T @ features / counts.clamp(min=1)[:, None]
    centred = features - means[labels]
    rows, dim = centred.shape
    mean_variance = centred.square().sum() / max(rows - 1, 1)
    if not mean_variance > 0:  # a single image of each class: the nearest mean wins
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


def fit_shares(features: Tensor, shares: Tensor) -> LinearClassifier:
    """Fit the same classifier to more images than features, with the (N, K) weight of each image in each class.

    A class without weight gets a bias of minus infinity.
    """
    counts = shares.sum(0)
    means = shares.T @ features / counts.clamp(min=1e-9)[:, None]
    scatter = (features * shares.sum(1)[:, None]).T @ features - (counts[:, None] * means).T @ means
    scatter.diagonal().add_(scatter.diagonal().sum() / (counts.sum() - 1))
    weight = features.shape[1] * torch.linalg.solve(scatter, means.T).T
    bias = -(weight * means).sum(1) / 2
    return LinearClassifier(weight, torch.where(counts > 0, bias, -torch.inf))


# From (N, D) float64 standardised features, or coordinates with the same inner products, (N,) labels and K.
FitHead = Callable[[Tensor, Tensor, int], LinearClassifier]


def fit_logistic_stages(features: Tensor, labels: Tensor, n_classes: int) -> LinearClassifier:
    """Fit logistic regression with a fixed penalty; choosing among 1, 10, 100 and 1000 was no better on average."""
    return fit_regression(features, labels, n_classes, DEFAULT_STRENGTH)


HEADS: Mapping[str, FitHead] = {
    "logistic regression on the last stages": fit_logistic_stages,
    "Gaussian classes on the last stages": fit_gaussian,
}


def fit_mixture(
    features: Tensor, labels: Tensor, n_classes: int, mixture: Mapping[str, float], heads: Mapping[str, FitHead] = HEADS
) -> tuple[Tensor, Tensor]:
    """Fit heads to the raw (N, D) features of all images, and add up their weighted logits.

    Returns (K, D) float32 weights and (K,) float32 biases for raw features.
    """
    standard = standardise(features)
    fitted = [(share, heads[name](standard.coordinates, labels, n_classes)) for name, share in mixture.items()]
    weight = sum((share * head.weight for share, head in fitted), start=0.0 * fitted[0][1].weight)
    bias = sum((share * head.bias for share, head in fitted), start=0.0 * weight[:, 0])
    weight, bias = standard.carry_back(weight, bias.clamp(min=ABSENT))
    return weight.float(), bias.float()
