"""Vision Longformer (Zhang et al. 2021): stages with sparse or full attention, and with global tokens.

Variants are built without drop-path unless `drop_path_rate` is passed (published: 0.1 for all variants). With
`positions="absolute"`, the models are the published variants with absolute positions. The variants of EsViT (Li et al.
2022) are wider and deeper than those of the ViL paper, and their last stages have more heads. State dicts of the
published code and of EsViT's version of this code can be loaded.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from timm.layers.drop import DropPath, calculate_drop_path_rates
from timm.layers.mlp import Mlp
from timm.models import checkpoint, generate_default_cfgs
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.families.common.contract import (
    DEIT_CROP_RATIO,
    init_linear,
    make_default_cfg,
    register_variants,
    to_map,
    to_tokens,
)
from paucal.backbones.families.common.positions import record_input_size
from paucal.backbones.families.common.staged import StagedBackbone
from paucal.backbones.families.vil_attention import (
    MODES,
    AttentionSettings,
    FullAttention,
    Grid,
    SparseAttention,
    VilAttention,
    new_table,
)
from paucal.types import height_and_width

EPS = 1e-6  # epsilon of all norms
POSITIONS = ("relative", "absolute")
BIAS_RESIZES = ("lookup", "picture")  # see `FullAttention`


class GlobalPatchEmbedding(nn.Module):
    """A patch embedding: a convolution, a norm, optional absolute positions, and prepended global tokens.

    The first half of the channels of an absolute position depends on the row, the second half on the column. For
    another grid than `absolute_grid` (None for no absolute positions), the tables of rows and columns are resized
    bicubically.
    """

    cls_token: nn.Parameter | None
    cls_pos_embed: nn.Parameter | None
    x_pos_embed: nn.Parameter | None
    y_pos_embed: nn.Parameter | None

    def __init__(
        self, in_chans: int, width: int, patch: int, global_tokens: int, absolute_grid: Grid | None, pos_drop: float
    ) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, width, patch, patch)
        self.norm = nn.LayerNorm(width, EPS)
        absolute, (rows, columns) = absolute_grid is not None, absolute_grid or (0, 0)
        self.cls_token = new_table(global_tokens > 0, 1, global_tokens, width)
        self.cls_pos_embed = new_table(absolute and global_tokens > 0, 1, global_tokens, width)
        self.x_pos_embed = new_table(absolute, 1, rows, width // 2)  # positions of rows, despite the `x`
        self.y_pos_embed = new_table(absolute, 1, columns, width // 2)
        self.pos_drop = nn.Dropout(pos_drop)

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

    def __init__(self, width: int, attn: VilAttention, mlp_ratio: float, proj_drop: float, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, EPS)
        self.attn = attn
        self.drop_path1 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = nn.LayerNorm(width, EPS)
        self.mlp = Mlp(width, int(width * mlp_ratio), drop=proj_drop)
        self.drop_path2 = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Apply the block to tokens (B, g + H * W, C) with the grid (H, W); the shape stays the same."""
        x = x + self.drop_path1(self.attn(self.norm1(x), grid))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


class VilStage(nn.Module):
    """A patch embedding with global tokens, followed by blocks."""

    def __init__(self, embed: GlobalPatchEmbedding, blocks: list[VilBlock], global_tokens: int) -> None:
        super().__init__()
        self.global_tokens = global_tokens
        self.grad_checkpointing = False
        self.embed = embed
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the stage's map (B, C, H, W), and its global tokens (B, g, C) or None."""
        x, grid = self.embed(x)
        for block in self.blocks:
            x = checkpoint(block, x, grid) if self.grad_checkpointing and self.training else block(x, grid)
        first = self.global_tokens
        return to_map(x[:, first:], grid), x[:, :first] if first else None


def resize_positions(table: Tensor, length: int) -> Tensor:
    """Resize the position table of one axis, (1, L, C), to another length."""
    if table.shape[1] == length:
        return table
    column = table.float().transpose(1, 2).unsqueeze(3)
    resized = functional.interpolate(column, size=(length, 1), mode="bicubic")
    return resized.squeeze(3).transpose(1, 2).to(table)


def stage_grids(size: Grid, patches: Sequence[int]) -> list[Grid]:
    """Return the (rows, columns) of every stage's grid for images of this size in pixels.

    Example:
        >>> stage_grids((224, 96), (4, 2, 2, 2))
        [(56, 24), (28, 12), (14, 6), (7, 3)]
    """
    reductions = [math.prod(patches[: stage + 1]) for stage in range(len(patches))]
    return [(size[0] // reduction, size[1] // reduction) for reduction in reductions]


class VisionLongformer(StagedBackbone):
    """A backbone whose first stages have sparse attention; the mean of the last map is classified.

    Each stage has global tokens, which are dropped after the stage. With `global_pool="token"`, a global token of the
    last stage is classified instead of the mean. Parameters that only affect the final values of dropped global tokens
    would get no gradient, so they are frozen. In the last block of every stage except the last, these parameters are
    the bias between global tokens and, with `share_projections=False`, the projections of global tokens.

    The sides of images may be any multiples of the stride of the last stage (32 pixels). Sparse attention is the same
    for all sizes. Full attention looks up its biases in a table for `img_size`, which `set_input_size` resizes.

    Args:
        patch_sizes: Side of the patches of each stage, in pixels for the first stage, and in cells of the previous
            stage's grid for other stages.
        sparse: Whether attention is sparse, for each stage.
        global_tokens: Number of global tokens of each stage.
        window_size: Side w of the chunks of sparse attention, in cells.
        mode: Cells to which a cell attends in sparse attention: "blocks" (its chunk of w x w cells and the 8 chunks
            around), "exact" (the (2 w + 1)^2 cells around it), "cyclic" (as "blocks", but a chunk at the border has
            neighbours at the opposite border) or "own" (only its own chunk).
        random_neighbour: Whether, in training, a cell attends to one of the 8 chunks around its chunk instead of all 8.
            The chunk is drawn for each layer and call.
        positions: "relative" or "absolute".
        bias_resize: How full attention resizes its biases for other image sizes, "lookup" or "picture"; see
            `FullAttention`.
        share_projections: Whether global tokens have the same projections as cells in sparse attention.
    """

    pools = ("avg", "token", "")
    undecayed_names = ("cls_token", "pos_embed", "relative_position_bias", "relative_position_bias_table")

    def __init__(  # noqa: PLR0913 (timm's builder passes plain arguments)
        self,
        img_size: int | Sequence[int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        patch_sizes: Sequence[int] = (4, 2, 2, 2),
        embed_dims: Sequence[int] = (48, 96, 192, 384),
        depths: Sequence[int] = (1, 1, 9, 1),
        num_heads: Sequence[int] = (1, 3, 3, 6),
        sparse: Sequence[bool] = (True, True, False, False),
        global_tokens: Sequence[int] = (1, 1, 1, 0),
        window_size: int = 7,
        mode: str = "blocks",
        random_neighbour: bool = False,
        positions: str = "relative",
        bias_resize: str = "lookup",
        share_projections: bool = True,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        stage_arguments = (patch_sizes, embed_dims, depths, num_heads, sparse, global_tokens)
        _require_valid_stages(stage_arguments, positions)
        choices = {"mode": (mode, MODES), "positions": (positions, POSITIONS)}
        for name, (value, allowed) in {**choices, "bias_resize": (bias_resize, BIAS_RESIZES)}.items():
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; choose one of {', '.join(map(repr, allowed))}")
        if window_size < 1:
            raise ValueError(f"window_size is {window_size}, the side of a chunk in cells; it must be at least 1")
        self.reduction = math.prod(patch_sizes)
        self.patch_sizes = tuple(patch_sizes)
        self.num_prefix_tokens = global_tokens[-1]
        size = height_and_width(img_size)
        self.require_size(size)
        super().__init__(
            num_classes=num_classes,
            in_chans=in_chans,
            widths=tuple(embed_dims),
            reductions=tuple(math.prod(patch_sizes[: stage + 1]) for stage in range(len(patch_sizes))),
            global_pool=global_pool,
            drop_rate=drop_rate,
            num_prefix_tokens=global_tokens[-1],
        )
        self.inner_prefix_tokens = tuple(sorted(set(global_tokens)))
        rates: Any = calculate_drop_path_rates(drop_path_rate, list(depths), stagewise=True)
        rows = zip((in_chans, *embed_dims), stage_grids(size, patch_sizes), *stage_arguments, strict=False)
        self.stages = nn.ModuleList()
        relative = positions == "relative"
        for stage, (chans, grid, patch, width, _, heads, is_sparse, count) in enumerate(rows):
            settings = AttentionSettings(width, heads, count, relative, qkv_bias, attn_drop_rate, proj_drop_rate)
            if is_sparse:
                make_attention = partial(SparseAttention, settings, window_size, mode, share_projections)  # type: ignore[arg-type]
            else:
                make_attention = partial(FullAttention, settings, grid, bias_resize)
            embed = GlobalPatchEmbedding(chans, width, patch, count, None if relative else grid, pos_drop_rate)
            blocks = [VilBlock(width, make_attention(), mlp_ratio, proj_drop_rate, rate) for rate in rates[stage]]
            if stage < len(depths) - 1:
                # Global tokens are dropped after the stage, so parameters that only affect their final values get no
                # gradient.
                blocks[-1].attn.freeze_global_token_parameters()
            self.stages.append(VilStage(embed, blocks, count))
        self.norm = nn.LayerNorm(embed_dims[-1], EPS)
        self.stages.apply(init_linear)
        self.set_random_neighbour(random_neighbour)

    def set_random_neighbour(self, enabled: bool) -> None:
        """Set whether, in training, cells attend to one random chunk of the 8 surrounding chunks in sparse attention.

        The paper uses one random chunk, except in the last quarter (or eighth) of the epochs. In evaluation,
        cells always attend to all chunks.
        """
        for module in self.modules():
            if isinstance(module, SparseAttention):
                if enabled and module.mode == "own":
                    raise ValueError(
                        "random_neighbour is not supported for the mode 'own', which has no neighbours; use 'blocks'"
                    )
                module.random_neighbour = enabled

    @torch.no_grad()
    def set_input_size(self, img_size: int | Sequence[int]) -> None:
        """Resize the bias tables of full attention and the absolute positions for images of another size in pixels."""
        size = height_and_width(img_size)
        self.require_size(size)
        for stage, grid in zip(self.stages, stage_grids(size, self.patch_sizes), strict=False):
            for module in stage.modules():
                if isinstance(module, FullAttention):
                    module.resize_table(grid)
                if isinstance(module, GlobalPatchEmbedding) and module.x_pos_embed is not None:
                    assert module.y_pos_embed is not None
                    module.x_pos_embed = nn.Parameter(resize_positions(module.x_pos_embed, grid[0]))
                    module.y_pos_embed = nn.Parameter(resize_positions(module.y_pos_embed, grid[1]))
        record_input_size(self, size)

    def require_size(self, size: Sequence[int]) -> None:
        """Raise a ValueError if a side of images in pixels is not a multiple of the model's stride."""
        if size[0] % self.reduction or size[1] % self.reduction:
            nearest_size = [max(1, round(side / self.reduction)) * self.reduction for side in size]
            raise ValueError(
                f"images have {size[0]}x{size[1]} pixels; both sides must be multiples of {self.reduction}: "
                f"use {nearest_size[0]}x{nearest_size[1]}"
            )

    def _check_pool(self, global_pool: str) -> str:
        if global_pool == "token" and self.num_prefix_tokens == 0:
            raise ValueError("global_pool is 'token', but the last stage has no global tokens; use 'avg'")
        return super()._check_pool(global_pool)


def _require_valid_stages(stage_arguments: Sequence[Sequence[Any]], positions: str) -> None:
    """Raise a ValueError if stages cannot be built with these arguments, each with a value per stage."""
    names = ("patch_sizes", "embed_dims", "depths", "num_heads", "sparse", "global_tokens")
    stages = dict(zip(names, stage_arguments, strict=True))
    if len({len(values) for values in stage_arguments}) != 1 or not stage_arguments[0]:
        counts_text = ", ".join(f"{name} {len(values)}" for name, values in stages.items())
        raise ValueError(f"these arguments need one value per stage, but their numbers of values differ: {counts_text}")
    for name in names[:4]:
        if min(stages[name]) < 1:
            raise ValueError(f"{name} is {tuple(stages[name])}; every stage needs at least 1")
    if min(stages["global_tokens"]) < 0:
        raise ValueError(f"global_tokens is {tuple(stages['global_tokens'])}; give 0 or more for each stage")
    for width, heads in zip(stages["embed_dims"], stages["num_heads"], strict=True):
        if width % heads:
            raise ValueError(
                f"embed_dims has {width}, which is not a multiple of {heads}, the stage's number of heads in num_heads"
            )
        if positions == "absolute" and width % 2:
            raise ValueError(f"embed_dims has {width}, but absolute positions need even numbers")


# In the published code, module 0 of the stage `layerN` is the patch embedding; then attention and MLP alternate.
_PUBLISHED_NAME = re.compile(r"^layer(\d+)\.(\d+)\.(.+)$")


def checkpoint_filter_fn(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Rename the tensors of a published state dict to the model's names, and resize absolute positions to the model's.

    The projections of queries, keys and values of sparse attention are joined into `qkv`. If global tokens share these
    projections, the file contains the projections twice. Then the copy for the global tokens is used, as in the
    published code, which loads this copy last.
    """
    renamed = {_model_key(key): value for key, value in state.items() if not key.endswith("relative_position_index")}
    model_state = model.state_dict()
    is_published = any(_PUBLISHED_NAME.match(key) for key in state)
    fitted = _join_projections(renamed, model_state) if is_published else renamed
    for key, value in fitted.items():
        if not key.endswith(("x_pos_embed", "y_pos_embed")) or key not in model_state or value.ndim != 3:
            continue
        if value.shape[2] == model_state[key].shape[2] and value.is_floating_point():
            fitted[key] = resize_positions(value, model_state[key].shape[1])
    return fitted


def _model_key(key: str) -> str:
    match = _PUBLISHED_NAME.match(key)
    if match is None:
        return key
    stage, number, suffix = int(match[1]) - 1, int(match[2]), match[3]
    if number == 0:
        return f"stages.{stage}.embed.{re.sub('^norm_embed[.]', 'norm.', suffix)}"
    suffix = re.sub(r"^norm[.]", "norm1." if number % 2 else "norm2.", suffix)
    return f"stages.{stage}.blocks.{(number - 1) // 2}.{suffix}"


def _join_projections(state: dict[str, Tensor], model_state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    new_state = dict(state)
    for key in [key for key in state if ".attn.query." in key]:
        start, _, parameter = key.rpartition(".attn.query.")
        prefix = f"{start}.attn."
        shared = f"{prefix}query_global.{parameter}" not in model_state and f"{prefix}query_global.{parameter}" in state
        ending = "_global" if shared else ""
        if f"{prefix}kv{ending}.{parameter}" not in state:
            continue
        new_state[f"{prefix}qkv.{parameter}"] = torch.cat(
            (state[f"{prefix}query{ending}.{parameter}"], state[f"{prefix}kv{ending}.{parameter}"])
        )
        for name in ("query", "kv") + (("query_global", "kv_global") if shared else ()):
            new_state.pop(f"{prefix}{name}.{parameter}", None)
        if shared:
            new_state[f"{prefix}proj.{parameter}"] = new_state.pop(
                f"{prefix}proj_global.{parameter}", state[f"{prefix}proj.{parameter}"]
            )
    return {key: value for key, value in new_state.items() if value.numel() or key in model_state}  # drop empty tables


_VARIANTS = {
    # 6.7M and 24.7M parameters.
    "vil_tiny": {"embed_dims": (48, 96, 192, 384), "depths": (1, 1, 9, 1), "num_heads": (1, 3, 3, 6)},
    "vil_small": {"embed_dims": (96, 192, 384, 768), "depths": (1, 2, 8, 1), "num_heads": (3, 3, 6, 12)},
}
_ESVIT_TINY = {"embed_dims": (96, 192, 384, 768), "depths": (2, 2, 6, 2)}
# Each variant has 28.3M parameters. The published weights of `esvit_vil_tiny` were trained on crops of 224 pixels and,
# with `bias_resize="picture"`, on crops of 96 pixels. Features of 224-pixel images do not depend on `bias_resize`.
_ESVIT_VARIANTS = {
    "esvit_vil_tiny": {**_ESVIT_TINY, "num_heads": (3, 6, 12, 24)},  # as in the published training command
    "esvit_vil_tiny_paper_heads": {**_ESVIT_TINY, "num_heads": (3, 3, 6, 12)},  # as in the paper's Table 6
}
default_cfgs = generate_default_cfgs(
    dict.fromkeys((*_VARIANTS, *_ESVIT_VARIANTS), make_default_cfg("stages.0.embed.proj", crop_pct=DEIT_CROP_RATIO))
)
for _paper, _variants in (("ViL (Zhang et al. 2021)", _VARIANTS), ("ViL in EsViT (Li et al. 2022)", _ESVIT_VARIANTS)):
    register_variants(__name__, _paper, VisionLongformer, _variants, checkpoint_filter_fn)
