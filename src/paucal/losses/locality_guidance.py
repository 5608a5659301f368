"""Locality guidance (Li et al., ECCV 2022, arXiv:2207.10026): a transformer imitates the feature map of a small CNN."""

import torch
import torch.nn.functional as F
from torch import Tensor

from paucal.distributed import all_reduce_mean
from paucal.losses.precision import precise


def guidance_loss(cells: Tensor, guide: Tensor) -> Tensor:
    """Return the mean squared difference between two feature maps, a scalar in float32.

    The guide's feature map is resized to H x W by bilinear interpolation.

    Args:
        cells: (B, D, H, W) feature map of the network in training, already projected to the guide's channels.
        guide: (B, D, h, w) feature map of the guide (the CNN); it gets no gradient.

    Example:
        >>> import torch
        >>> guidance_loss(torch.zeros(1, 2, 4, 4), torch.full((1, 2, 2, 2), 3.0))
        tensor(9.)
    """
    cells, guide = precise(cells), precise(guide.detach())
    if guide.shape[2:] != cells.shape[2:]:
        guide = F.interpolate(guide, cells.shape[2:], mode="bilinear", align_corners=False)
    return (cells - guide).square().mean()


@torch.no_grad()
def guide_energy(guide: Tensor) -> Tensor:
    """Return the mean square of a guide's features over all processes, but at least 1, a scalar in float32.

    The guidance loss is divided by it. Batch norms keep the features of the paper's guides near unit scale, so the
    division changes little. The features of an EfficientNet are ten times as large; without the division their loss
    would dominate the classification loss.

    Args:
        guide: (B, D, h, w) feature map of the guide.

    Example:
        >>> guide_energy(torch.full((1, 2, 2, 2), 3.0)), guide_energy(torch.full((1, 2, 2, 2), 0.5))
        (tensor(9.), tensor(1.))
    """
    return all_reduce_mean(precise(guide).square().mean()).clamp(min=1.0)
