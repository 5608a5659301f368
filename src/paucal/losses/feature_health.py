"""Measures of features: whether they still differ between images, and in how many directions.

None of these is a loss to train with. Every function is a few reductions and at most one matrix product, stays on the
device, and computes in float32 also under autocast.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# Features whose deviations are below this share of their size are equal up to rounding.
EQUAL = 1e-5


def feature_spread(features: Tensor) -> Tensor:
    """Return how far apart features lie: 1 for all directions alike, 0 for equal features.

    The standard deviation over the rows of each channel of the unit-length features, averaged over channels, times
    sqrt(D) (SimSiam, arXiv:2011.10566, section 4.1). We divide by the number of rows, not by one less, so that the
    value never exceeds 1. Features that share a common direction, as those of an untrained network do, lie between.

    Args:
        features: (N, D).

    Returns:
        A scalar; NaN for fewer than two rows, which say nothing.

    Example:
        >>> round(feature_spread(torch.tensor([[1.0, 0.0], [-3.0, 0.0], [0.0, 2.0], [0.0, -1.0]])).item(), 4)
        1.0
        >>> feature_spread(torch.ones(4, 8)).item()
        0.0
    """
    if len(features) < 2:
        return features.new_full((), torch.nan, dtype=torch.float32)
    unit = F.normalize(features.float(), dim=1)
    variance = (unit - unit.mean(0)).square().mean(0)
    return variance.sqrt().mean() * features.shape[1] ** 0.5


def effective_rank(features: Tensor) -> Tensor:
    """Return in how many directions features vary: the participation ratio of their covariance.

    It is tr(C)^2 / tr(C^2), with C the covariance of the centred features: the squared sum of its eigenvalues over the
    sum of their squares. It is n where n eigenvalues are equal and the others 0, and needs no eigenvalues, only the
    smaller of the two Gram matrices. It is the exponential of the Rényi entropy of order 2 of the eigenvalues' shares;
    RankMe (arXiv:2210.02885) is that of the Shannon entropy of the singular values' shares and needs a decomposition
    for which a GPU waits. On the same centred features the ratio is never above RankMe, and both fall to 1 together.

    Args:
        features: (N, D).

    Returns:
        A scalar from 1 to min(D, N - 1), 0 for features equal up to rounding; independent normal values give about
        N D / (N + D). NaN for fewer than two rows.

    Example:
        >>> corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> effective_rank(corners).item(), effective_rank(corners * torch.tensor([1.0, 0.0])).item()
        (2.0, 1.0)
    """
    if len(features) < 2:
        return features.new_full((), torch.nan, dtype=torch.float32)
    with torch.autocast(features.device.type, enabled=False):
        features = features.float()
        size = features.abs().max()
        centred = features - features.mean(0)
        largest = centred.abs().max()
        # Squares of squares would leave the range of float32 long before the features do.
        centred = centred / largest.clamp(min=torch.finfo(torch.float32).tiny)
        gram = centred @ centred.T if len(centred) < centred.shape[1] else centred.T @ centred
        ratio = gram.trace().square() / gram.square().sum().clamp(min=torch.finfo(torch.float32).tiny)
        return torch.where(largest > EQUAL * size, ratio, torch.zeros_like(ratio))


def entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy over the last axis in nats: 0 for certainty, ln K for K equal probabilities.

    Args:
        probabilities: (..., K), rows sum to 1; exact zeros add nothing.

    Returns:
        (...,) float32.

    Example:
        >>> [round(value, 4) for value in entropy(torch.tensor([[0.25] * 4, [1.0, 0, 0, 0]])).tolist()]
        [1.3863, 0.0]
    """
    return torch.special.entr(probabilities.float()).sum(-1)
