"""Choice of images to label next: images that resemble many images about which the model is uncertain.

This is Uncertainty Herding (Bae, Oliveira and Sutherland, ICLR 2025, arXiv 2412.20644) in the feature space of the
model: every image is weighted by its uncertainty, and each choice is the image that most increases the weighted
similarity of all images to their most similar labelled or chosen image. If there are few labels, the choices spread
over all images; if there are many, the choices follow the uncertainty. An image that resembles a labelled or chosen
image adds little. A fraction of the choices is drawn at random instead.

Unlike in the paper, the features are centred and projected on their strongest principal axes, since the common mean
and the many weak axes hide the differences between images. On random subsets of CIFAR-10, this increased the accuracy
after the same number of labels by 1.6 percentage points.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paucal.evaluation.principal_axes import principal_axes

MAX_COMPARED = 8192  # largest number of images to compare, unless more are chosen; similarities take up 256 MiB
MAX_AXES = 64  # number of principal axes along which images are compared
NEIGHBOUR_RANK = 5  # similarity is one half at the median distance to the nearest neighbour of this rank
MIN_SQUARED_DISTANCE = 1e-6  # between vectors of length 1; smaller squared distances are rounding errors


@dataclass(frozen=True)
class ChosenImage:
    """An image to label."""

    index: int  # position of the image
    # Number of images, including this image, whose most similar choice is this image; 0 for a random choice.
    n_represented: int = 0
    is_random: bool = False  # whether the image was drawn at random


def margin_uncertainty(shares: Tensor, several: bool = False) -> Tensor:
    """Return the (N,) uncertainty about each image, from 0 to 1: one minus the margin between the top two classes.

    `shares` are (N, K) calibrated probabilities. If an image may have several labels (`several`), the margin is
    |p - (1 - p)| = |2 p - 1|, where p is the probability of the most uncertain label.
    """
    if several or shares.shape[1] < 2:
        return 1 - (2 * shares - 1).abs().amin(1)
    first, second = shares.topk(2, dim=1).values.unbind(1)
    return 1 - (first - second)


def choose_images(
    uncertainty: Tensor, features: Tensor, labelled: Tensor, count: int, random_share: float = 0.0, seed: int = 0
) -> list[ChosenImage]:
    """Choose `count` images to label: the most useful first, and a fraction `random_share` drawn at random last.

    `uncertainty` is (N,), `features` is (N, D), and `labelled` has the (L, D) features of labelled images; L may be 0.
    """
    generator = np.random.default_rng(seed)
    count = min(count, len(uncertainty))
    order = generator.permutation(len(uncertainty))
    random_indices = order[: round(random_share * count)]
    random_choices = [ChosenImage(int(index), is_random=True) for index in random_indices]
    if len(random_indices) == count:
        return random_choices
    compared_indices = np.sort(order[len(random_indices) : max(len(random_indices) + MAX_COMPARED, count)])
    rows = torch.from_numpy(compared_indices)
    covered_features = torch.cat([labelled, features[torch.from_numpy(random_indices)]])
    similar, covered = similarities(*project_to_axes(features[rows], covered_features))
    chosen, nearest = choose_greedily(uncertainty[rows].float(), similar, covered, count - len(random_indices))
    n_represented = np.bincount(nearest[nearest >= 0], minlength=len(chosen))
    choices = [ChosenImage(int(compared_indices[index]), int(n_represented[rank])) for rank, index in enumerate(chosen)]
    return [*choices, *random_choices]


def project_to_axes(features: Tensor, labelled: Tensor) -> tuple[Tensor, Tensor]:
    """Project (N, D) and (L, D) features on the strongest principal axes of the first; return rows of length 1."""
    features = features.float()
    mean = features.mean(0)
    axes = principal_axes(features - mean, MAX_AXES)
    return F.normalize((features - mean) @ axes, dim=1), F.normalize((labelled.float() - mean) @ axes, dim=1)


def similarities(vectors: Tensor, labelled: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (N, N) similarities between images, and the (N,) similarities to the nearest labelled image.

    The arguments are (N, R) and (L, R) vectors of length 1. The similarity is a Gaussian function of the distance,
    from 0 to 1. It is one half at the median distance between an image and its neighbour of rank `NEIGHBOUR_RANK`.
    """
    distances = (2 - 2 * vectors @ vectors.T).clamp_(min=0)
    neighbour = distances.kthvalue(min(NEIGHBOUR_RANK + 1, len(vectors)), dim=1).values.median()
    scale = float(np.log(2)) / max(float(neighbour), MIN_SQUARED_DISTANCE)
    covered = torch.zeros(len(vectors))
    if len(labelled):
        covered = ((2 - 2 * vectors @ labelled.T).clamp_(min=0).amin(1) * -scale).exp_()
    return distances.mul_(-scale).exp_(), covered


def choose_greedily(
    unsure: Tensor, similar: Tensor, covered: Tensor, count: int
) -> tuple[list[int], NDArray[np.int64]]:
    """Choose images greedily: each choice is the image that most increases the covered uncertainty of all images.

    The covered uncertainty of an image is its (N,) uncertainty `unsure` times its similarity to the most similar
    labelled or chosen image. `similar` is (N, N), from 0 to 1; `covered` is the (N,) similarity to the nearest labelled
    image. Return the chosen positions, and for each image the rank of its most similar choice, or -1 if a labelled
    image is more similar.
    """
    covered, nearest = covered.clone(), np.full(len(unsure), -1, dtype=np.int64)
    chosen: list[int] = []
    is_free = torch.ones(len(unsure), dtype=torch.bool)
    for rank in range(min(count, len(unsure))):
        # The increase in covered uncertainty from choosing each image, computed in blocks of rows to save memory.
        tensors = (unsure[:, None], similar, covered[:, None])
        gains = torch.zeros(len(unsure))
        for weights, rows, covered_rows in zip(*(tensor.split(512) for tensor in tensors), strict=True):
            gains += (weights * (rows - covered_rows).clamp(min=0)).sum(0)
        gains[~is_free] = -1.0
        index = int(gains.argmax())
        nearest[(similar[index] > covered).numpy()] = rank
        nearest[index] = rank
        covered = torch.maximum(covered, similar[index])
        chosen.append(index)
        is_free[index] = False
    return chosen, nearest
