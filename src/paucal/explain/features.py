"""Last-layer features of an image's patches, converted to colours or matched between two images.

A "cell" is one grid position of the last feature map, such as a patch of a ViT.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.explain.prepared import prepare_for_hooks
from paucal.types import UserError


@torch.no_grad()
def feature_colours(model: nn.Module, images: Tensor) -> Tensor:
    """Return the three principal components of the last feature map as colours, (B, rows, columns, 3) in [0, 1].

    The components are computed from all images together, so that equal colours mean similar features in all images.
    Each component is scaled so that its 1st and 99th percentiles become 0 and 1. The sign of a component is chosen such
    that the component's entry with the largest absolute value is positive.

    Args:
        model: A timm model with feature maps.
        images: (B, C, H, W) images, normalised.

    Raises:
        UserError: the model has no feature maps.
    """
    with prepare_for_hooks(model) as module:
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
    """Return the cell (row, column) of each image with the highest cosine similarity to a global feature, (B, 2).

    EsViT's figure marks two cells of each view: the cell nearest to the view's global feature, and the cell nearest to
    the global feature of the other view.

    Args:
        grid: (B, D, rows, columns) feature maps.
        pooled: (B, D) global features.
    """
    cosine = (F.normalize(grid.flatten(2), dim=1) * F.normalize(pooled, dim=1)[:, :, None]).sum(1)
    return _cell_positions(cosine.argmax(1), grid.shape[3])


TOP = 10  # default number of matched pairs of cells


@dataclass(frozen=True, eq=False)
class Correspondence:
    """The most similar pairs of cells of two images; a cell is (row, column)."""

    first: Tensor  # (n, 2) cells of the first image, in descending order of similarity
    second: Tensor  # (n, 2) matching cells of the second image, in the same order
    similarity: Tensor  # (n,) cosine similarities of the pairs
    grids: tuple[tuple[int, int], tuple[int, int]]  # (rows, columns) of the cells of each image
    own: Tensor  # (2, 2) cell of each image whose feature is most similar to the image's own global feature
    other: Tensor  # (2, 2) cell of each image whose feature is most similar to the other image's global feature


@torch.no_grad()
def match_images(model: nn.Module, first: Tensor, second: Tensor, top: int = TOP) -> Correspondence:
    """Match the cells of two images by the cosine similarity of their last features.

    Each cell of the first image is matched with the most similar cell of the second image. The `top` most similar pairs
    are returned (Li et al. 2022, section 4 and appendix). The images may differ in size if the model supports both
    sizes.

    Args:
        model: A timm model with feature maps.
        first: (C, H, W) image, normalised.
        second: (C, H', W') image, normalised.
        top: Number of pairs. Fewer pairs are returned if the first image has fewer cells.

    Raises:
        UserError: the model does not support an image's size, or the last feature map is 1x1.
    """
    with prepare_for_hooks(model) as module:
        (grid, pooled), (other_grid, other_pooled) = (_last_features(module, image[None]) for image in (first, second))
    if grid.shape[2:].numel() == 1 or other_grid.shape[2:].numel() == 1:
        raise UserError("the last feature map is 1x1, so there is nothing to match: use a larger image size.")
    cells, other_cells = (F.normalize(values[0].flatten(1).T, dim=1) for values in (grid, other_grid))
    similarity, match = (cells @ other_cells.T).max(1)
    order = similarity.argsort(descending=True, stable=True)[:top]
    return Correspondence(
        _cell_positions(order, grid.shape[3]),
        _cell_positions(match[order], other_grid.shape[3]),
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
            f"the model does not support an image of {image.shape[2]}x{image.shape[3]} pixels ({reason}): prepare "
            "both images as for training."
        ) from problem
    return features.grids[-1].float(), features.pooled.float()


def _cell_positions(index: Tensor, columns: int) -> Tensor:
    return torch.stack((index // columns, index % columns), 1)
