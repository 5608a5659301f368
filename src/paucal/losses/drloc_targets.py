"""Pairs of feature-map positions ("cells"), and the targets that a network learns to predict for the pairs.

Source: Liu et al., "Efficient Training of Visual Transformers with Small Datasets", NeurIPS 2021, section 4.

A cell is given by `(row, column)`, and a pair consists of two cells. So pairs are (B, m, 2, 2) integer tensors whose
last two axes are (first or second cell, row or column). The offset of a pair is the position of the first cell minus
the position of the second. A grid with H rows and W columns is flattened row by row, so that the cell `(row, column)`
has the index `row * W + column`. The authors' code multiplies by H instead of W and draws rows and columns below H,
which is correct for square grids only.
"""

from typing import Literal

import torch
from torch import Tensor

Target = Literal["absolute", "signed", "shifted"]
Scale = Literal["side", "side_minus_1", "none"]
ClassSet = Literal["signed", "paper", "absolute"]


def sample_pairs(batch_size: int, n_pairs: int, height: int, width: int, *, generator: torch.Generator) -> Tensor:
    """Draw ordered pairs of cells uniformly and with replacement, separately for each image.

    The two cells of a pair may be the same cell, as in the paper. The pairs are drawn on the device of the generator,
    so that a training step copies nothing between devices; the authors' code draws the pairs on the CPU.

    Args:
        batch_size: Number of images B.
        n_pairs: Number of pairs m per image.
        height: Number of rows of the grid.
        width: Number of columns of the grid.
        generator: Random generator, on the device where the pairs are needed.

    Returns:
        (B, m, 2, 2) int64 pairs.

    Example:
        >>> pairs = sample_pairs(2, 64, 7, 9, generator=torch.Generator().manual_seed(0))
        >>> pairs.shape, pairs.amax((0, 1, 2)).tolist()
        (torch.Size([2, 64, 2, 2]), [6, 8])
    """
    require_two_cells(height, width)
    if n_pairs < 1:
        raise ValueError(f"n_pairs must be at least 1, got {n_pairs}")
    shape, device = (batch_size, n_pairs, 2), generator.device
    return _to_rows_and_columns(torch.randint(height * width, shape, generator=generator, device=device), width)


def permuted_pairs(batch_size: int, height: int, width: int, *, generator: torch.Generator) -> Tensor:
    """Pair the i-th cell of an image with the i-th cell of a random permutation of all cells, for every i.

    Every cell is the first cell of exactly one pair and the second cell of exactly one pair. The authors' code contains
    this alternative to independent random pairs but never uses it.

    Returns:
        (B, H * W, 2, 2) int64 pairs; the first cells are in row-major order.
    """
    require_two_cells(height, width)
    noise = torch.rand(batch_size, height * width, generator=generator, device=generator.device)
    second = noise.argsort(dim=1)
    first = torch.arange(height * width, device=generator.device).expand_as(second)
    return _to_rows_and_columns(torch.stack((first, second), dim=-1), width)


def pair_index(pairs: Tensor, width: int) -> Tensor:
    """Return the row-major index of both cells of each pair, (B, m, 2), in a grid with `width` columns."""
    return pairs[..., 0] * width + pairs[..., 1]


def gather_cells(cells: Tensor, index: Tensor) -> Tensor:
    """Return the (B, M, D) embeddings at the (B, M) positions `index` of the (B, N, D) embeddings `cells`."""
    return cells.gather(1, index[..., None].expand(-1, -1, cells.shape[-1]))


def gather_pairs(grid: Tensor, pairs: Tensor) -> Tensor:
    """Return the embeddings of both cells of each pair.

    Args:
        grid: (B, D, H, W) feature map.
        pairs: (B, m, 2, 2) pairs of cells.

    Returns:
        (B, m, 2, D) embeddings; `flatten(2)` concatenates the two embeddings of each pair, as the localization head
        expects.
    """
    index = pair_index(pairs, grid.shape[-1])
    return gather_cells(grid.flatten(2).transpose(1, 2), index.flatten(1)).unflatten(1, index.shape[1:])


def pair_targets(
    pairs: Tensor, height: int, width: int, *, target: Target = "absolute", scale: Scale = "side"
) -> Tensor:
    """Return the targets of the L1 losses (Eq. 1): row offsets and column offsets, divided by the sides of the grid.

    Args:
        pairs: (B, m, 2, 2) pairs of cells.
        height: Number of rows of the grid, which is the side for row offsets.
        width: Number of columns of the grid, which is the side for column offsets.
        target: "absolute" for the absolute value of the offset (L_drloc), "signed" for the offset (L*_drloc), "shifted"
            for the offset plus side - 1, which is never negative. The authors' code calls the last variant signed.
        scale: "side" divides by the side (paper), "side_minus_1" by the largest possible offset; "none" does not
            divide, so that targets are in cells (authors' code, in training). For "shifted", whose range is twice as
            large, the first two divisors are doubled.

    Returns:
        (B, m, 2) float32 targets, (row, column).

    Example:
        >>> cells = torch.tensor([[[[0, 6], [3, 2]]]])
        >>> (7 * pair_targets(cells, 7, 7)).tolist()
        [[[3.0, 4.0]]]
        >>> pair_targets(cells, 7, 7, target="signed", scale="none").tolist()
        [[[-3.0, 4.0]]]
    """
    if target not in ("absolute", "signed", "shifted"):
        raise ValueError(f"target must be 'absolute', 'signed' or 'shifted', got {target!r}")
    axes = []
    for offset, side in zip(_row_and_column_offsets(pairs), (height, width), strict=True):
        # For an axis with one cell, side - 1 would be 0. Any other divisor works, since all offsets are 0.
        divisors = {"side": side, "side_minus_1": max(side - 1, 1), "none": 1}
        if scale not in divisors:
            raise ValueError(f"scale must be one of {list(divisors)}, got {scale!r}")
        divisor = divisors[scale] * (2 if target == "shifted" and scale != "none" else 1)
        values = {"absolute": offset.abs(), "signed": offset, "shifted": offset + side - 1}[target]
        axes.append(values.float() / divisor)
    return torch.stack(axes, dim=-1)


def class_counts(height: int, width: int, classes: ClassSet = "signed") -> tuple[int, int]:
    """Return the number of classes of the row offset and of the column offset.

    On an axis with k cells, "signed" has a class for each of the 2k - 1 possible offsets, "paper" has a class for each
    of the 2k + 1 offsets from -k to k, although -k and k never occur, and "absolute" has a class for each of the k
    absolute values. The authors' code has 2k - 1 or k classes, but sets k = 14 for all backbones except Swin. On
    smaller grids, the additional classes never occur.
    """
    counts = {"signed": (2, -1), "paper": (2, 1), "absolute": (1, 0)}
    if classes not in counts:
        raise ValueError(f"classes must be one of {list(counts)}, got {classes!r}")
    factor, constant = counts[classes]
    return factor * height + constant, factor * width + constant


def pair_classes(pairs: Tensor, height: int, width: int, *, classes: ClassSet = "signed") -> Tensor:
    """Return the class numbers of each pair's row and column offsets, (B, m, 2) int64, from 0 to `class_counts` - 1.

    Example:
        >>> cells = torch.tensor([[[[0, 6], [3, 2]]]])
        >>> [pair_classes(cells, 7, 7, classes=c).flatten().tolist() for c in ("signed", "paper", "absolute")]
        [[3, 10], [4, 11], [3, 4]]
    """
    axes = []
    for offset, count in zip(_row_and_column_offsets(pairs), class_counts(height, width, classes), strict=True):
        axes.append(offset.abs() if classes == "absolute" else offset + count // 2)
    return torch.stack(axes, dim=-1)


def _row_and_column_offsets(pairs: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = (pairs[:, :, 0] - pairs[:, :, 1]).unbind(-1)
    return rows, columns


def _to_rows_and_columns(index: Tensor, width: int) -> Tensor:
    return torch.stack((index // width, index % width), dim=-1)


def require_two_cells(height: int, width: int) -> None:
    """Raise a ValueError if a grid has no two cells that a pair could consist of."""
    if height < 1 or width < 1 or height * width < 2:
        raise ValueError(f"a pair needs a grid of at least 2 cells, got {height} x {width}")
