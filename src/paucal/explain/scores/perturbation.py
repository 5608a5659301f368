"""Deletion and insertion: whether the places that a map calls important are important to the model.

Petsiuk et al. 2018, "RISE": pixels are taken away from an image in the order of the map, or put into a blurred copy of
it, and the probability of the class is followed. A good map lets it fall early, or rise early. Removed pixels become 0,
the mean colour once normalised. All maps are compared on one grid of cells, so that a finer one has no advantage.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.explain.prepared import explainable, run

STEPS = 10
CELLS = 8  # along each side, on which maps are compared
BLUR = 8  # the blurred copy keeps one value for so many pixels along each side


def on_cells(maps: Tensor, cells: int = CELLS) -> Tensor:
    """Return maps (B, h, w) on (B, cells, cells): averaged where they are finer, bilinear where they are coarser."""
    finer = maps.shape[1] >= cells and maps.shape[2] >= cells
    if finer:
        return F.adaptive_avg_pool2d(maps[:, None], cells)[:, 0]
    return F.interpolate(maps[:, None], (cells, cells), mode="bilinear", align_corners=False)[:, 0]


def cells_by_rank(maps: Tensor, cells: int = CELLS) -> Tensor:
    """Return the rank of every cell, (B, cells, cells) int64, 0 for the highest value; ties by place."""
    flat = on_cells(maps.float(), cells).flatten(1)
    order = flat.argsort(dim=1, descending=True, stable=True)
    ranks = torch.empty_like(order).scatter(1, order, torch.arange(flat.shape[1], device=flat.device).expand_as(order))
    return ranks.unflatten(1, (cells, cells))


def blurred(images: Tensor) -> Tensor:
    """Return images (B, C, H, W) of which only coarse colours are left."""
    height, width = images.shape[2:]
    small = F.adaptive_avg_pool2d(images, (math.ceil(height / BLUR / 2), math.ceil(width / BLUR / 2)))
    return F.interpolate(small, (height, width), mode="bilinear", align_corners=False)


@torch.no_grad()
def perturbation_curve(
    model: nn.Module, images: Tensor, maps: Tensor, classes: Tensor, insert: bool = False, steps: int = STEPS
) -> Tensor:
    """Return the probability of each image's class as its cells are deleted or inserted, (B, steps + 1).

    Args:
        model: a classifier.
        images: (B, C, H, W), normalised.
        maps: (B, h, w), of any size.
        classes: (B,).
        insert: put cells into the blurred image; else take them from the image.
        steps: equal shares of the cells.
    """
    ranks = cells_by_rank(maps.to(images.device))
    total, base = ranks[0].numel(), blurred(images) if insert else torch.zeros_like(images)
    found = []
    with explainable(model) as module:
        for step in range(steps + 1):
            chosen = (ranks < round(total * step / steps))[:, None].float()
            mask = F.interpolate(chosen, images.shape[2:], mode="nearest")
            mixed = mask * images + (1 - mask) * base if insert else (1 - mask) * images
            shares = run(module, mixed.to(next(module.parameters()).dtype)).float().softmax(1)
            found.append(shares.gather(1, classes.to(shares.device)[:, None])[:, 0])
    return torch.stack(found, 1)


def area(curve: Tensor) -> Tensor:
    """Return the area under (B, points) curves over equal steps from 0 to 1, (B,).

    Example:
        >>> area(torch.tensor([[1.0, 0.5, 0.0]]))
        tensor([0.5000])
    """
    return (curve[:, 1:] + curve[:, :-1]).mean(1) / 2
