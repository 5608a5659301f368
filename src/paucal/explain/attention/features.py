"""Pictures of what cells are, rather than of what they look at."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.explain.prepared import explainable


@torch.no_grad()
def feature_colours(model: nn.Module, images: Tensor) -> Tensor:
    """Return the cells' last features as colours (B, rows, columns, 3) from 0 to 1: their three main components.

    The components are those of all images together, so that a colour means the same in each; every channel is
    stretched between its 1st and 99th percentile. Signs are chosen so that the component's largest entry is positive.

    Args:
        model: a timm model with a grid.
        images: (B, C, H, W), normalised.

    Raises:
        UserError: the model keeps no grid.
    """
    with explainable(model) as module:
        grid = FeatureBackbone(module, (images.shape[2], images.shape[3]))(images).grids[-1].double()
    cells = grid.permute(0, 2, 3, 1).flatten(0, 2)
    centred = cells - cells.mean(0)
    _, _, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = F.pad(axes[:3], (0, 0, 0, max(0, 3 - len(axes))))
    axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
    colours = centred @ axes.T
    low, high = colours.quantile(0.01, dim=0), colours.quantile(0.99, dim=0)
    stretched = ((colours - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
    return stretched.unflatten(0, (grid.shape[0], *grid.shape[2:])).float()


def nearest_cells(grid: Tensor, pooled: Tensor) -> Tensor:
    """Return the cell (row, column) of each image that is nearest to a global feature by cosine, (B, 2).

    EsViT's figure marks in each view the token nearest to its own global feature and to that of the other view.

    Args:
        grid: (B, D, rows, columns).
        pooled: (B, D), of the same or of the other view.
    """
    cosine = (F.normalize(grid.flatten(2), dim=1) * F.normalize(pooled, dim=1)[:, :, None]).sum(1)
    best = cosine.argmax(1)
    return torch.stack((best // grid.shape[3], best % grid.shape[3]), 1)
