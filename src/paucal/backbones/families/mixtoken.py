"""MixToken's exchange: each image swaps a box of cells with its partner in the flipped batch.

"All Tokens Matter" (Jiang et al., NeurIPS 2021). Partners are mutual (image b and image B - 1 - b), so the exchange is
its own inverse: the same call mixes the map of tokens, and later moves every prediction back to the image its cell came
from. In an odd batch the middle image is its own partner.
"""

import torch
from torch import Tensor

Grid = tuple[int, int]
Box = tuple[int, int, int, int] | Tensor  # top, left, bottom, right in cells; bottom and right are outside the box


def exchange_box(cells: Tensor, box: Box) -> Tensor:
    """Swap a box of cells between each image and its partner.

    Args:
        cells: (B, C, H, W).
        box: (top, left, bottom, right) in cells, one for the whole batch; an empty one changes nothing. A tensor of 4
            integers on the device of the cells avoids recompilation for every box; its values are not checked, since
            reading them would wait for the device.

    Returns:
        (B, C, H, W), new memory.

    Example:
        >>> exchange_box(torch.tensor([[[[1, 2]]], [[[3, 4]]]]), (0, 0, 1, 1)).flatten().tolist()
        [3, 2, 1, 4]
    """
    grid = (cells.shape[2], cells.shape[3])
    return torch.where(inside_box(box, grid, cells.device), cells.flip(0), cells)


def exchange_tokens(tokens: Tensor, box: Box, grid: Grid) -> Tensor:
    """Swap a box as `exchange_box` does, in tokens (B, H * W, C), row by row, without prefix tokens.

    Args:
        tokens: Features or logits, one per cell.
        box: Box as in `exchange_box`.
        grid: (rows, columns).
    """
    return torch.where(inside_box(box, grid, tokens.device).reshape(-1, 1), tokens.flip(0), tokens)


def inside_box(box: Box, grid: Grid, device: torch.device | None = None) -> Tensor:
    """Return which cells of a grid lie in a box, (H, W) bool; arguments as in `exchange_box`."""
    if not isinstance(box, Tensor):
        _require_box_within(box, grid)
    top, left, bottom, right = box
    rows, columns = torch.arange(grid[0], device=device), torch.arange(grid[1], device=device)
    return ((rows >= top) & (rows < bottom))[:, None] & ((columns >= left) & (columns < right))


def _require_box_within(box: tuple[int, int, int, int], grid: Grid) -> None:
    top, left, bottom, right = box
    if not (0 <= top <= bottom <= grid[0] and 0 <= left <= right <= grid[1]):
        raise ValueError(
            f"the box is {tuple(box)} on a grid of {grid[0]}x{grid[1]} cells; "
            "give (top, left, bottom, right) with 0 <= top <= bottom <= rows and 0 <= left <= right <= columns"
        )
