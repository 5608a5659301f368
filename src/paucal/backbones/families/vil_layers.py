"""The stages of Vision Longformer: a patch embedding with global tokens, followed by blocks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from timm.layers.drop import DropPath
from timm.layers.mlp import Mlp
from timm.layers.weight_init import trunc_normal_
from timm.models import checkpoint
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.families.common.contract import to_map, to_tokens
from paucal.backbones.families.vil_attention import AttentionSettings, FullAttention, SparseAttention
from paucal.backbones.families.vil_chunks import Grid, Mode

EPS = 1e-6  # epsilon of all norms


@dataclass(frozen=True)
class SharedArguments:
    """Arguments of `VisionLongformer` that are the same in all stages."""

    window_size: int
    mode: Mode
    bias_resize: str
    share_projections: bool
    mlp_ratio: float
    pos_drop: float


@dataclass(frozen=True)
class StageSettings:
    """The settings of one stage.

    Attributes:
        grid: (rows, columns) of the stage's grid for the image size of the model.
        in_chans: Number of channels of the stage's input.
        patch: Side of the patches into which the input is divided, in positions of the input.
        sparse: Whether attention is sparse; False for full attention.
        attention: Settings of attention, including the number of channels.
        shared: Arguments that are the same in all stages.
    """

    grid: Grid
    in_chans: int
    patch: int
    sparse: bool
    attention: AttentionSettings
    shared: SharedArguments


class GlobalPatchEmbedding(nn.Module):
    """A patch embedding: a convolution, a norm, optional absolute positions, and prepended global tokens.

    The first half of the channels of an absolute position depends on the row, the second half on the column. For
    another grid, the tables of rows and columns are resized bicubically.
    """

    cls_token: nn.Parameter | None
    cls_pos_embed: nn.Parameter | None
    x_pos_embed: nn.Parameter | None
    y_pos_embed: nn.Parameter | None

    def __init__(self, settings: StageSettings) -> None:
        super().__init__()
        width, count = settings.attention.width, settings.attention.global_tokens
        absolute = not settings.attention.relative
        self.proj = nn.Conv2d(settings.in_chans, width, settings.patch, settings.patch)
        self.norm = nn.LayerNorm(width, EPS)
        self.cls_token = _new_table(count > 0, count, width)
        self.cls_pos_embed = _new_table(absolute and count > 0, count, width)
        self.x_pos_embed = _new_table(absolute, settings.grid[0], width // 2)  # of rows, despite the `x`
        self.y_pos_embed = _new_table(absolute, settings.grid[1], width // 2)
        self.pos_drop = nn.Dropout(settings.shared.pos_drop)

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Return the tokens (B, g + H * W, C) for a map, and their grid (H, W)."""
        x = self.proj(x)
        grid = (x.shape[2], x.shape[3])
        x = self.norm(to_tokens(x))
        if self.x_pos_embed is not None and self.y_pos_embed is not None:
            rows, columns = resize_positions(self.x_pos_embed, grid[0]), resize_positions(self.y_pos_embed, grid[1])
            x = x + torch.cat(
                (rows.unsqueeze(2).expand(-1, -1, grid[1], -1), columns.unsqueeze(1).expand(-1, grid[0], -1, -1)), 3
            ).flatten(1, 2)
        if self.cls_token is not None:
            first = self.cls_token if self.cls_pos_embed is None else self.cls_token + self.cls_pos_embed
            x = torch.cat((first.expand(x.shape[0], -1, -1).to(x), x), 1)
        return self.pos_drop(x), grid


class VilBlock(nn.Module):
    """Attention and an MLP, each after a norm and with a residual connection."""

    def __init__(self, settings: StageSettings, drop_path: float) -> None:
        super().__init__()
        width = settings.attention.width
        self.norm1 = nn.LayerNorm(width, EPS)
        self.attn = _build_attention(settings)
        self.drop_path1 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = nn.LayerNorm(width, EPS)
        self.mlp = Mlp(width, int(width * settings.shared.mlp_ratio), drop=settings.attention.proj_drop)
        self.drop_path2 = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Apply the block to tokens (B, g + H * W, C) with the grid (H, W); the shape stays the same."""
        x = x + self.drop_path1(self.attn(self.norm1(x), grid))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


class VilStage(nn.Module):
    """A patch embedding with global tokens, followed by blocks."""

    def __init__(self, settings: StageSettings, drop_path: Sequence[float], last: bool) -> None:
        super().__init__()
        self.global_tokens = settings.attention.global_tokens
        self.grad_checkpointing = False
        self.embed = GlobalPatchEmbedding(settings)
        self.blocks = nn.ModuleList(VilBlock(settings, rate) for rate in drop_path)
        if not last:
            # Global tokens are dropped after the stage, so parameters that only affect their final values get no
            # gradient.
            self.blocks[-1].attn.freeze_global_token_parameters()  # type: ignore[operator, union-attr]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the stage's map (B, C, H, W), and its global tokens (B, g, C) or None."""
        x, grid = self.embed(x)
        for block in self.blocks:
            x = checkpoint(block, x, grid) if self.grad_checkpointing and self.training else block(x, grid)
        first = self.global_tokens
        return to_map(x[:, first:], grid), x[:, :first] if first else None


def resize_positions(table: Tensor, length: int) -> Tensor:
    """Resize the position table of one axis, (1, L, C), to another length.

    Example:
        >>> resize_positions(torch.arange(4.0).reshape(1, 4, 1), 4).flatten().tolist()
        [0.0, 1.0, 2.0, 3.0]
    """
    if table.shape[1] == length:
        return table
    column = table.float().transpose(1, 2).unsqueeze(3)
    resized = functional.interpolate(column, size=(length, 1), mode="bicubic")
    return resized.squeeze(3).transpose(1, 2).to(table)


def require_multiple(size: Sequence[int], reduction: int) -> None:
    """Raise a ValueError if a side of an image in pixels is not a multiple of the reduction."""
    if size[0] % reduction or size[1] % reduction:
        nearest_size = [max(1, round(side / reduction)) * reduction for side in size]
        raise ValueError(
            f"images have {size[0]}x{size[1]} pixels; both sides must be multiples of {reduction}: "
            f"use {nearest_size[0]}x{nearest_size[1]}"
        )


def stage_grids(size: Grid, patches: Sequence[int]) -> list[Grid]:
    """Return the (rows, columns) of every stage's grid for images of this size in pixels.

    Example:
        >>> stage_grids((224, 96), (4, 2, 2, 2))
        [(56, 24), (28, 12), (14, 6), (7, 3)]
    """
    reductions = [math.prod(patches[: stage + 1]) for stage in range(len(patches))]
    return [(size[0] // reduction, size[1] // reduction) for reduction in reductions]


def _build_attention(settings: StageSettings) -> nn.Module:
    shared = settings.shared
    if not settings.sparse:
        return FullAttention(settings.attention, settings.grid, shared.bias_resize)
    return SparseAttention(settings.attention, shared.window_size, shared.mode, shared.share_projections)


def _new_table(is_used: bool, count: int, width: int) -> nn.Parameter | None:
    if not is_used:
        return None
    table = nn.Parameter(torch.empty(1, count, width))
    trunc_normal_(table, std=0.02)
    return table
