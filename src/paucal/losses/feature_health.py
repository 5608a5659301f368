"""Measures that detect collapsed features: how much features differ between images, and in how many directions.

These measures are logged and are not part of the loss. Each function computes a few reductions and at most one matrix
product, in float32 even under autocast, and does not synchronise with the GPU.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# Features count as equal up to rounding if no entry differs from its channel's mean by more than this fraction of the
# largest absolute entry.
EQUALITY_TOLERANCE = 1e-5


def feature_spread(features: Tensor) -> Tensor:
    """Return how spread out the directions of features are: 1 if uniformly distributed, 0 if all are equal.

    The spread is the standard deviation of each channel over the rows, after each row is scaled to length 1, averaged
    over channels and multiplied by sqrt(D) (SimSiam, arXiv:2011.10566, section 4.1). The divisor of the variance is
    N, not N - 1, so that the result is at most 1. For an untrained network, whose features have a large common
    component, the spread is between 0 and 1.

    Args:
        features: (N, D) features, one row per image.

    Returns:
        A scalar; NaN for fewer than two rows.

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
    """Return the number of directions in which features vary, the participation ratio of their covariance matrix.

    For the covariance matrix C, the ratio is tr(C)^2 / tr(C^2), which is the squared sum of the eigenvalues divided by
    the sum of the squared eigenvalues. If n eigenvalues are equal and all others are 0, the ratio is n. The ratio is
    computed from the smaller of the two Gram matrices, without computing eigenvalues.

    The ratio equals the exponential of the Rényi entropy of order 2 of the eigenvalues, normalised to sum 1. RankMe
    (arXiv:2210.02885) is the exponential of the Shannon entropy of the normalised singular values, and needs a
    singular value decomposition, during which the CPU waits for the GPU. For centred features, the ratio is at most
    RankMe, and both approach 1 together.

    Args:
        features: (N, D) features, one row per image.

    Returns:
        A scalar from 1 to min(D, N - 1); 0 for features that are equal up to rounding; NaN for fewer than two rows.
        Independent normal values give about N D / (N + D).

    Example:
        >>> corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> effective_rank(corners).item(), effective_rank(corners * torch.tensor([1.0, 0.0])).item()
        (2.0, 1.0)
    """
    if len(features) < 2:
        return features.new_full((), torch.nan, dtype=torch.float32)
    with torch.autocast(features.device.type, enabled=False):
        features = features.float()
        largest_entry = features.abs().max()
        centred = features - features.mean(0)
        largest_deviation = centred.abs().max()
        # The features are scaled, since fourth powers of their entries could exceed the range of float32.
        centred = centred / largest_deviation.clamp(min=torch.finfo(torch.float32).tiny)
        gram = centred @ centred.T if len(centred) < centred.shape[1] else centred.T @ centred
        ratio = gram.trace().square() / gram.square().sum().clamp(min=torch.finfo(torch.float32).tiny)
        return torch.where(largest_deviation > EQUALITY_TOLERANCE * largest_entry, ratio, torch.zeros_like(ratio))


def entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy over the last axis in nats: 0 if one probability is 1, ln K if all K probabilities are equal.

    Args:
        probabilities: (..., K) probabilities, which sum to 1 over the last axis.

    Returns:
        (...,) float32 entropies.

    Example:
        >>> [round(value, 4) for value in entropy(torch.tensor([[0.25] * 4, [1.0, 0, 0, 0]])).tolist()]
        [1.3863, 0.0]
    """
    return torch.special.entr(probabilities.float()).sum(-1)
