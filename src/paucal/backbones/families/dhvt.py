"""DHVT, the dynamic hybrid vision transformer (Lu et al., NeurIPS 2022, arXiv:2210.05958).

A ViT for training from scratch on few images: overlapping convolutions embed the patches, attention has an additional
token per head, and the feed-forward network mixes neighbouring patch tokens by convolutions. There is
no position embedding, since the zero padding of the convolutions makes positions distinguishable. Each of these parts
can be switched off (`DhvtParts`).

Tensors have the names of the published code, for which no weights were published. The variants have the published
names, widths and numbers of heads (the supplement's Table 11). Variants are built without drop-path unless
`drop_path_rate` is passed (published: 0.1 for all variants). Images are always normalised with ImageNet's statistics,
as published.

`dhvt_mini` is not from the paper. This variant has the width and depth of `vit_mini`, for small images and short runs.

The published code also registers DHVTs under DeiT's names; here, these names belong to timm's DeiTs. The published code
cannot build the plain transformers with which the paper compares DHVT; `vit` defines these transformers
(`vit_*_cifar_*`).
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from timm.layers.config import use_fused_attn
from timm.layers.drop import DropPath, calculate_drop_path_rates
from timm.layers.norm import LayerNorm2d
from timm.layers.patch_embed import PatchEmbed
from timm.models import generate_default_cfgs
from torch import Tensor, nn

from paucal.backbones.attention_layout import AttentionLayout
from paucal.backbones.families.common.attention import attend, join_heads, split_heads
from paucal.backbones.families.common.contract import (
    init_linear,
    init_table,
    make_default_cfg,
    register_variants,
    to_tokens,
)
from paucal.backbones.families.common.positions import Size, fit_position_embedding
from paucal.backbones.families.common.tokens import Grid, TokenBackbone, require_whole_patches
from paucal.types import height_and_width

Norm = Literal["batch", "layer"]
LocalMixing = Literal["conv", "pool", "none"]
GatedTokens = Literal["cls", "all", "none"]
SOPE_PATCHES = (2, 4, 8, 16)  # supported sides of patches in pixels
GATE_REDUCTION = 4  # factor by which the first of the gate's two layers reduces the channels, in all the paper's models
EPS = 1e-6  # epsilon of the blocks' norms and of the final norm


@dataclass(frozen=True)
class DhvtParts:
    """The options of a DHVT, all of JSON types. The defaults give the paper's model.

    With `sope`, `daff` and `head_tokens` False and `abs_pos` True, the model is the plain ViT with which the paper
    compares, with timm's tensor names. `studies/published/dhvt.yaml` lists the options for each published result.

    Attributes:
        sope: Whether patches are embedded by SOPE, the sequential overlapping patch embedding (3x3 convolutions with
            stride 2); False for a linear projection per patch.
        sope_norm: Norm after each convolution of SOPE, "batch" or "layer".
        pre_affine: Whether the image's channels are scaled and shifted before the convolutions of SOPE.
        post_affine: Whether the tokens' channels are scaled and shifted after the convolutions of SOPE.
        head_tokens: Whether each attention layer adds a token per head to the sequence.
        abs_pos: Whether a learned position embedding is added to the tokens. Then all images must have the same size,
            unless `dynamic_img_size` is set.
        daff: Whether blocks have the dynamic aggregation feed-forward (convolutions and norms); False for the two
            linear layers of a ViT. `local` and the options after `local` apply in both cases; None means the
            value of DAFF or of a ViT.
        daff_norm: Norm after each convolution of DAFF, "batch" or "layer".
        local: How neighbouring patch tokens are mixed between the two layers: "conv" for a depth-wise 3x3 convolution,
            "pool" for the mean over 3x3 tokens (with zero padding, as in a convolution with equal weights), "none" for
            no mixing.
        shortcut: Whether the input of the mixing is added to its output.
        split_cls: Whether the class token bypasses the layers. Then the block adds the normalised class token to the
            class token, as in the published code but not mentioned in the paper.
        aggregate: Tokens that are multiplied by a gate: "cls" for the class token, "all" for all tokens, "none" for no
            tokens. The gate is computed by two linear layers, without a sigmoid, from the mean of the output patch
            tokens.
    """

    sope: bool = True
    sope_norm: Norm = "batch"
    pre_affine: bool = True
    post_affine: bool = True
    head_tokens: bool = True
    abs_pos: bool = False
    daff: bool = True
    daff_norm: Norm = "batch"
    local: LocalMixing | None = None
    shortcut: bool | None = None
    split_cls: bool | None = None
    aggregate: GatedTokens | None = None

    def __post_init__(self) -> None:
        choices = {
            **dict.fromkeys(("sope_norm", "daff_norm"), get_args(Norm)),
            "local": (*get_args(LocalMixing), None),
            "aggregate": (*get_args(GatedTokens), None),
            **dict.fromkeys(("sope", "pre_affine", "post_affine", "head_tokens", "abs_pos", "daff"), (True, False)),
            **dict.fromkeys(("shortcut", "split_cls"), (True, False, None)),
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            # 0 and 1 are equal to False and True, but not allowed.
            if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in allowed):
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}")

    def feed_forward_options(self) -> dict[str, Any]:
        """Return `local`, `shortcut`, `split_cls` and `aggregate` with None replaced by the default."""
        defaults = {"local": "conv", "shortcut": True, "split_cls": True, "aggregate": "cls"}
        if not self.daff:
            defaults = {"local": "none", "shortcut": False, "split_cls": False, "aggregate": "none"}
        options = {name: getattr(self, name) for name in defaults}
        return {name: defaults[name] if value is None else value for name, value in options.items()}


def build_map_norm(kind: Norm, channels: int) -> nn.Module:
    """Return a norm for maps (B, C, H, W): a batch norm, or a layer norm over the channels of each position."""
    return nn.BatchNorm2d(channels) if kind == "batch" else LayerNorm2d(channels)


class Affine(nn.Module):
    """A learned scale and shift of each channel of a map, initially 1 and 0 (the supplement's section 1.2).

    The published code applies weight decay to scale and shift; here, `Dhvt.no_weight_decay` excludes them.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.beta = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return alpha * x + beta, (B, C, H, W)."""
        return x * self.alpha + self.beta


class Sope(nn.Module):
    """The sequential overlapping patch embedding: 3x3 convolutions with stride 2 and norms, between two affine layers.

    For patches of 2^n pixels there are n convolutions, each with twice the channels of the previous convolution, up to
    `embed_dim`. A GELU follows each convolution except the last; for patches of 2 pixels, a GELU follows the only
    convolution. A side of s pixels gives ceil(s / patch_size) patches.

    The paper has patches of 2, 4 and 16 pixels; patches of 8 pixels follow the same rule. In the paper's pseudo-code,
    the convolutions have a bias; in the published code and here, they have none. The published code uses synchronised
    batch norms; here, Lightning (`sync_batchnorm`) or torch can convert the norms.

    `img_size` is only used to compute `grid_size`; images of other sizes are also accepted.
    """

    def __init__(self, img_size: Size, patch_size: int, in_chans: int, embed_dim: int, parts: DhvtParts) -> None:
        super().__init__()
        if patch_size not in SOPE_PATCHES:
            raise ValueError(
                f"patch_size is {patch_size!r}; with SOPE it must be one of {SOPE_PATCHES}: change it or use sope=False"
            )
        if embed_dim % (patch_size // 2):
            raise ValueError(
                f"embed_dim is {embed_dim}; SOPE with patch_size {patch_size} needs a multiple of {patch_size // 2}"
            )
        self.patch_size = patch_size
        self.set_input_size(img_size)
        units = int(math.log2(patch_size))
        widths = [in_chans, *(embed_dim >> (units - 1 - unit) for unit in range(units))]
        layers: list[nn.Module] = []
        for in_width, out_width in itertools.pairwise(widths):
            convolution = nn.Conv2d(in_width, out_width, 3, stride=2, padding=1, bias=False)
            layers += [nn.Sequential(convolution, build_map_norm(parts.sope_norm, out_width)), nn.GELU()]
        self.proj = nn.Sequential(*(layers if units == 1 else layers[:-1]))
        self.pre_affine = Affine(in_chans) if parts.pre_affine else nn.Identity()
        self.post_affine = Affine(embed_dim) if parts.post_affine else nn.Identity()

    def set_input_size(self, img_size: Size) -> None:
        """Set the image size for which `grid_size` is computed."""
        self.img_size = img_size
        self.grid_size = (-(-img_size[0] // self.patch_size), -(-img_size[1] // self.patch_size))

    def forward(self, x: Tensor) -> Tensor:
        """Return the map (B, embed_dim, ceil(H / patch_size), ceil(W / patch_size)) for images (B, in_chans, H, W)."""
        return self.post_affine(self.proj(self.pre_affine(x)))


class HeadInteractedAttention(nn.Module):
    """Self-attention with an additional token per head (the supplement's section 1.3).

    A head token is computed from the head's channels of the mean token. Head tokens are appended to the sequence in the
    order of the heads, so the weights in `recorded_attention` are over (class token, patch tokens, head tokens). At the
    end of the layer, the mean output of the head tokens is added to the class token, and the head tokens are dropped.

    In the published pseudo-code, the position embeddings of head tokens are initially 0. Here they are random, as in
    the published code. The published code applies weight decay to these embeddings; here, `Dhvt.no_weight_decay`
    excludes them. Without `head_tokens`, this is the plain attention of a ViT.
    """

    attention_layout = AttentionLayout(
        suffix=lambda layer: tuple(f"head {n}" for n in range(1, layer.num_heads + 1)) if layer.head_tokens else ()
    )

    def __init__(
        self,
        dim: int,
        num_heads: int,
        qkv_bias: bool = True,
        head_tokens: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        width = dim // num_heads
        self.scale = width**-0.5
        self.fused_attn = bool(use_fused_attn())
        self.head_tokens = head_tokens
        if head_tokens:
            self.pos_embed = nn.Parameter(torch.zeros(1, num_heads, dim))
            init_table(self.pos_embed)
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        if head_tokens:
            self.act = nn.GELU()
            self.ht_proj = nn.Linear(width, dim)
            self.ht_norm = nn.LayerNorm(width)  # with torch's default epsilon of 1e-5, as published

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to tokens (B, 1 + N, C), the class token first; the shape stays the same."""
        count = x.shape[1]
        if self.head_tokens:
            x = torch.cat((x, self.to_head_tokens(x)), 1)
        query, key, value = split_heads(self.qkv(x), 3, self.num_heads)
        x = attend(query, key, value, None, self.scale, self.fused_attn, self.attn_drop)
        x = self.proj(join_heads(x))
        if self.head_tokens:
            class_token, cells, heads = x.split((1, count - 1, self.num_heads), 1)
            x = torch.cat((class_token + heads.mean(1, keepdim=True), cells), 1)
        return self.proj_drop(x)

    def to_head_tokens(self, x: Tensor) -> Tensor:
        """Return the head tokens (B, heads, C) for tokens (B, 1 + N, C)."""
        batch, _, channels = x.shape
        heads = x.mean(1).reshape(batch, self.num_heads, -1)
        heads = self.ht_proj(heads).reshape(batch, self.num_heads, self.num_heads, -1)
        return self.act(self.ht_norm(heads)).reshape(batch, self.num_heads, channels) + self.pos_embed


def as_map(tokens: Tensor, grid: Grid) -> Tensor:
    """Return a view of tokens (B, H * W, C) as a map (B, C, H, W) in channels-last format."""
    # Reshape before permuting the axes, since torch would otherwise not recognise a single image as channels-last.
    return tokens.reshape(tokens.shape[0], *grid, tokens.shape[2]).permute(0, 3, 1, 2)


def build_local_mixing(kind: LocalMixing, channels: int) -> nn.Module | None:
    """Return a layer that mixes the 3x3 neighbourhood of each position in each channel; None for "none"."""
    if kind == "conv":
        return nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
    return nn.AvgPool2d(3, stride=1, padding=1) if kind == "pool" else None


class FeedForward(nn.Module):
    """The base class of feed-forward networks, which contains the bypass for the class token and the gate.

    Subclasses define the layers in `_transform` and `_mix`. The published code has the argument `drop` for DAFF, but
    ignores it.
    """

    def __init__(self, dim: int, parts: DhvtParts, drop: float) -> None:
        super().__init__()
        options = parts.feed_forward_options()
        self.split_cls, self.shortcut, self.aggregate = options["split_cls"], options["shortcut"], options["aggregate"]
        self.act = nn.GELU()
        self.drop = nn.Dropout(drop)
        if self.aggregate != "none":
            self.compress = nn.Linear(dim, dim // GATE_REDUCTION)
            self.excitation = nn.Linear(dim // GATE_REDUCTION, dim)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Apply the network to (B, 1 + H * W, C) tokens: the class token and the patch tokens of a grid (H, W)."""
        # `split` is used, since the gradients of separate slices would have to be added.
        counts = (1, x.shape[1] - 1)
        if self.split_cls:
            class_token, cells = x.split(counts, 1)
            cells = self._transform(cells, grid)
        elif self.aggregate == "none":
            return self.drop(self._transform(x, grid))
        else:
            class_token, cells = self._transform(x, grid).split(counts, 1)
        if self.aggregate != "none":
            gate = self.excitation(self.act(self.compress(cells.mean(1, keepdim=True))))
            class_token = class_token * gate
            cells = cells * gate if self.aggregate == "all" else cells
        return self.drop(torch.cat((class_token, cells), 1))

    def _transform(self, x: Tensor, grid: Grid) -> Tensor:
        """Apply the layers to the patch tokens, or to the class token and the patch tokens."""
        raise NotImplementedError

    def _mix_patch_tokens(self, x: Tensor, grid: Grid) -> Tensor:
        """Mix neighbouring patch tokens in the MLP's hidden features; a class token is not changed.

        The features have the shape (B, hidden, H, W) or, with a class token, (B, hidden, 1 + H * W, 1).
        """
        if self.split_cls:
            return self._mix(x)
        cells = self._mix(x[:, :, 1:, 0].unflatten(2, grid))
        return torch.cat((x[:, :, :1], cells.flatten(2).unsqueeze(3)), 2)

    def _mix(self, x: Tensor) -> Tensor:
        """Mix neighbouring positions of the MLP's hidden features (B, hidden, H, W); if `shortcut`, add the input."""
        raise NotImplementedError


class Daff(FeedForward):
    """The dynamic aggregation feed-forward (the supplement's section 1.1).

    DAFF has a 1x1, a depth-wise 3x3 and a 1x1 convolution, each with a norm, and a residual connection around the
    second convolution. The class token bypasses the convolutions and is multiplied by a gate, the output of two linear
    layers for the mean of the output patch tokens. There is no sigmoid, so the gate is near 0 at first, and the block
    then adds almost nothing to the class token.

    The biases of the convolutions before a batch norm have no effect in training, and their gradients are 0 up to
    rounding.
    """

    def __init__(self, dim: int, hidden: int, parts: DhvtParts, drop: float = 0.0) -> None:
        super().__init__(dim, parts, drop)
        self.conv1 = nn.Conv2d(dim, hidden, 1)
        self.bn1 = build_map_norm(parts.daff_norm, hidden)
        self.conv2 = build_local_mixing(parts.feed_forward_options()["local"], hidden)
        self.bn2 = None if self.conv2 is None else build_map_norm(parts.daff_norm, hidden)
        self.conv3 = nn.Conv2d(hidden, dim, 1)
        self.bn3 = build_map_norm(parts.daff_norm, dim)

    def _transform(self, x: Tensor, grid: Grid) -> Tensor:
        x = as_map(x, grid if self.split_cls else (x.shape[1], 1))
        x = self._mix_patch_tokens(self.act(self.bn1(self.conv1(x))), grid)
        return to_tokens(self.bn3(self.conv3(x)))

    def _mix(self, x: Tensor) -> Tensor:
        if self.conv2 is None or self.bn2 is None:
            return x
        mixed = self.act(self.bn2(self.conv2(x)))
        # Add in place, since this is the model's largest tensor, and no backward pass needs the activation's output.
        return mixed.add_(x) if self.shortcut else mixed


class PlainFeedForward(FeedForward):
    """The two linear layers of a ViT, optionally with the operations of DAFF that the supplement's Table 2 adds."""

    def __init__(self, dim: int, hidden: int, parts: DhvtParts, drop: float = 0.0) -> None:
        super().__init__(dim, parts, drop)
        self.fc1 = nn.Linear(dim, hidden)
        self.local = build_local_mixing(parts.feed_forward_options()["local"], hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def _transform(self, x: Tensor, grid: Grid) -> Tensor:
        x = self.drop(self.act(self.fc1(x)))
        if self.local is not None:
            cells = as_map(x, grid if self.split_cls else (x.shape[1], 1))
            x = to_tokens(self._mix_patch_tokens(cells, grid))
        return self.fc2(x)

    def _mix(self, x: Tensor) -> Tensor:
        mixed = x if self.local is None else self.local(x)
        return x + mixed if self.shortcut else mixed


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

    With SOPE, patches have sides of 2, 4, 8 or 16 pixels. The options of `DhvtParts` are arguments too.
    """

    relevance_family = "dhvt"
    # In the published code, the position embeddings of head tokens and the affine layers have weight decay, which moves
    # the scale of the affine layers from 1 towards 0.
    undecayed_names = ("cls_token", "pos_embed", "affine.alpha", "affine.beta")

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
        size = _as_pair(img_size)
        if options.sope:
            self.patch_embed = Sope(size, patch_size, in_chans, embed_dim, options)
        else:
            require_whole_patches(size, patch_size)
            self.patch_embed = PatchEmbed(size, patch_size, in_chans, embed_dim, flatten=False, strict_img_size=False)
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
        # As published: truncated normal for linear layers and tokens, torch's default for other layers.
        self.apply(init_linear)
        for table in (self.cls_token, self.pos_embed):
            if table is not None:
                init_table(table)

    def embed(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Return the tokens (B, 1 + H * W, C) of images, the class token first, and their grid."""
        if isinstance(self.patch_embed, PatchEmbed):
            require_whole_patches((x.shape[2], x.shape[3]), self.reduction)
        x = self.patch_embed(x)
        grid = (x.shape[2], x.shape[3])
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), to_tokens(x)), 1)
        return self.add_positions(x, grid), grid

    def set_input_size(self, img_size: int | Size) -> None:
        """Prepare the model for another image size in pixels; a position embedding is resampled in place."""
        size = _as_pair(img_size)
        if isinstance(self.patch_embed, PatchEmbed):
            require_whole_patches(size, self.reduction)
        super().set_input_size(size)


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


_TINY, _SMALL = {"embed_dim": 192}, {"embed_dim": 384}
_PATCH4, _PATCH2 = {"img_size": 32, "patch_size": 4}, {"img_size": 32, "patch_size": 2}
# The numbers of parameters include the classifier for each variant's number of classes.
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
_SMALL_IMAGES: dict[str, Any] = {"input_size": (3, 32, 32), "crop_pct": 1.0}
_cfg = partial(make_default_cfg, "patch_embed.proj.0.0")
# The keys are parts of the variants' names.
_CFGS = {
    "_mini": _cfg(**_SMALL_IMAGES),
    "_cifar_": _cfg(num_classes=100, **_SMALL_IMAGES),
    "_domain_": _cfg(num_classes=345, crop_pct=0.875),
    "_imagenet_": _cfg(crop_pct=0.875),
}
default_cfgs = generate_default_cfgs({name: cfg for name in _VARIANTS for part, cfg in _CFGS.items() if part in name})


def _config_changes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"first_conv": "patch_embed.proj"} if arguments.get("sope") is False else {}


register_variants(__name__, "DHVT (Lu et al. 2022)", Dhvt, _VARIANTS, checkpoint_filter_fn, 3, _config_changes)
