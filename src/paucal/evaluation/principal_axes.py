"""Principal axes of features: the directions in which they vary most."""

import torch
from torch import Tensor

from paucal.data.images import evenly_spaced

MAX_DECOMPOSED = 3000  # largest matrix whose eigenvectors are computed, which takes seconds on a core
SMALLEST = 1e-5  # smaller eigenvalues, relative to the largest, are rounding errors of float32


def principal_axes(rows: Tensor, count: int) -> Tensor:
    """Return the (D, R) principal axes of (N, D) centred features, R at most `count`, the strongest last.

    The smaller of the D x D and N x N products is decomposed, the latter for a subset of many images: staged features
    of a ResNet-50 have 9,216 dimensions, and decomposing their product takes minutes on a core.
    """
    if rows.shape[1] <= min(len(rows), MAX_DECOMPOSED):
        return torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -count:]
    sample = rows[evenly_spaced(len(rows), MAX_DECOMPOSED)]
    values, vectors = torch.linalg.eigh(sample @ sample.T)
    varied = values > SMALLEST * values[-1]  # the images span fewer axes than there are images
    return sample.T @ (vectors[:, varied] / values[varied].sqrt())[:, -count:]
