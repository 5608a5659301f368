"""DHVT, the dynamic hybrid vision transformer (Lu et al., NeurIPS 2022, arXiv:2210.05958).

A ViT for training from scratch on few images: overlapping convolutions embed the patches, attention has an additional
token per head, and the feed-forward network mixes neighbouring patch tokens by convolutions (`dhvt_layers`). There is
no position embedding, since the zero padding of the convolutions makes positions distinguishable. Each of these parts
can be switched off (`DhvtParts`).

Tensors have the names of the published code, for which no weights were published. The variants have the published
names, widths and numbers of heads (the supplement's Table 11). Variants are built without drop-path unless
`drop_path_rate` is passed (published: 0.1 for all variants). Images are always normalised with ImageNet's statistics,
as published.

`dhvt_mini` is not from the paper. This variant has the width and depth of `vit_mini`, for small images and short runs.

The published code also registers DHVTs under DeiT's names; here, these names belong to timm's DeiTs. The published code
cannot build the plain transformers with which the paper compares DHVT; `vit_cifar` defines these transformers.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from timm.layers.drop import DropPath, calculate_drop_path_rates
from timm.layers.patch_embed import PatchEmbed
from timm.models import generate_default_cfgs
from torch import Tensor, nn

from paucal.backbones.families.common.contract import (
    init_linear,
    init_table,
    make_default_cfg,
    recompute,
    register_variants,
    to_tokens,
)
from paucal.backbones.families.common.positions import (
    Size,
    fit_position_embedding,
    record_input_size,
    resample_positions,
)
from paucal.backbones.families.common.tokens import Grid, TokenBackbone
from paucal.backbones.families.dhvt_layers import Daff, DhvtParts, HeadInteractedAttention, PlainFeedForward, Sope
from paucal.types import height_and_width

PAPER = "DHVT (Lu et al. 2022)"  # in the table of models

EPS = 1e-6  # epsilon of the blocks' norms and of the final norm


class DhvtBlock(nn.Module):
    """Attention and a feed-forward network, each after a norm and with a residual connection."""

    def __init__(self, dim: int, attn: HeadInteractedAttention, mlp: Daff | PlainFeedForward, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=EPS)
        self.attn = attn
        self.norm2 = nn.LayerNorm(dim, eps=EPS)
        self.mlp = mlp
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Apply the block to (B, 1 + H * W, C) tokens: the class token and the patch tokens of a grid (H, W)."""
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x), grid))


class Dhvt(TokenBackbone):
    """A DHVT: overlapping patch embedding, then blocks with head-interacted attention and dynamic aggregation.

    Images may have any size and need not be square, as in the published code: a side of s pixels gives
    ceil(s / patch_size) patches. Without SOPE (`sope=False`), sides must be multiples of the patch size. With a
    position embedding (`abs_pos=True`), images must have the size `img_size`, unless `dynamic_img_size` is set.

    With `global_pool="avg"`, the final class token is not used, so the gate of the last block gets no gradient.

    Args:
        img_size: Side, or (height, width), of the images in pixels.
        patch_size: Side of a patch in pixels: 2, 4, 8 or 16 with SOPE.
        global_pool: Input of the classifier: "token" for the class token, "avg" for the mean of the patch tokens, ""
            for all tokens.
        drop_path_rate: Probability that a residual branch of the last block is skipped in training; the probability
            rises linearly from 0 at the first block. Published: 0.1.
        dynamic_img_size: Whether to resample the position embedding to the grid of each batch.
        parts: Options of `DhvtParts`.

    Raises:
        ValueError: sizes are not compatible, or an option has an unknown value.
        TypeError: an option does not exist.
    """

    relevance_family = "dhvt"

    def __init__(  # noqa: PLR0913 (timm's models take plain arguments)
        self,
        *,
        img_size: int | Size = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        embed_dim: int = 192,
        depth: int = 12,
        num_heads: int = 3,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        dynamic_img_size: bool = False,
        **parts: Any,
    ) -> None:
        super().__init__(
            num_classes=num_classes,
            in_chans=in_chans,
            embed_dim=embed_dim,
            depth=depth,
            reduction=patch_size,
            global_pool=global_pool,
            drop_rate=drop_rate,
        )
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(
                f"num_heads is {num_heads}; embed_dim, which is {embed_dim}, must be a multiple of num_heads"
            )
        options = DhvtParts(**parts)
        self.dynamic_img_size = dynamic_img_size
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.patch_embed = _build_patch_stem(_as_pair(img_size), patch_size, in_chans, embed_dim, options)
        cells = self.patch_embed.grid_size[0] * self.patch_embed.grid_size[1]  # type: ignore[index]
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + cells, embed_dim)) if options.abs_pos else None
        rates: list[float] = calculate_drop_path_rates(drop_path_rate, depth)  # type: ignore[assignment]
        feed_forward, hidden = Daff if options.daff else PlainFeedForward, int(embed_dim * mlp_ratio)
        attention = (embed_dim, num_heads, qkv_bias, options.head_tokens, attn_drop_rate, proj_drop_rate)
        self.blocks = nn.ModuleList(
            DhvtBlock(
                embed_dim,
                HeadInteractedAttention(*attention),
                feed_forward(embed_dim, hidden, options, proj_drop_rate),
                rate,
            )
            for rate in rates
        )
        self.norm = nn.LayerNorm(embed_dim, eps=EPS)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialise as published: truncated normal for linear layers and tokens, torch's default for other layers."""
        self.apply(init_linear)
        for table in (self.cls_token, self.pos_embed):
            if table is not None:
                init_table(table)

    def embed(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Return the tokens (B, 1 + H * W, C) of images, the class token first, and their grid."""
        self._require_whole_patches((x.shape[2], x.shape[3]))
        x = self.patch_embed(x)
        grid = (x.shape[2], x.shape[3])
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), to_tokens(x)), 1)
        return (x if self.pos_embed is None else x + self._positions(self.pos_embed, grid)), grid

    def run_block(self, block: nn.Module, x: Tensor, grid: Grid) -> Tensor:
        """Apply a block; use gradient checkpointing if `grad_checkpointing` is set."""
        return recompute(block, x, grid) if self.grad_checkpointing and self.training else block(x, grid)

    def set_input_size(self, img_size: int | Size) -> None:
        """Prepare the model for another image size; the position embedding, if there is one, is resampled."""
        size, old_grid = _as_pair(img_size), self.patch_embed.grid_size
        self._require_whole_patches(size)
        self.patch_embed.set_input_size(size)
        if self.pos_embed is not None:
            table = resample_positions(self.pos_embed.detach(), old_grid, self.patch_embed.grid_size)
            self.pos_embed = nn.Parameter(table.clone(), requires_grad=self.pos_embed.requires_grad)
        record_input_size(self, size)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay: class token, position embeddings and affine layers.

        The published code applies weight decay to the position embeddings of head tokens and to affine layers, which
        moves the scale of the affine layers from 1 towards 0.
        """
        ends = ("cls_token", "pos_embed", "affine.alpha", "affine.beta")
        return {name for name, _ in self.named_parameters() if name.endswith(ends)}

    def _require_whole_patches(self, size: Size) -> None:
        if isinstance(self.patch_embed, PatchEmbed):
            _require_multiples(size, self.reduction)

    def _positions(self, table: Tensor, grid: Grid) -> Tensor:
        built_grid = self.patch_embed.grid_size
        if grid == built_grid:
            return table
        if not self.dynamic_img_size:
            raise ValueError(
                f"the position embedding is for a grid of {built_grid} patches, but the images have {grid}: set "
                "img_size, call set_input_size, or use dynamic_img_size=True"
            )
        return resample_positions(table, built_grid, grid)


def _build_patch_stem(size: Size, patch: int, in_chans: int, embed_dim: int, parts: DhvtParts) -> Sope | PatchEmbed:
    if parts.sope:
        return Sope(size, patch, in_chans, embed_dim, parts)
    _require_multiples(size, patch)
    return PatchEmbed(size, patch, in_chans, embed_dim, flatten=False, strict_img_size=False)


def _require_multiples(size: Size, patch: int) -> None:
    if size[0] % patch or size[1] % patch:
        raise ValueError(
            f"images have {size[0]}x{size[1]} pixels; both sides must be multiples of the patch of {patch} pixels"
        )


def _as_pair(img_size: int | Sequence[int]) -> Size:
    sides = height_and_width(img_size)
    if any(not isinstance(side, int) or side < 1 for side in sides):
        raise ValueError(f"img_size is {img_size!r}; give a side, or (height, width), in whole pixels")
    return sides


def checkpoint_filter_fn(state: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Adapt a state dict to a model with another image size or number of image channels.

    A position embedding is resampled, and the affine layer before the convolutions gets the mean over the channels.
    (timm's functions adapt the first convolution.) All other tensors stay unchanged.
    """
    fitted: dict[str, Any] = dict(state)
    channels, table = getattr(model, "in_chans", None), getattr(model, "pos_embed", None)
    for name in ("patch_embed.pre_affine.alpha", "patch_embed.pre_affine.beta"):
        value = fitted.get(name)
        if isinstance(value, Tensor) and value.ndim == 4 and channels and value.shape[1] != channels:
            fitted[name] = value.mean(1, keepdim=True).repeat(1, channels, 1, 1)
    if table is None or not isinstance(fitted.get("pos_embed"), Tensor):
        return fitted
    return fit_position_embedding(fitted, table, model.patch_embed.grid_size)  # type: ignore[union-attr]


# Constructor arguments (`_TINY` to `_PATCH2`) and timm configurations (`_CIFAR_CONFIG` and `_LARGE_IMAGE_CONFIG`).
_TINY, _SMALL = {"embed_dim": 192}, {"embed_dim": 384}
_PATCH4, _PATCH2 = {"img_size": 32, "patch_size": 4}, {"img_size": 32, "patch_size": 2}
_CIFAR_CONFIG: dict[str, Any] = {"num_classes": 100, "input_size": (3, 32, 32), "crop_pct": 1.0}
_LARGE_IMAGE_CONFIG: dict[str, Any] = {"crop_pct": 0.875}
_cfg = partial(make_default_cfg, "patch_embed.proj.0.0")
default_cfgs = generate_default_cfgs(
    {
        "dhvt_mini": _cfg(**{**_CIFAR_CONFIG, "num_classes": 1000}),
        "dhvt_tiny_cifar_patch4": _cfg(**_CIFAR_CONFIG),
        "dhvt_small_cifar_patch4": _cfg(**_CIFAR_CONFIG),
        "dhvt_tiny_cifar_patch2": _cfg(**_CIFAR_CONFIG),
        "dhvt_small_cifar_patch2": _cfg(**_CIFAR_CONFIG),
        "dhvt_tiny_domain_patch16": _cfg(num_classes=345, **_LARGE_IMAGE_CONFIG),
        "dhvt_small_domain_patch16": _cfg(num_classes=345, **_LARGE_IMAGE_CONFIG),
        "dhvt_tiny_imagenet_patch16": _cfg(**_LARGE_IMAGE_CONFIG),
        "dhvt_small_imagenet_patch16": _cfg(**_LARGE_IMAGE_CONFIG),
    }
)


# Parameters are counted with the classes of each variant.
_VARIANTS: dict[str, dict[str, Any]] = {
    "dhvt_mini": {"embed_dim": 128, "depth": 6, **_PATCH4, "num_heads": 4},  # 1.5M parameters
    "dhvt_tiny_cifar_patch4": {**_TINY, **_PATCH4, "num_heads": 4},  # 6.0M parameters
    "dhvt_small_cifar_patch4": {**_SMALL, **_PATCH4, "num_heads": 8},  # 23.4M parameters
    "dhvt_tiny_cifar_patch2": {**_TINY, **_PATCH2, "num_heads": 4},  # 5.8M parameters
    "dhvt_small_cifar_patch2": {**_SMALL, **_PATCH2, "num_heads": 8},  # 22.8M parameters
    # Trained from scratch on DomainNet. The tiny model has 4 heads and cannot use all weights of the ImageNet model,
    # which has 3 heads.
    "dhvt_tiny_domain_patch16": {**_TINY, "patch_size": 16, "num_heads": 4},  # 6.1M parameters
    "dhvt_small_domain_patch16": {**_SMALL, "patch_size": 16, "num_heads": 6},  # 23.8M parameters
    # Trained on ImageNet, then fine-tuned on other data.
    "dhvt_tiny_imagenet_patch16": {**_TINY, "patch_size": 16, "num_heads": 3},  # 6.3M parameters
    "dhvt_small_imagenet_patch16": {**_SMALL, "patch_size": 16, "num_heads": 6},  # 24.0M parameters
}


def _config_changes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"first_conv": "patch_embed.proj"} if arguments.get("sope") is False else {}


register_variants(__name__, Dhvt, _VARIANTS, checkpoint_filter_fn, 3, _config_changes)
