"""LV-ViT, a vision transformer that predicts a class for the image and for every patch token.

"All Tokens Matter: Token Labeling for Training Better Vision Transformers" (Jiang et al., NeurIPS 2021). The state dict
has the names of the published code, so published checkpoints can be loaded. Their position embedding is resampled
if the image size differs.

Differences from the published code:
- `forward` returns the same logits in training and in evaluation: the class logits plus half of the largest token
  logits. Therefore, plain classification trains the logits that are used in evaluation, and both classifiers get
  gradients. In the published code, `forward` returns a triple in training. Token labeling uses `dense_logits`.
- The factor of 0.5 can be changed, and the classifier of tokens can be omitted for models that are fine-tuned without
  token labels. For such models, the published code adds the output of an untrained classifier in evaluation.
- `reset_classifier` replaces both classifiers.
- The caller passes MixToken's box, which is not drawn from a global generator.
- Images need not be square.

Variants are built without drop-path unless `drop_path_rate` is passed (published: 0.1 for T and S, 0.2 for M, 0.3 for
L). For images with a size other than 224 pixels, pass `img_size`; the position embedding of a checkpoint for 224 pixels
is then resampled.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from timm.layers.config import use_fused_attn
from timm.layers.drop import DropPath, calculate_drop_path_rates
from timm.layers.mlp import Mlp
from timm.layers.weight_init import trunc_normal_
from timm.models import generate_default_cfgs
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.families.common.attention import attend, join_heads, split_heads
from paucal.backbones.families.common.contract import (
    init_linear,
    make_default_cfg,
    match_model,
    new_classifier,
    register_variants,
    to_tokens,
)
from paucal.backbones.families.common.positions import Size, fit_position_embedding
from paucal.backbones.families.common.tokens import Grid, TokenBackbone, require_valid_sizes, require_whole_patches
from paucal.types import height_and_width

Box = tuple[int, int, int, int] | Tensor  # (top, left, bottom, right) in cells; bottom and right are excluded


def exchange_box(cells: Tensor, box: Box) -> Tensor:
    """Exchange a box of cells between the images b and B - 1 - b of a batch, as MixToken does.

    The exchange is its own inverse, so the same function mixes tokens and later moves predictions back to their images.
    In a batch with an odd number of images, the middle image is not changed.

    Args:
        cells: (B, C, H, W) map of cells; the result is in new memory.
        box: (top, left, bottom, right) in cells, the same for all images; an empty box changes nothing. If the box is a
            tensor of 4 integers on the device of the cells, compiled code is not recompiled for every box, and the
            values are not checked, since reading them would wait for the device.
    """
    grid = (cells.shape[2], cells.shape[3])
    return torch.where(inside_box(box, grid, cells.device), cells.flip(0), cells)


def exchange_tokens(tokens: Tensor, box: Box, grid: Grid) -> Tensor:
    """Exchange a box of cells as `exchange_box` does, but in tokens (B, H * W, C) without prefix tokens."""
    return torch.where(inside_box(box, grid, tokens.device).reshape(-1, 1), tokens.flip(0), tokens)


def inside_box(box: Box, grid: Grid, device: torch.device | None = None) -> Tensor:
    """Return a mask (H, W) that is True for the grid cells inside a box in the format of `exchange_box`."""
    top, left, bottom, right = box
    if not isinstance(box, Tensor) and not (0 <= top <= bottom <= grid[0] and 0 <= left <= right <= grid[1]):
        raise ValueError(
            f"the box {tuple(box)} is not inside a grid of {grid[0]}x{grid[1]} cells; it must be "
            "(top, left, bottom, right) with 0 <= top <= bottom <= rows and 0 <= left <= right <= columns"
        )
    rows, columns = torch.arange(grid[0], device=device), torch.arange(grid[1], device=device)
    return ((rows >= top) & (rows < bottom))[:, None] & ((columns >= left) & (columns < right))


class StemPlan(NamedTuple):
    """The convolutions of a patch embedding."""

    hidden: tuple[tuple[int, int], ...]  # (kernel, stride) of each convolution before the last
    overlap: int = 1  # kernel size of the last convolution, divided by its stride


# The rows of table 3, in the table's order. The third row has the kernels 7, 3, 8 and the strides 2, 2, 4, so that
# patches would overlap, but the number of parameters in this row (25M) corresponds to a last kernel of 4. The stem
# whose name ends in "overlap" has the table's kernels, with a padding that gives the same grid as without overlap.
STEMS = {
    "1_conv": StemPlan(()),
    "2_conv": StemPlan(((7, 2),)),
    "3_conv_coarse": StemPlan(((7, 2), (3, 2))),
    "3_conv_coarse_overlap": StemPlan(((7, 2), (3, 2)), overlap=2),
    "3_conv": StemPlan(((7, 2), (3, 1))),
    "4_conv": StemPlan(((7, 2), (3, 1), (3, 1))),
    "6_conv": StemPlan(((7, 2), (3, 1), (3, 1), (3, 1), (3, 1))),
}


class LvVitStem(nn.Module):
    """Convolutions with batch norm and ReLU, followed by a convolution that divides the map into patches.

    Names (`conv1`, `bn1`, ..., `proj`) and initialisation (torch's default) are those of the published code. Only the
    last convolution has a bias. `stem` is a key of `STEMS`, `width` the number of channels between the convolutions.
    """

    def __init__(
        self,
        img_size: int | Size = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        embed_dim: int = 384,
        stem: str = "4_conv",
        width: int = 64,
    ) -> None:
        super().__init__()
        if stem not in STEMS:
            raise ValueError(f"stem is {stem!r}; choose one of {', '.join(STEMS)}")
        plan = STEMS[stem]
        # The padding for overlapping patches, (kernel - stride) / 2, must be an integer.
        smallest_patch = plan.overlap * math.prod(step for _, step in plan.hidden)
        if patch_size < 1 or patch_size % smallest_patch:
            raise ValueError(
                f"patch_size is {patch_size}; with the stem {stem!r} it must be a multiple of {smallest_patch}"
            )
        self.patch_size = (patch_size, patch_size)
        self.set_input_size(img_size)
        self.n_hidden, stride = len(plan.hidden), patch_size
        for number, (kernel, step) in enumerate(plan.hidden, 1):
            conv = nn.Conv2d(in_chans, width, kernel, step, kernel // 2, bias=False)
            self.add_module(f"conv{number}", conv)
            self.add_module(f"bn{number}", nn.BatchNorm2d(width))
            in_chans, stride = width, stride // step
        padding = (plan.overlap - 1) * stride // 2
        self.proj = nn.Conv2d(in_chans, embed_dim, plan.overlap * stride, stride, padding)

    def set_input_size(self, img_size: int | Size) -> None:
        """Set the image size in pixels; no weights depend on this size."""
        height, width = height_and_width(img_size)
        require_whole_patches((height, width), self.patch_size[0])
        self.img_size = (height, width)
        self.grid_size = (height // self.patch_size[0], width // self.patch_size[1])
        self.num_patches = self.grid_size[0] * self.grid_size[1]

    def forward(self, x: Tensor) -> Tensor:
        """Return the map (B, embed_dim, H / patch_size, W / patch_size) for images (B, in_chans, H, W)."""
        require_whole_patches((x.shape[2], x.shape[3]), self.patch_size[0])
        # On a CPU, the channels-last format saves a fifth of the time in evaluation. In training it saves little, and
        # batch norms would sum in single instead of double precision.
        x = x if self.training else x.contiguous(memory_format=torch.channels_last)
        for number in range(1, self.n_hidden + 1):
            conv, norm = getattr(self, f"conv{number}"), getattr(self, f"bn{number}")
            x = functional.relu(norm(conv(x)), inplace=True)
        return self.proj(x)


class LvVitAttention(nn.Module):
    """Self-attention; by default the linear layer `qkv` has no bias, as in all published models."""

    def __init__(
        self, dim: int, num_heads: int, qkv_bias: bool = False, attn_drop: float = 0.0, proj_drop: float = 0.0
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.fused_attn = use_fused_attn()
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to tokens (B, N, C); the shape stays the same."""
        query, key, value = split_heads(self.qkv(x), 3, self.num_heads)
        x = attend(query, key, value, None, self.scale, self.fused_attn, self.attn_drop)
        return self.proj_drop(self.proj(join_heads(x)))


class LvVitBlock(nn.Module):
    """A block: x + attention(norm(x)) / s, then x + MLP(norm(x)) / s ("enhanced residual", table 4 of the supplement).

    s is `skip_lam`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float = 3.0,
        qkv_bias: bool = False,
        skip_lam: float = 1.0,
        proj_drop: float = 0.0,
        attn_drop: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.branch_scale = 1.0 / skip_lam
        self.norm1 = nn.LayerNorm(dim)
        self.attn = LvVitAttention(dim, num_heads, qkv_bias, attn_drop, proj_drop)
        self.drop_path1 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop)
        self.drop_path2 = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, grid: Grid | None = None) -> Tensor:
        """Apply the block to tokens (B, N, C); the shape stays the same, and `grid` is not used."""
        # Scale and add with one kernel, since a separate division would take another pass over the tokens.
        x = torch.add(x, self.drop_path1(self.attn(self.norm1(x))), alpha=self.branch_scale)
        return torch.add(x, self.drop_path2(self.mlp(self.norm2(x))), alpha=self.branch_scale)


class LvVit(TokenBackbone):
    """An LV-ViT; the defaults are those of LV-ViT-S.

    Args:
        skip_lam: Number by which the output of residual branches is divided (table 4 of the supplement).
        stem: Patch embedding, a key of `STEMS` (table 3 of the supplement).
        stem_width: Number of channels between the convolutions of the stem.
        aux_head: Whether there is a second classifier, for the patch tokens. Use False if it will not be trained.
        aux_weight: Factor of the largest logits over the patch tokens, which are added to the class logits. Published:
            0.5. With 0, `aux_head` gets gradients only from `dense_logits`, not in plain classification.
    """

    relevance_family = "lvvit"
    undecayed_names = ("cls_token", "pos_embed")

    def __init__(  # noqa: PLR0913 (timm's builder passes plain arguments)
        self,
        *,
        img_size: int | Size = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        embed_dim: int = 384,
        depth: int = 16,
        num_heads: int = 6,
        mlp_ratio: float = 3.0,
        qkv_bias: bool = False,
        skip_lam: float = 2.0,
        stem: str = "4_conv",
        stem_width: int = 64,
        aux_head: bool = True,
        aux_weight: float = 0.5,
        dynamic_img_size: bool = False,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        require_valid_sizes(embed_dim, depth, num_heads, mlp_ratio)
        if not skip_lam > 0:
            raise ValueError(f"skip_lam is {skip_lam}, the divisor of residual branches; it must be above 0")
        if not 0 <= aux_weight < float("inf"):
            raise ValueError(f"aux_weight is {aux_weight}; it must be finite and at least 0 (published: 0.5)")
        super().__init__(
            num_classes=num_classes,
            in_chans=in_chans,
            embed_dim=embed_dim,
            depth=depth,
            reduction=patch_size,
            global_pool=global_pool,
            drop_rate=drop_rate,
        )
        self.aux_weight = aux_weight
        self.dynamic_img_size = dynamic_img_size
        self.patch_embed = LvVitStem(img_size, patch_size, in_chans, embed_dim, stem, stem_width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + self.patch_embed.num_patches, embed_dim))
        rates: list[float] = calculate_drop_path_rates(drop_path_rate, depth)  # type: ignore[assignment]
        self.blocks = nn.ModuleList(
            LvVitBlock(embed_dim, num_heads, mlp_ratio, qkv_bias, skip_lam, proj_drop_rate, attn_drop_rate, rate)
            for rate in rates
        )
        self.norm = nn.LayerNorm(embed_dim)
        self.aux_head = new_classifier(embed_dim, num_classes) if aux_head else None
        self.blocks.apply(init_linear)
        trunc_normal_(self.cls_token, std=0.02)
        trunc_normal_(self.pos_embed, std=0.02)

    def embed(self, x: Tensor, mix_box: Box | None = None) -> tuple[Tensor, Grid]:
        """Return the tokens (B, 1 + H * W, C) of images, including positions, and the (rows, columns) of their grid.

        With `mix_box`, patch tokens are exchanged between images before the positions are added. `exchange_tokens`
        moves predictions for the exchanged tokens back to their images.
        """
        cells = self.patch_embed(x)
        if mix_box is not None:
            cells = exchange_box(cells, mix_box)
        grid = (cells.shape[2], cells.shape[3])
        tokens = torch.cat((self.cls_token.expand(cells.shape[0], -1, -1), to_tokens(cells)), 1)
        return self.add_positions(tokens, grid), grid

    def forward_features(self, x: Tensor, mix_box: Box | None = None) -> Tensor:  # type: ignore[override]
        """Return the tokens (B, 1 + H * W, C) after the final norm; with `mix_box`, they contain exchanged tokens."""
        return super().forward_features(x, mix_box=mix_box)

    def dense_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return class logits (B, K) and token logits (B, H * W, K) from the output of `forward_features`.

        These logits are used in token labeling. Tokens that MixToken exchanged are not moved back.
        """
        if self.aux_head is None or self.num_classes < 1:
            raise ValueError(
                "the model has no classifier of tokens: build it with aux_head=True and num_classes above 0"
            )
        return super().forward_head(x), self._token_logits(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return (B, K) logits: class logits + aux_weight * the largest token logits over the patch tokens.

        With `pre_logits`, return the pooled features instead. Without pooling, return the class logits of every token.
        """
        logits = super().forward_head(x, pre_logits)
        if pre_logits or self.aux_head is None or not (self.num_classes and self.aux_weight and self.global_pool):
            return logits
        # `max` keeps only indices for the backward pass; `amax` would keep all token logits.
        return logits + self.aux_weight * self._token_logits(x).max(1).values

    def get_classifier(self) -> nn.Module | tuple[nn.Module, ...]:
        """Return the class classifier and the token classifier; only the class classifier if there is no `aux_head`."""
        return self.head if self.aux_head is None else (self.head, self.aux_head)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace both classifiers by new ones with random weights; set `global_pool` if given."""
        super().reset_classifier(num_classes, global_pool)
        if self.aux_head is not None:
            self.aux_head = match_model(self, new_classifier(self.num_features, num_classes))

    def _token_logits(self, x: Tensor) -> Tensor:
        assert self.aux_head is not None
        return self.aux_head(self.head_drop(x[:, self.num_prefix_tokens :]))


def checkpoint_filter_fn(state: Mapping[str, Tensor], model: LvVit) -> dict[str, Tensor]:
    """Resample the position embedding of a checkpoint for square images of another size."""
    return fit_position_embedding(state, model.pos_embed, model.patch_embed.grid_size)


_BOTH_CLASSIFIERS = ("head", "aux_head")
_cfg = partial(make_default_cfg, "patch_embed.conv1", fixed_input_size=True)
default_cfgs = generate_default_cfgs(
    {
        **dict.fromkeys(("lvvit_t", "lvvit_s"), _cfg(_BOTH_CLASSIFIERS)),
        **dict.fromkeys(("lvvit_m", "lvvit_l"), _cfg(_BOTH_CLASSIFIERS, crop_pct=1.0)),
        "lvvit_s_plain": _cfg(),
        "lvvit_vit_s": make_default_cfg("patch_embed.proj", fixed_input_size=True),
    }
)
_SMALL = {"embed_dim": 384, "depth": 16, "num_heads": 6}
_VARIANTS: dict[str, dict[str, Any]] = {
    "lvvit_t": {"embed_dim": 240, "depth": 12, "num_heads": 4, "skip_lam": 1.0},  # 8.5M parameters
    "lvvit_s": {**_SMALL, "skip_lam": 2.0},  # 26.2M parameters
    "lvvit_m": {"embed_dim": 512, "depth": 20, "num_heads": 8, "skip_lam": 2.0},  # 55.8M parameters
    # 150.0M parameters.
    "lvvit_l": {"embed_dim": 768, "depth": 24, "num_heads": 12, "skip_lam": 3.0, "stem_width": 128},
    # Without the classifier of tokens (`lvvit` in the published code), 25.8M parameters.
    "lvvit_s_plain": {**_SMALL, "skip_lam": 2.0, "aux_head": False},
    # The plain transformer from which LV-ViT-S was developed (`vit` in the published code), 24.4M parameters.
    "lvvit_vit_s": {**_SMALL, "skip_lam": 1.0, "stem": "1_conv", "aux_head": False},
}


def _config_changes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if arguments.get("stem") in STEMS:  # the model raises an error for other values
        changes["first_conv"] = "patch_embed.conv1" if STEMS[arguments["stem"]].hidden else "patch_embed.proj"
    if "aux_head" in arguments:
        changes["classifier"] = _BOTH_CLASSIFIERS if arguments["aux_head"] else "head"
    return changes


register_variants(__name__, "LV-ViT (Jiang et al. 2021)", LvVit, _VARIANTS, checkpoint_filter_fn, 3, _config_changes)
