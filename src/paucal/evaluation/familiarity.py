"""Test of whether images are similar to a model's training images, based on distances between features."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

NEIGHBOURS = 5  # k: distances are measured to the k-th nearest training image
SIMILAR_FRACTION = 0.95  # fraction of the held-out images that count as similar to the training images


@dataclass(frozen=True, eq=False)
class FamiliarityDetector:
    """A test of whether an image is similar to the training images.

    The feature of the image and the features of the training images are scaled to length 1. An image is similar if the
    distance between its feature and the k-th nearest training feature does not exceed a limit. The limit is chosen such
    that 95 % of images from the same distribution are similar (Sun et al. 2022, "Out-of-Distribution Detection with
    Deep Nearest Neighbors"). Here, the limit is computed from held-out images, since the features of a network's own
    training images are closer to each other. k is small because there are few training images.
    """

    features: Tensor  # (N, D) features of the training images, scaled to length 1
    limit: float  # largest distance at which an image counts as similar
    neighbours: int = NEIGHBOURS  # rank k of the training image to which the distance is measured

    def distances(self, features: Tensor) -> Tensor:
        """Return the (B,) distances of (B, D) features to their k-th nearest training image, from 0 to 2."""
        similarity = F.normalize(features.float(), dim=1) @ self.features.T
        nearest = similarity.topk(min(self.neighbours, len(self.features)), dim=1).values[:, -1]
        return (2 - 2 * nearest).clamp(min=0).sqrt()


def fit_familiarity(train: Tensor, held_out: Tensor, neighbours: int = NEIGHBOURS) -> FamiliarityDetector:
    """Fit the similarity test to (N, D) features of training images and (M, D) features of held-out images."""
    if not len(train) or not len(held_out):
        raise ValueError("both training and held-out images are needed")
    unlimited = FamiliarityDetector(F.normalize(train.float(), dim=1), 0.0, neighbours)
    limit = torch.quantile(unlimited.distances(held_out), SIMILAR_FRACTION)
    return FamiliarityDetector(unlimited.features, float(limit) + 1e-6, neighbours)
