"""Windows over a grid of cells: how large they are, what fills them up, and attention within them."""

from functools import lru_cache
from typing import Literal, get_args

import torch
from timm.layers.config import use_fused_attn
from timm.layers.weight_init import trunc_normal_
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.families.common.attention import attend, join_heads, split_heads
from paucal.backbones.families.common.contract import to_tokens
from paucal.backbones.families.cvt.layers import DepthwiseNorm, Grid, as_map

Padding = Literal["published", "masked", "shrunk"]


def window_of(grid: Grid, most: int, padding: Padding) -> Grid:
    """Return (rows, columns) of the windows on a grid.

    Published: a square of `most`, or of the grid's shorter side where that is less. Shrunk: along each side as many
    windows as such a side needs, each as small as they can then be.

    Example:
        >>> window_of((24, 24), 7, "published"), window_of((24, 24), 7, "shrunk"), window_of((3, 5), 7, "shrunk")
        ((7, 7), (6, 6), (3, 5))
    """
    if padding != "shrunk":
        side = min(most, *grid)
        return side, side
    rows, columns = (-(-side // -(-side // most)) for side in grid)
    return rows, columns


def partition(cells: Tensor, window: Grid) -> Tensor:
    """Cut (B, H, W, C), whose sides are multiples of the window's, into (B * windows, rows * columns, C)."""
    batch, height, width, channels = cells.shape
    rows, columns = window
    cells = cells.reshape(batch, height // rows, rows, width // columns, columns, channels)
    return cells.transpose(2, 3).reshape(-1, rows * columns, channels)


def join(windows: Tensor, window: Grid, grid: Grid) -> Tensor:
    """Put what `partition` has cut back together as (B, H, W, C) on a grid (H, W)."""
    rows, columns = window
    down, across = grid[0] // rows, grid[1] // columns
    cells = windows.reshape(-1, down, across, rows, columns, windows.shape[-1])
    return cells.transpose(2, 3).reshape(-1, *grid, windows.shape[-1])


def hidden_cells(grid: Grid, window: Grid, like: Tensor) -> Tensor:
    """Return a bias (windows, 1, 1, rows * columns) of -inf at the cells beyond the grid, 0 elsewhere.

    Kept for the last sizes, for all models of the process.

    Args:
        grid: (rows, columns) of the cells.
        window: (rows, columns) of a window.
        like: a tensor of the device.
    """
    # What is made while a program is traced, or of another kind of tensor, must not be met again outside.
    if torch.compiler.is_compiling() or type(like) is not Tensor:
        return _hidden_cells(grid, window, like.device)
    return _kept_hidden_cells(grid, window, like.device)


def _hidden_cells(grid: Grid, window: Grid, device: torch.device) -> Tensor:
    inside = torch.zeros(1, *grid, 1, device=device)
    fill = (0, 0, 0, -grid[1] % window[1], 0, -grid[0] % window[0])
    return partition(functional.pad(inside, fill, value=float("-inf")), window)[:, None, None, :, 0]


@lru_cache(maxsize=64)
def _kept_hidden_cells(grid: Grid, window: Grid, device: torch.device) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():  # to be of use outside of inference too
        return _hidden_cells(grid, window, device)


def window_offsets(side: int) -> Tensor:
    """Return which entry of a table of (2 side - 1)^2 belongs to each pair of a window's cells, (side^2, side^2).

    Query (i, j) and key (k, l) have entry (i - k + side - 1) * (2 side - 1) + (j - l + side - 1).
    """
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    down, across = (place.flatten()[:, None] - place.flatten() + side - 1 for place in (rows, columns))
    return down * (2 * side - 1) + across


class WindowAttention(nn.Module):
    """Attention within windows; queries, keys and values share a depthwise convolution, which looks beyond them.

    Padding, where a grid is no multiple of the window:
    - "published": zeros are put at the right and bottom before the convolution and attended to like cells, and the
      batch norm counts them; the published program does so.
    - "masked": the same windows, where what lies beyond the grid is neither attended to nor counted.
    - "shrunk": windows as small as their number allows (`window_of`), which needs least padding; the rest is masked.

    Args:
        width: channels.
        num_heads: heads.
        window_size: most rows and columns of a window.
        padding: one of the three above.
        rel_pos_bias: add a learned bias for each head and each offset between query and key. The table is read by
            offset, so that smaller windows use its middle.
        proj_drop: dropout of the output.
        attn_drop: dropout of the weights.
    """

    relative_position_index: Tensor

    def __init__(
        self,
        width: int,
        num_heads: int,
        window_size: int = 7,
        padding: Padding = "published",
        rel_pos_bias: bool = False,
        proj_drop: float = 0.0,
        attn_drop: float = 0.0,
    ) -> None:
        super().__init__()
        if padding not in get_args(Padding):
            raise ValueError(f"padding is {padding!r}; choose one of {', '.join(get_args(Padding))}")
        if window_size < 1:
            raise ValueError(f"window_size is {window_size}; a window must have a cell or more")
        self.num_heads = num_heads
        self.window_size = (window_size, window_size)
        self.padding: Padding = padding
        self.scale = width**-0.5
        self.fused_attn = bool(use_fused_attn())
        self.conv_proj = DepthwiseNorm(width, stride=1)
        self.qkv = nn.Linear(width, 3 * width)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(proj_drop)
        self.relative_position_bias_table = None
        if rel_pos_bias:
            self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window_size - 1) ** 2, num_heads))
            trunc_normal_(self.relative_position_bias_table, std=0.02)
            self.register_buffer("relative_position_index", window_offsets(window_size), persistent=False)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Return tokens (B, H * W, C) of tokens on a grid (H, W)."""
        window = window_of(grid, self.window_size[0], self.padding)
        beyond = (-grid[0] % window[0], -grid[1] % window[1])
        full = (grid[0] + beyond[0], grid[1] + beyond[1])
        x = self._projected(x, grid, beyond)
        query, key, value = split_heads(self.qkv(partition(x, window)), 3, self.num_heads)
        hidden = hidden_cells(grid, window, x) if any(beyond) and self.padding != "published" else None
        bias = self._bias(window, hidden, x.shape[0])
        x = attend(query, key, value, bias, self.scale, self.fused_attn, self.attn_drop)
        x = join(join_heads(x), window, full)[:, : grid[0], : grid[1]].flatten(1, 2)
        return self.proj_drop(self.proj(x))

    def _projected(self, x: Tensor, grid: Grid, beyond: Grid) -> Tensor:
        """Return the convolved cells (B, H', W', C), filled up to whole windows."""
        fill = (0, 0, 0, beyond[1], 0, beyond[0])
        if any(beyond) and self.padding == "published":
            x = functional.pad(x.unflatten(1, grid), fill)
            return self.conv_proj(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        x = to_tokens(self.conv_proj(as_map(x, grid))).unflatten(1, grid)
        return functional.pad(x, fill) if any(beyond) else x

    def _bias(self, window: Grid, hidden: Tensor | None, batch: int) -> Tensor | None:
        hidden = None if hidden is None else hidden.repeat(batch, 1, 1, 1)
        table = self.relative_position_bias_table
        if table is None:
            return hidden
        index, (rows, columns) = self.relative_position_index, window
        if window != self.window_size:
            index = index.unflatten(1, self.window_size).unflatten(0, self.window_size)
            index = index[:rows, :columns, :rows, :columns].reshape(rows * columns, rows * columns)
        bias = table[index].permute(2, 0, 1)[None]
        return bias if hidden is None else bias + hidden
