"""Locality guidance (Li et al., ECCV 2022, arXiv:2207.10026): a transformer imitates the feature map of a small CNN."""

import torch
import torch.nn.functional as F
from torch import Tensor

from paucal.distributed import all_reduce_mean
from paucal.losses.precision import at_least_float32


def guidance_loss(cells: Tensor, guide: Tensor) -> Tensor:
    """Return the mean squared difference between two feature maps, a scalar in float32.

    The feature map of the guide (the CNN) is resized to H x W by bilinear interpolation.

    Args:
        cells: (B, D, H, W) feature map of the network in training, one vector per cell, projected to D channels.
        guide: (B, D, h, w) feature map of the guide, which receives no gradient.

    Example:
        >>> import torch
        >>> guidance_loss(torch.zeros(1, 2, 4, 4), torch.full((1, 2, 2, 2), 3.0))
        tensor(9.)
    """
    cells, guide = at_least_float32(cells), at_least_float32(guide.detach())
    if guide.shape[2:] != cells.shape[2:]:
        guide = F.interpolate(guide, cells.shape[2:], mode="bilinear", align_corners=False)
    return (cells - guide).square().mean()


@torch.no_grad()
def guide_energy(guide: Tensor) -> Tensor:
    """Return the mean square of a guide's features over all processes, clamped to at least 1, a scalar in float32.

    The guidance loss is divided by this number. Batch norms keep the mean square near 1 for the paper's guides, so the
    division changes little. The features of an EfficientNet are ten times as large, and without the division the
    guidance loss would dominate the classification loss.

    Args:
        guide: (B, D, h, w) feature map of the guide (a CNN).

    Example:
        >>> guide_energy(torch.full((1, 2, 2, 2), 3.0)), guide_energy(torch.full((1, 2, 2, 2), 0.5))
        (tensor(9.), tensor(1.))
    """
    return all_reduce_mean(at_least_float32(guide).square().mean()).clamp(min=1.0)
