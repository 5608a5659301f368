"""Pairs of grid cells, and the targets that a network predicts for them.

Source: Liu et al., "Efficient Training of Visual Transformers with Small Datasets", NeurIPS 2021, section 4.

A pair is two cells, a cell is `(row, column)`, so pairs are (B, m, 2, 2) integer tensors whose last two axes
are (first or second cell, row or column). The offset of a pair is the first cell minus the second. A grid of
H rows and W columns is flattened row by row: cell `(row, column)` has index `row * W + column`. The authors'
code uses the height instead of the width there and draws both coordinates below the height, which is right for
square grids only.
"""

from typing import Literal

import torch
from torch import Tensor

Target = Literal["absolute", "signed", "shifted"]
Scale = Literal["side", "side_minus_1", "none"]
ClassSet = Literal["signed", "paper", "absolute"]


def sample_pairs(batch_size: int, n_pairs: int, height: int, width: int, *, generator: torch.Generator) -> Tensor:
    """Draw ordered pairs of cells uniformly and with replacement, separately for each image.

    Both cells of a pair may be the same, as in the paper. The pairs are drawn on the device of the generator, so
    that nothing is copied between devices in a training step; the authors' code draws on the CPU.

    Args:
        batch_size: Number of images B.
        n_pairs: Pairs per image m.
        height: Rows of the grid.
        width: Columns of the grid.
        generator: The source of randomness, on the device where the pairs are needed.

    Returns:
        (B, m, 2, 2) int64.

    Example:
        >>> pairs = sample_pairs(2, 64, 7, 9, generator=torch.Generator().manual_seed(0))
        >>> pairs.shape, pairs.amax((0, 1, 2)).tolist()
        (torch.Size([2, 64, 2, 2]), [6, 8])
    """
    _check_grid(height, width)
    if n_pairs < 1:
        raise ValueError(f"n_pairs must be at least 1, got {n_pairs}")
    shape = (batch_size, n_pairs, 2)
    return _cell_positions(torch.randint(height * width, shape, generator=generator, device=generator.device), width)


def permuted_pairs(batch_size: int, height: int, width: int, *, generator: torch.Generator) -> Tensor:
    """Pair every cell of an image with a cell of a random permutation, H*W pairs per image.

    This is the alternative to random pairs that the authors' code contains but never uses. Every cell is exactly once
    the first and once the second of a pair.

    Returns:
        (B, H*W, 2, 2) int64, the first cells in row-major order.
    """
    _check_grid(height, width)
    noise = torch.rand(batch_size, height * width, generator=generator, device=generator.device)
    second = noise.argsort(dim=1)
    first = torch.arange(height * width, device=generator.device).expand_as(second)
    return _cell_positions(torch.stack((first, second), dim=-1), width)


def pair_index(pairs: Tensor, width: int) -> Tensor:
    """Return the row-major index of both cells of each pair, (B, m, 2), on a grid of `width` columns."""
    return pairs[..., 0] * width + pairs[..., 1]


def gather_cells(cells: Tensor, index: Tensor) -> Tensor:
    """Return the rows (B, M, D) of `cells` (B, N, D) at `index` (B, M)."""
    return cells.gather(1, index[..., None].expand(-1, -1, cells.shape[-1]))


def gather_pairs(grid: Tensor, pairs: Tensor) -> Tensor:
    """Return the embeddings of both cells of each pair.

    Args:
        grid: (B, D, H, W).
        pairs: (B, m, 2, 2).

    Returns:
        (B, m, 2, D); `flatten(2)` gives the concatenation that the localization head reads.
    """
    index = pair_index(pairs, grid.shape[-1])
    return gather_cells(grid.flatten(2).transpose(1, 2), index.flatten(1)).unflatten(1, index.shape[1:])


def pair_targets(
    pairs: Tensor, height: int, width: int, *, target: Target = "absolute", scale: Scale = "side"
) -> Tensor:
    """Return the offsets that the L1 losses regress (Eq. 1), rows and columns each on their own scale.

    Args:
        pairs: (B, m, 2, 2).
        height: Rows of the grid, the scale of the row offset.
        width: Columns of the grid, the scale of the column offset.
        target: "absolute" for the size of the offset (L_drloc), "signed" for the offset itself (L*_drloc),
            "shifted" for the offset plus side - 1, which the authors' code calls signed: never negative.
        scale: "side" divides by the side (the paper), "side_minus_1" by the largest offset, "none" keeps offsets in
            cells (as the authors' code does in training). The range of "shifted" is twice as long, and its divisor
            twice as large.

    Returns:
        (B, m, 2) float32, (row, column).

    Example:
        >>> cells = torch.tensor([[[[0, 6], [3, 2]]]])
        >>> (7 * pair_targets(cells, 7, 7)).tolist()
        [[[3.0, 4.0]]]
        >>> pair_targets(cells, 7, 7, target="signed", scale="none").tolist()
        [[[-3.0, 4.0]]]
    """
    axes = [
        _axis_target(offset, side, target) / _divisor(side, target, scale)
        for offset, side in zip(_row_and_column_offsets(pairs), (height, width), strict=True)
    ]
    return torch.stack(axes, dim=-1)


def class_counts(height: int, width: int, classes: ClassSet = "signed") -> tuple[int, int]:
    """Return the number of classes of the row offset and of the column offset.

    On an axis of k cells "signed" has the 2k-1 offsets that can occur, "paper" the 2k+1 of {-k, ..., k}
    although -k and k never occur, "absolute" the k sizes. The authors' code has 2k-1 or k, with k fixed at 14
    for all backbones but Swin; this only adds outputs that are never right.
    """
    counts = {"signed": (2, -1), "paper": (2, 1), "absolute": (1, 0)}
    if classes not in counts:
        raise ValueError(f"classes must be one of {list(counts)}, got {classes!r}")
    factor, constant = counts[classes]
    return factor * height + constant, factor * width + constant


def pair_classes(pairs: Tensor, height: int, width: int, *, classes: ClassSet = "signed") -> Tensor:
    """Return the classes of the row and the column offset, (B, m, 2) int64, below `class_counts`.

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


def _axis_target(offset: Tensor, side: int, target: Target) -> Tensor:
    if target == "absolute":
        return offset.abs().float()
    if target == "signed":
        return offset.float()
    if target == "shifted":
        return (offset + side - 1).float()
    raise ValueError(f"target must be 'absolute', 'signed' or 'shifted', got {target!r}")


def _divisor(side: int, target: Target, scale: Scale) -> int:
    # On an axis of one cell every offset is 0, whatever it is divided by.
    divisors = {"side": side, "side_minus_1": max(side - 1, 1), "none": 1}
    if scale not in divisors:
        raise ValueError(f"scale must be one of {list(divisors)}, got {scale!r}")
    return divisors[scale] * (2 if target == "shifted" and scale != "none" else 1)


def _cell_positions(index: Tensor, width: int) -> Tensor:
    return torch.stack((index // width, index % width), dim=-1)


def _check_grid(height: int, width: int) -> None:
    if height < 1 or width < 1 or height * width < 2:
        raise ValueError(f"a pair needs a grid of at least 2 cells, got {height} x {width}")
