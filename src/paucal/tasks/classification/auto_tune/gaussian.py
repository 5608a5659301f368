"""A linear classifier of Gaussian classes with one shrunk covariance, in closed form (Wang et al. 2024, 2402.04087)."""

import torch
from torch import Tensor

from paucal.evaluation.protocols.classifier import LinearClassifier


def fit_gaussian(features: Tensor, labels: Tensor, n_classes: int) -> LinearClassifier:
    """Fit class means m_k and the shared covariance S: weights A m_k, biases -m_k' A m_k / 2.

    A is D ((N - 1) S + tr(S) I)^-1. Differs from the paper: all classes have the same prior, and S is a multiple of the
    identity if no class has a second image.

    Args:
        features: (N, D) float64 features.
        labels: (N,) classes in [0, K). A class without images gets a bias of minus infinity.
        n_classes: K.
    """
    members = torch.nn.functional.one_hot(labels, n_classes).to(features)
    counts = members.sum(0)
    means = members.T @ features / counts.clamp(min=1)[:, None]
    within = features - means[labels]
    rows, dim = within.shape
    spread = within.square().sum() / max(rows - 1, 1)
    if not spread > 0:  # a single image of each class: the nearest mean wins
        spread = features.square().sum() / rows + torch.finfo(within.dtype).tiny
    if rows < dim:  # the inverse of a rows x rows matrix suffices (Woodbury)
        products = within @ within.T
        products.diagonal().add_(spread)
        inner = torch.linalg.solve(products, within @ means.T)
        weight = dim * (means - inner.T @ within) / spread
    else:
        scatter = within.T @ within
        scatter.diagonal().add_(spread)
        weight = dim * torch.linalg.solve(scatter, means.T).T
    bias = -(weight * means).sum(1) / 2
    return LinearClassifier(weight, torch.where(counts > 0, bias, -torch.inf))


def fit_shares(features: Tensor, shares: Tensor) -> LinearClassifier:
    """Fit the same classifier to images with soft labels, for more images than features.

    Args:
        features: (N, D) features.
        shares: (N, K) weight of each image in each class. A class without weight gets a bias of minus infinity.
    """
    counts = shares.sum(0)
    means = shares.T @ features / counts.clamp(min=1e-9)[:, None]
    scatter = (features * shares.sum(1)[:, None]).T @ features - (counts[:, None] * means).T @ means
    scatter.diagonal().add_(scatter.diagonal().sum() / (counts.sum() - 1))
    weight = features.shape[1] * torch.linalg.solve(scatter, means.T).T
    bias = -(weight * means).sum(1) / 2
    return LinearClassifier(weight, torch.where(counts > 0, bias, -torch.inf))
