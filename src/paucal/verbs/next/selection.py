"""Choice of images to label next: images that are similar to many others about which the model is uncertain.

Uncertainty Herding (Bae, Oliveira and Sutherland, ICLR 2025, arXiv 2412.20644) in the features of the model: every
image is weighted by its uncertainty, and each choice is the image that most increases the similarity of all images to a
labelled or chosen one. With few labels this spreads the choices over all images, with many it follows the uncertainty;
an image that resembles a labelled or chosen one adds nothing. A share of the choices is drawn at random instead.

We differ from the paper in the features: they are centred and projected on their strongest principal axes, since the
common mean and the many weak axes hide the differences between images. On random subsets of CIFAR-10, this increased
the accuracy after the same number of labels by 1.6 percentage points.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paucal.evaluation.principal_axes import principal_axes

MAX_COMPARED = 8192  # images that are compared with each other, unless more are to be chosen: 256 MiB of similarities
MAX_AXES = 64  # principal axes on which images are compared
NEIGHBOUR_RANK = 5  # of the nearest neighbour at whose distance the similarity is one half
MIN_SQUARED_DISTANCE = 1e-6  # between features; smaller distances are rounding errors


@dataclass(frozen=True)
class Choice:
    """An image to label.

    Attributes:
        index: Position of the image.
        n_represented: Number of images, including itself, to which it is the most similar choice; 0 for a random image.
        is_random: Whether the image was drawn at random.
    """

    index: int
    n_represented: int = 0
    is_random: bool = False


def margin_uncertainty(shares: Tensor, several: bool = False) -> Tensor:
    """Return the (N,) uncertainty about each image, from 0 to 1: one minus the margin of the likeliest two classes.

    `shares` are (N, K) calibrated probabilities. If an image may have several labels, the margin is that between the
    probabilities that it has, or does not have, the most uncertain label.
    """
    if several or shares.shape[1] < 2:
        return 1 - (2 * shares - 1).abs().amin(1)
    first, second = shares.topk(2, dim=1).values.unbind(1)
    return 1 - (first - second)


def choose(
    unsure: Tensor, features: Tensor, labelled: Tensor, count: int, random_share: float = 0.0, seed: int = 0
) -> list[Choice]:
    """Choose `count` images to label, the most useful first, and at the end a share of them at random.

    `unsure` is the (N,) uncertainty of each image, with (N, D) features; `labelled` has the (L, D) features of labelled
    images, where L may be 0.
    """
    draw = np.random.default_rng(seed)
    count = min(count, len(unsure))
    order = draw.permutation(len(unsure))
    random = order[: round(random_share * count)]
    random_choices = [Choice(int(index), is_random=True) for index in random]
    if len(random) == count:
        return random_choices
    compared = np.sort(order[len(random) : max(len(random) + MAX_COMPARED, count)])
    rows = torch.from_numpy(compared)
    covered_features = torch.cat([labelled, features[torch.from_numpy(random)]])
    similar, covered = similarities(*directions(features[rows], covered_features))
    chosen, nearest = herd(unsure[rows].float(), similar, covered, count - len(random))
    sizes = np.bincount(nearest[nearest >= 0], minlength=len(chosen))
    choices = [Choice(int(compared[index]), int(sizes[rank])) for rank, index in enumerate(chosen)]
    return [*choices, *random_choices]


def directions(features: Tensor, labelled: Tensor) -> tuple[Tensor, Tensor]:
    """Project (N, D) features of unlabelled and (L, D) features of labelled images on R axes, and normalise them.

    The axes are the strongest principal axes of the unlabelled images, at most `MAX_AXES`. Return (N, R) and (L, R)
    vectors of length 1.
    """
    features = features.float()
    mean = features.mean(0)
    axes = principal_axes(features - mean, MAX_AXES)
    return F.normalize((features - mean) @ axes, dim=1), F.normalize((labelled.float() - mean) @ axes, dim=1)


def similarities(vectors: Tensor, labelled: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (N, N) similarities between images, and the (N,) similarity of each to the nearest labelled image.

    The arguments are vectors of length 1. Similarities are from 0 to 1 and fall with the distance like a Gaussian; they
    are one half at the median distance between an image and its neighbour of rank `NEIGHBOUR_RANK`.
    """
    distances = (2 - 2 * vectors @ vectors.T).clamp_(min=0)
    neighbour = distances.kthvalue(min(NEIGHBOUR_RANK + 1, len(vectors)), dim=1).values.median()
    scale = float(np.log(2)) / max(float(neighbour), MIN_SQUARED_DISTANCE)
    covered = torch.zeros(len(vectors))
    if len(labelled):
        covered = ((2 - 2 * vectors @ labelled.T).clamp_(min=0).amin(1) * -scale).exp_()
    return distances.mul_(-scale).exp_(), covered


def herd(unsure: Tensor, similar: Tensor, covered: Tensor, count: int) -> tuple[list[int], NDArray[np.int64]]:
    """Choose images greedily: each is the image that most increases the covered uncertainty of all images.

    The covered uncertainty of an image is its (N,) uncertainty `unsure` times its similarity to the most similar
    labelled or chosen image. `similar` has the (N, N) similarities from 0 to 1, and `covered` the (N,) similarity of
    each image to the most similar labelled one. Return the chosen positions, and for each image the rank of the choice
    that is most similar to it, or -1 if a labelled image is more similar.
    """
    covered, nearest = covered.clone(), np.full(len(unsure), -1, dtype=np.int64)
    chosen: list[int] = []
    is_free = torch.ones(len(unsure), dtype=torch.bool)
    for rank in range(min(count, len(unsure))):
        gains = _added_coverage(unsure, similar, covered)
        gains[~is_free] = -1.0
        index = int(gains.argmax())
        nearest[(similar[index] > covered).numpy()] = rank
        nearest[index] = rank
        covered = torch.maximum(covered, similar[index])
        chosen.append(index)
        is_free[index] = False
    return chosen, nearest


def _added_coverage(unsure: Tensor, similarity: Tensor, covered: Tensor) -> Tensor:
    """Return the (N,) increase in covered uncertainty for each image that could be chosen, 512 rows at a time."""
    pieces = (unsure[:, None], similarity, covered[:, None])
    split = zip(*(piece.split(512) for piece in pieces), strict=True)
    return sum(
        ((weight * (rows - covered_rows).clamp(min=0)).sum(0) for weight, rows, covered_rows in split),
        torch.zeros(len(unsure)),
    )
