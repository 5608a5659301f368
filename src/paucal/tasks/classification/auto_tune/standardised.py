"""Standardised features, with at most as many coordinates as images."""

from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST_DEVIATION = 1e-8
PRIOR_IMAGES = 50  # weight of the median variance beside a feature's own variance, in images
JITTER = 1e-10  # relative; keeps the factorisation finite if rows are linearly dependent


@dataclass(frozen=True)
class StandardisedFeatures:
    """Features of zero mean and unit deviation, and coordinates with the same inner products.

    A linear classifier with an L2 penalty, and a Gaussian one whose covariance is shrunk towards a multiple of the
    identity, depend on inner products alone. With fewer images than features they are fitted in the coordinates, which
    is several times as fast, and converted back to weights for features.

    Attributes:
        mean: (D,) means of the features.
        deviation: (D,) standard deviations, shrunk towards the median of all features; 1 if all features are constant.
        rows: (N, D) float64 standardised features.
        coordinates: (N, min(N, D)) float64.
    """

    mean: Tensor
    deviation: Tensor
    rows: Tensor
    coordinates: Tensor

    def carry_back(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return (K, D) weights and (K,) biases for raw features from those for coordinates."""
        if self.coordinates.shape[1] < self.rows.shape[1]:
            weight = torch.linalg.solve_triangular(self.coordinates.T, weight.T, upper=True).T @ self.rows
        weight = weight / self.deviation
        return weight, bias - weight @ self.mean


def standardise(features: Tensor) -> StandardisedFeatures:
    """Standardise (N, D) features over the images, with variances shrunk towards their median."""
    values = features.double()
    mean, variance = values.mean(0), values.var(0)
    # Over few images a feature is often nearly constant; dividing by its tiny deviation would give other images huge
    # values.
    variance = (len(values) * variance + PRIOR_IMAGES * variance.median()) / (len(values) + PRIOR_IMAGES)
    deviation = variance.sqrt()
    deviation = torch.where(deviation > SMALLEST_DEVIATION, deviation, torch.ones_like(deviation))
    rows = (values - mean) / deviation
    if len(rows) >= rows.shape[1]:
        return StandardisedFeatures(mean, deviation, rows, rows)
    products = rows @ rows.T
    products.diagonal().add_(JITTER * products.diagonal().sum() + torch.finfo(products.dtype).tiny)
    return StandardisedFeatures(mean, deviation, rows, torch.linalg.cholesky(products))
