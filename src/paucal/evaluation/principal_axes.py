"""Principal axes of features, the directions of largest variance."""

import torch
from torch import Tensor

from paucal.data.images import evenly_spaced

# Number of rows of the largest matrix whose eigenvectors are computed. For this size, the computation takes seconds on
# one CPU core.
MAX_SIZE = 3000
MIN_EIGENVALUE = 1e-5  # smaller eigenvalues, relative to the largest, are rounding errors of float32


def principal_axes(rows: Tensor, count: int) -> Tensor:
    """Return the R <= `count` principal axes of centred (N, D) features as (D, R), in ascending order of variance.

    The eigenvectors of the smaller of the two matrices X^T X (D x D) and X X^T (N x N) are computed. If D and N are
    both above 3000, X contains only 3000 evenly spaced images. Features of all stages of a ResNet-50 have 9,216
    dimensions, and decomposing their D x D product would take minutes on one CPU core.
    """
    if rows.shape[1] <= min(len(rows), MAX_SIZE):
        return torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -count:]
    sample = rows[evenly_spaced(len(rows), MAX_SIZE)]
    values, vectors = torch.linalg.eigh(sample @ sample.T)
    is_significant = values > MIN_EIGENVALUE * values[-1]  # N centred images span at most N - 1 axes
    return sample.T @ (vectors[:, is_significant] / values[is_significant].sqrt())[:, -count:]
