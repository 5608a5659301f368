"""Features of cells: features as colours, and matching cells of two images."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.explain.prepared import explainable
from paucal.types import UserError


@torch.no_grad()
def feature_colours(model: nn.Module, images: Tensor) -> Tensor:
    """Return the three principal components of the cells' last features as colours (B, rows, columns, 3) from 0 to 1.

    The components are computed from all images together, so that a colour means the same in each; every channel is
    stretched between its 1st and 99th percentile. The sign of a component makes its largest entry positive.

    Args:
        model: A timm model with a grid.
        images: (B, C, H, W), normalised.

    Raises:
        UserError: the model has no grid of features.
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
    """Return the cell (row, column) of each image with the largest cosine similarity to a global feature, (B, 2).

    EsViT's figure marks the cells of each view that are nearest to its own global feature and to the other view's.

    Args:
        grid: (B, D, rows, columns).
        pooled: (B, D) global features of the same view or of the other view.
    """
    cosine = (F.normalize(grid.flatten(2), dim=1) * F.normalize(pooled, dim=1)[:, :, None]).sum(1)
    return _cell_positions(cosine.argmax(1), grid.shape[3])


TOP = 10  # number of pairs to draw


@dataclass(frozen=True, eq=False)
class Correspondence:
    """The most similar pairs of cells of two images.

    Attributes:
        first: (n, 2) cells (row, column) of the first image, most similar first.
        second: (n, 2) cells of the second image that match them.
        similarity: (n,) cosine similarities.
        grids: (rows, columns) of both images.
        own: (2, 2) cell of each image nearest to its own global feature.
        other: (2, 2) cell of each image nearest to the other's global feature.
    """

    first: Tensor
    second: Tensor
    similarity: Tensor
    grids: tuple[tuple[int, int], tuple[int, int]]
    own: Tensor
    other: Tensor


@torch.no_grad()
def match_images(model: nn.Module, first: Tensor, second: Tensor, top: int = TOP) -> Correspondence:
    """Match the cells of two images by the cosine of their last features.

    Each cell of the first image is matched with the most similar one of the second; the `top` best pairs are returned
    (Li et al. 2022, section 4 and appendix). The images may have different shapes if the model accepts that.

    Args:
        model: A timm model with a grid.
        first: (C, H, W), normalised.
        second: (C, H', W').
        top: Number of pairs; fewer if there are fewer cells.

    Raises:
        UserError: the model does not take images of that size, or its grid has a single cell.
    """
    with explainable(model) as module:
        (grid, pooled), (other_grid, other_pooled) = (_last_features(module, image[None]) for image in (first, second))
    if grid.shape[2:].numel() == 1 or other_grid.shape[2:].numel() == 1:
        raise UserError("the last grid has a single cell, so there is nothing to match: use a larger image size.")
    cosine = _unit_cells(grid) @ _unit_cells(other_grid).T
    similarity, partner = cosine.max(1)
    order = similarity.argsort(descending=True, stable=True)[:top]
    return Correspondence(
        _cell_positions(order, grid.shape[3]),
        _cell_positions(partner[order], other_grid.shape[3]),
        similarity[order],
        grids=((grid.shape[2], grid.shape[3]), (other_grid.shape[2], other_grid.shape[3])),
        own=torch.cat((nearest_cells(grid, pooled), nearest_cells(other_grid, other_pooled))),
        other=torch.cat((nearest_cells(grid, other_pooled), nearest_cells(other_grid, pooled))),
    )


def _last_features(module: nn.Module, image: Tensor) -> tuple[Tensor, Tensor]:
    try:
        features = FeatureBackbone(module, (image.shape[2], image.shape[3]))(image)
    except (RuntimeError, AssertionError, ValueError) as problem:
        reason = str(problem).split("\n")[0].rstrip(".")
        raise UserError(
            f"the model does not take an image of {image.shape[2]}x{image.shape[3]} pixels ({reason}): prepare both "
            "images as for training."
        ) from problem
    return features.grids[-1].float(), features.pooled.float()


def _unit_cells(grid: Tensor) -> Tensor:
    return F.normalize(grid[0].flatten(1).T, dim=1)


def _cell_positions(index: Tensor, columns: int) -> Tensor:
    return torch.stack((index // columns, index % columns), 1)
