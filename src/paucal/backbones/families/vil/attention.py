"""What the attentions of Vision Longformer (Zhang et al. 2021) share, and the full one; `vil_sparse` has the other.

Tokens are g global ones, then the cells row by row. Biases are added to the products of query and key as in Swin: one
per head and offset between two cells, one per head and global token for each direction, one per pair of global tokens.
"""

from dataclasses import dataclass

import torch
from timm.layers.config import use_fused_attn
from timm.layers.weight_init import trunc_normal_
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.families.common.attention import attend, join_heads
from paucal.backbones.families.vil.chunks import Grid, grid_offsets


@dataclass(frozen=True)
class AttentionSettings:
    """What both attentions need.

    Attributes:
        width: channels C.
        heads: of the attention.
        global_tokens: g.
        relative: whether biases stand for positions.
        qkv_bias: whether queries, keys and values have biases.
        attn_drop: dropout of the weights.
        proj_drop: dropout after the last projection.
    """

    width: int
    heads: int
    global_tokens: int = 0
    relative: bool = True
    qkv_bias: bool = True
    attn_drop: float = 0.0
    proj_drop: float = 0.0


class VilAttention(nn.Module):
    """What both attentions have.

    Attributes:
        window_size: (rows, columns) of the grid whose offsets the table of biases holds.
        local_relative_position_bias_table: ((2 rows - 1) (2 columns - 1), heads).
        g2l_relative_position_bias: (2, heads, g), global to local and local to global.
        g2g_relative_position_bias: (heads, g, g).
    """

    local_relative_position_bias_table: nn.Parameter | None
    g2l_relative_position_bias: nn.Parameter | None
    g2g_relative_position_bias: nn.Parameter | None

    def __init__(self, settings: AttentionSettings, table_grid: Grid) -> None:
        super().__init__()
        width, heads, self.global_tokens = settings.width, settings.heads, settings.global_tokens
        self.num_heads, self.window_size = heads, table_grid
        self.scale = (width // heads) ** -0.5
        self.fused_attn = use_fused_attn()
        self.qkv = nn.Linear(width, 3 * width, bias=settings.qkv_bias)
        self.attn_drop = nn.Dropout(settings.attn_drop)
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(settings.proj_drop)
        rows, columns = table_grid
        self.local_relative_position_bias_table = _table(settings.relative, (2 * rows - 1) * (2 * columns - 1), heads)
        with_global = settings.relative and self.global_tokens > 0
        self.g2l_relative_position_bias = _table(with_global, 2, heads, self.global_tokens)
        self.g2g_relative_position_bias = _table(with_global, heads, self.global_tokens, self.global_tokens)

    def freeze_global(self) -> None:
        """Freeze what only the new values of the global tokens depend on, where nothing reads these."""
        if self.g2g_relative_position_bias is not None:
            self.g2g_relative_position_bias.requires_grad_(False)

    def project(self, layer: nn.Linear, x: Tensor, parts: int) -> Tensor:
        """Return (parts, B, heads, N, d)."""
        return layer(x).unflatten(2, (parts, self.num_heads, -1)).permute(2, 0, 3, 1, 4)

    def global_bias(self, cells: int) -> Tensor | None:
        """Return the bias (heads, g, g + cells) of the global queries."""
        if self.g2l_relative_position_bias is None or self.g2g_relative_position_bias is None:
            return None
        to_cells = self.g2l_relative_position_bias[0].unsqueeze(2).expand(-1, -1, cells)
        return torch.cat((self.g2g_relative_position_bias, to_cells), 2)

    def with_global_keys(self, bias: Tensor) -> Tensor:
        """Put the biases of the global keys before those (heads, Q, K) of the cells."""
        if self.g2l_relative_position_bias is None:
            return bias
        to_global = self.g2l_relative_position_bias[1].unsqueeze(1).expand(-1, bias.shape[1], -1)
        return torch.cat((to_global, bias), 2)


class FullAttention(VilAttention):
    """All tokens attend to all.

    On a grid other than the one the table is made for, the bias of an offset is looked up in the table, where the
    farthest entry stands for all farther offsets ("lookup"); or the matrix of biases between all pairs of cells is
    resized bicubically as if it were a picture ("picture"), as EsViT's program does for crops of 96 pixels, which has
    no geometric meaning but is what its weights were trained with.
    """

    def __init__(self, settings: AttentionSettings, table_grid: Grid, bias_resize: str = "lookup") -> None:
        super().__init__(settings, table_grid)
        self.bias_resize = bias_resize

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Return tokens (B, g + H * W, C) attended to; `grid` is (H, W)."""
        query, key, value = self.project(self.qkv, x, 3).unbind(0)
        out = attend(query, key, value, self.bias(grid), self.scale, self.fused_attn, self.attn_drop)
        return self.proj_drop(self.proj(join_heads(out)))

    def bias(self, grid: Grid) -> Tensor | None:
        """Return the biases (heads, g + H * W, g + H * W) on a grid; None without relative positions."""
        table = self.local_relative_position_bias_table
        if table is None:
            return None
        if self.bias_resize == "lookup" or grid == self.window_size:
            local = table[grid_offsets(grid, self.window_size, table)].permute(2, 0, 1)
        else:
            picture = table[grid_offsets(self.window_size, self.window_size, table)].permute(2, 0, 1)
            cells = grid[0] * grid[1]
            local = functional.interpolate(picture[None].float(), size=(cells, cells), mode="bicubic")[0].to(table)
        local = self.with_global_keys(local)
        of_global = self.global_bias(grid[0] * grid[1])
        return local if of_global is None else torch.cat((of_global, local), 1)


def _table(wanted: bool, *shape: int) -> nn.Parameter | None:
    if not wanted:
        return None
    table = nn.Parameter(torch.empty(shape))
    trunc_normal_(table, std=0.02)
    return table
