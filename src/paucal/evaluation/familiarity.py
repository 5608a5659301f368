"""Similarity of images to a model's training images: the distance to the nearest in the model's features."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

NEIGHBOURS = 5
INSIDE = 0.95  # share of held-out images that count as similar to the training images


@dataclass(frozen=True, eq=False)
class Familiarity:
    """A test of whether an image is like the training images.

    Sun et al. 2022, "Out-of-Distribution Detection with Deep Nearest Neighbors": the distance to the k-th nearest
    training image between features of length 1, and a limit that holds for 95 of 100 images of the same kind. Here
    the limit comes from held-out images, since a network's features are closer for its own training images; k is small,
    as training images are few.

    Attributes:
        features: (N, D) of training images, of length 1.
        limit: The largest distance at which an image counts as similar to them.
        neighbours: Rank k of the neighbour.
    """

    features: Tensor
    limit: float
    neighbours: int = NEIGHBOURS

    def distances(self, features: Tensor) -> Tensor:
        """Return the (B,) distances of (B, D) features to their k-th nearest training image, from 0 to 2."""
        similarity = F.normalize(features.float(), dim=1) @ self.features.T
        nearest = similarity.topk(min(self.neighbours, len(self.features)), dim=1).values[:, -1]
        return (2 - 2 * nearest).clamp(min=0).sqrt()


def fit_familiarity(train: Tensor, held_out: Tensor, neighbours: int = NEIGHBOURS) -> Familiarity:
    """Fit the test to features of training and held-out images.

    Example:
        >>> train, other = torch.eye(3)[[0, 0, 1, 1]], torch.eye(3)[[0, 1]]
        >>> known = fit_familiarity(train, other, neighbours=1)
        >>> known.distances(torch.eye(3)) > known.limit
        tensor([False, False,  True])
    """
    if not len(train) or not len(held_out):
        raise ValueError("both training and held-out images are needed")
    unlimited = Familiarity(F.normalize(train.float(), dim=1), 0.0, neighbours)
    limit = torch.quantile(unlimited.distances(held_out), INSIDE)
    return Familiarity(unlimited.features, float(limit) + 1e-6, neighbours)
