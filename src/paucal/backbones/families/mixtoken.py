"""MixToken's exchange: the images b and B - 1 - b of a batch exchange a box of cells (patch tokens).

"All Tokens Matter" (Jiang et al., NeurIPS 2021). The exchange is its own inverse, so the same function mixes tokens and
later moves predictions back to their images. In a batch with an odd number of images, the middle image is not changed.
"""

import torch
from torch import Tensor

Grid = tuple[int, int]
Box = tuple[int, int, int, int] | Tensor  # (top, left, bottom, right) in cells; bottom and right are excluded


def exchange_box(cells: Tensor, box: Box) -> Tensor:
    """Exchange a box of cells between the images b and B - 1 - b of a batch.

    Args:
        cells: (B, C, H, W) map of cells.
        box: (top, left, bottom, right) in cells, the same for all images; an empty box changes nothing. If the box is a
            tensor of 4 integers on the device of the cells, compiled code is not recompiled for every box, and the
            values are not checked, since reading them would wait for the device.

    Returns:
        (B, C, H, W) map in new memory.

    Example:
        >>> exchange_box(torch.tensor([[[[1, 2]]], [[[3, 4]]]]), (0, 0, 1, 1)).flatten().tolist()
        [3, 2, 1, 4]
    """
    grid = (cells.shape[2], cells.shape[3])
    return torch.where(inside_box(box, grid, cells.device), cells.flip(0), cells)


def exchange_tokens(tokens: Tensor, box: Box, grid: Grid) -> Tensor:
    """Exchange a box of cells as `exchange_box` does, but in tokens (B, H * W, C) without prefix tokens.

    Args:
        tokens: Features or logits of the cells, row by row.
        box: Box in the format of `exchange_box`.
        grid: (rows, columns) of the cells.
    """
    return torch.where(inside_box(box, grid, tokens.device).reshape(-1, 1), tokens.flip(0), tokens)


def inside_box(box: Box, grid: Grid, device: torch.device | None = None) -> Tensor:
    """Return a mask (H, W) that is True for the grid cells inside a box in the format of `exchange_box`."""
    if not isinstance(box, Tensor):
        _require_box_within(box, grid)
    top, left, bottom, right = box
    rows, columns = torch.arange(grid[0], device=device), torch.arange(grid[1], device=device)
    return ((rows >= top) & (rows < bottom))[:, None] & ((columns >= left) & (columns < right))


def _require_box_within(box: tuple[int, int, int, int], grid: Grid) -> None:
    top, left, bottom, right = box
    if not (0 <= top <= bottom <= grid[0] and 0 <= left <= right <= grid[1]):
        raise ValueError(
            f"the box {tuple(box)} is not inside a grid of {grid[0]}x{grid[1]} cells; it must be "
            "(top, left, bottom, right) with 0 <= top <= bottom <= rows and 0 <= left <= right <= columns"
        )
