"""CvT, the convolutional vision transformer (Wu et al., ICCV 2021, arXiv:2103.15808), as its authors published it.

CvT has three stages. In each block, queries, keys and values each have a depthwise convolution and a batch norm; the
stride is 2 for keys and values. Only the last stage has a class token, which bypasses the convolutions. Products of
queries and keys are divided by the square root of the stage's width, not of a head's width. There is no position
embedding, so images may have any size of at least 3 pixels.

Differences from the published code:
- A batch with one image gives logits (1, K), whereas the published code drops the batch axis.
- Feature maps, mean pooling and gradient checkpointing are added, as in timm.

In the published code and here, a loss on the class token alone gives no gradient to the query convolution of the last
block, since only the queries of patch tokens pass through this convolution. The convolution gets a gradient with
`global_pool="avg"` or a loss on patch tokens, such as dense relative localization. The gradient of `proj_k.bias`, and
of the bias of the keys' batch norm in stages without a class token, is 0 up to rounding, since softmax does not change
if all keys have the same offset.

All features are stored as tokens (B, N, C). A map (B, C, H, W) is a view of the same memory in the channels-last
format, which is the fastest for depthwise convolutions and batch norms, so nothing is copied. The published code
transposes features before and after every convolution or norm.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from timm.layers.config import use_fused_attn
from timm.layers.drop import DropPath, calculate_drop_path_rates
from timm.layers.mlp import Mlp
from timm.layers.norm import LayerNormFp32
from timm.layers.weight_init import trunc_normal_
from timm.models import generate_default_cfgs
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.attention_layout import AttentionLayout
from paucal.backbones.families.common.attention import attend, join_heads
from paucal.backbones.families.common.contract import (
    DEIT_CROP_RATIO,
    init_linear,
    make_default_cfg,
    recompute,
    register_variants,
    rename,
    to_tokens,
)
from paucal.backbones.families.common.staged import StagedBackbone

Grid = tuple[int, int]
MakeNorm = Callable[[int], nn.Module]
make_norm = partial(LayerNormFp32, eps=1e-5)


def as_map(tokens: Tensor, grid: Grid) -> Tensor:
    """Return a view of tokens (B, H * W, C), row by row, as a map (B, C, H, W)."""
    return tokens.transpose(1, 2).unflatten(2, grid)


class QuickGelu(nn.Module):
    """The activation x * sigmoid(1.702 x), computed as silu(1.702 x) / 1.702.

    Therefore, only one tensor is kept for the backward pass instead of two. Intermediate results are changed in place,
    which reduces the time on a CPU to two thirds, or to one third without gradients.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of each entry; `x` is not changed."""
        scaled = 1.702 * x
        # The output may be changed in place, since the backward pass of silu only needs its input.
        return functional.silu(scaled, inplace=not torch.is_grad_enabled()).mul_(1 / 1.702)


class ConvEmbed(nn.Module):
    """A patch embedding with overlapping patches: a strided convolution, then a norm over the channels."""

    def __init__(self, in_chans: int, width: int, kernel: int, stride: int, padding: int, norm: nn.Module) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, width, kernel, stride, padding)
        self.norm = norm
        self.min_side = kernel - 2 * padding

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Return the tokens (B, H * W, width) for a map, and their grid (H, W)."""
        height, width = x.shape[2], x.shape[3]
        if height < self.min_side or width < self.min_side:
            raise ValueError(f"images are {height}x{width} pixels; each side must be {self.min_side} or more")
        x = self.proj(x)
        return self.norm(to_tokens(x)), (x.shape[2], x.shape[3])


class DepthwiseNorm(nn.Module):
    """A depthwise 3x3 convolution without bias and a batch norm: the first part of a convolutional projection."""

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the map (B, C, ceil(H / stride), ceil(W / stride)) for a map (B, C, H, W)."""
        return self.bn(self.conv(x))


class CvtBlock(nn.Module):
    """Attention and an MLP, each after a norm and with a residual connection; the branches share a drop-path module."""

    def __init__(
        self,
        width: int,
        attn: nn.Module,
        mlp_ratio: float,
        act_layer: type[nn.Module],
        make_norm: MakeNorm,
        proj_drop: float,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.norm1 = make_norm(width)
        self.attn = attn
        self.norm2 = make_norm(width)
        self.mlp = Mlp(width, int(width * mlp_ratio), act_layer=act_layer, drop=proj_drop)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Apply the block to (B, P + H * W, C) tokens: P prefix tokens and the patch tokens of a grid (H, W)."""
        x = x + self.drop_path(self.attn(self.norm1(x), grid))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class CvtStage(nn.Module):
    """A convolutional patch embedding and blocks; with `class_token`, a class token comes before the patch tokens."""

    def __init__(self, embed: ConvEmbed, blocks: list[nn.Module], width: int, class_token: bool) -> None:
        super().__init__()
        self.embed = embed
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width)) if class_token else None
        self.blocks = nn.ModuleList(blocks)
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the stage's map (B, C, H, W) in channels-last format, and its class token (B, 1, C) or None."""
        x, grid = self.embed(x)
        if self.cls_token is not None:
            x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), 1)
        for block in self.blocks:
            x = recompute(block, x, grid) if self.grad_checkpointing and self.training else block(x, grid)
        if self.cls_token is None:
            return as_map(x, grid), None
        return as_map(x[:, 1:], grid), x[:, :1]


class CvtBackbone(StagedBackbone):
    """The stages of a CvT: the first stage has a stride of 4 pixels, and each further stage doubles the stride.

    `make_attention` builds an attention layer from the width, the number of heads and whether the stage is the last.
    The probability that a residual branch is skipped in training rises linearly from 0 at the first block to
    `drop_path_rate` at the last block. With a class token, it is 0 in all stages before the last.
    """

    embed_layer: type[ConvEmbed] = ConvEmbed
    act_layer: type[nn.Module] = QuickGelu
    stem_padding = 2  # padding of the first convolution, which is 7x7 with stride 4
    has_class_token = False  # whether the last stage has a class token

    def __init__(  # noqa: PLR0913 (timm's builder passes plain arguments)
        self,
        *,
        make_norm: MakeNorm,
        make_attention: Callable[[int, int, bool], nn.Module],
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        embed_dims: Sequence[int] = (64, 192, 384),
        depths: Sequence[int] = (1, 2, 10),
        num_heads: Sequence[int] = (1, 3, 6),
        mlp_ratio: float = 4.0,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        require_valid_sizes(embed_dims, depths, num_heads, mlp_ratio, drop_path_rate)
        super().__init__(
            num_classes=num_classes,
            in_chans=in_chans,
            widths=tuple(embed_dims),
            reductions=tuple(4 * 2**stage for stage in range(len(embed_dims))),
            global_pool=global_pool,
            drop_rate=drop_rate,
            num_prefix_tokens=int(self.has_class_token),
        )
        rates: Any = calculate_drop_path_rates(drop_path_rate, list(depths), stagewise=True)
        if self.has_class_token:
            rates = [*([0.0] * depth for depth in depths[:-1]), calculate_drop_path_rates(drop_path_rate, depths[-1])]
        self.stages = nn.ModuleList()
        for stage, (width, heads) in enumerate(zip(embed_dims, num_heads, strict=True)):
            in_width, convolution = (
                (embed_dims[stage - 1], (3, 2, 1)) if stage else (in_chans, (7, 4, self.stem_padding))
            )
            embed = self.embed_layer(in_width, width, *convolution, make_norm(width))
            is_last = stage == len(embed_dims) - 1
            blocks: list[nn.Module] = []
            for rate in rates[stage]:
                attn = make_attention(width, heads, is_last)
                blocks.append(CvtBlock(width, attn, mlp_ratio, self.act_layer, make_norm, proj_drop_rate, rate))
            self.stages.append(CvtStage(embed, blocks, width, self.has_class_token and is_last))


def require_valid_sizes(
    embed_dims: Sequence[int], depths: Sequence[int], num_heads: Sequence[int], mlp_ratio: float, drop_path_rate: float
) -> None:
    """Raise a ValueError if stages with these sizes cannot be built."""
    if not len(embed_dims) == len(depths) == len(num_heads) > 0:
        raise ValueError(
            f"embed_dims has {len(embed_dims)} entries, depths {len(depths)} and num_heads {len(num_heads)}; give one "
            "entry of each per stage"
        )
    for width, heads in zip(embed_dims, num_heads, strict=True):
        if heads < 1 or width < 1 or width % heads:
            raise ValueError(
                f"embed_dims has {width}, which is not a multiple of {heads}, the stage's number of heads in num_heads"
            )
        if int(width * mlp_ratio) < 1:
            raise ValueError(
                f"mlp_ratio is {mlp_ratio}, so the MLP of a stage with {width} channels has no hidden channel; use a "
                "larger ratio"
            )
    if min(depths) < 1:
        raise ValueError(f"depths is {tuple(depths)}; each stage needs at least 1 block")
    if not 0 <= drop_path_rate < 1:
        raise ValueError(f"drop_path_rate is {drop_path_rate}; it must be at least 0 and below 1")


def rename_tensors(state: Mapping[str, Tensor], rules: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
    """Convert a published state dict to the model's names and shapes; tensors with other names are not changed.

    The weights of 1x1 convolutions become weights of linear layers, and parameters of norms with the shape (1, C, 1, 1)
    get the shape (C,). See `rename` for the rules. The first rule is also used to find a common prefix, such as
    "backbone.", which is removed.
    """
    matches = (re.match(rf"(.*?)(?:{rules[0][0]})", name) for name in state)
    prefix = next((match[1] for match in matches if match is not None), "")
    result = {}
    for name, value in state.items():
        published_name = name.removeprefix(prefix)
        model_name = rename(published_name, rules)
        if model_name != published_name and value.ndim == 4 and value.shape[2:] == (1, 1):
            value = value.flatten() if re.search(r"norm\d?\.\w+$", model_name) else value.flatten(1)
        result[model_name] = value
    return result


class ConvAttention(nn.Module):
    """Attention with a convolutional projection for each of queries, keys and values (section 3.2 of the paper)."""

    attention_layout = AttentionLayout(pools="keys")

    def __init__(
        self, width: int, num_heads: int, num_prefix_tokens: int = 0, proj_drop: float = 0.0, attn_drop: float = 0.0
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_prefix_tokens = num_prefix_tokens
        self.scale = width**-0.5
        self.fused_attn = bool(use_fused_attn())
        self.conv_proj_q = DepthwiseNorm(width, stride=1)
        self.conv_proj_k = DepthwiseNorm(width, stride=2)
        self.conv_proj_v = DepthwiseNorm(width, stride=2)
        self.proj_q = nn.Linear(width, width)
        self.proj_k = nn.Linear(width, width)
        self.proj_v = nn.Linear(width, width)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Apply the layer to (B, P + H * W, C) tokens: P prefix tokens and the patch tokens of a grid (H, W)."""
        prefix, cells = x[:, : self.num_prefix_tokens], x[:, self.num_prefix_tokens :]
        cells = as_map(cells.contiguous(), grid)  # copied once, not by each of the three convolutions
        query = self._project_to_heads(self.proj_q, prefix, self.conv_proj_q(cells))
        key = self._project_to_heads(self.proj_k, prefix, self.conv_proj_k(cells))
        value = self._project_to_heads(self.proj_v, prefix, self.conv_proj_v(cells))
        x = attend(query, key, value, None, self.scale, self.fused_attn, self.attn_drop)
        return self.proj_drop(self.proj(join_heads(x)))

    def _project_to_heads(self, proj: nn.Module, prefix: Tensor, cells: Tensor) -> Tensor:
        tokens = to_tokens(cells)
        tokens = torch.cat((prefix, tokens), 1) if self.num_prefix_tokens else tokens
        return proj(tokens).unflatten(2, (self.num_heads, -1)).transpose(1, 2)


class Cvt(CvtBackbone):
    """A CvT; the defaults are those of CvT-13, the published `drop_path_rate` is 0.1.

    The classifier reads the class token or, with the `global_pool` "avg", the mean of the patch tokens.
    """

    pools = ("token", "avg", "")
    has_class_token = True

    def __init__(
        self, *, global_pool: str = "token", proj_drop_rate: float = 0.0, attn_drop_rate: float = 0.0, **arguments: Any
    ) -> None:
        super().__init__(
            make_norm=make_norm,
            make_attention=lambda width, heads, is_last: ConvAttention(
                width, heads, int(is_last), proj_drop_rate, attn_drop_rate
            ),
            global_pool=global_pool,
            proj_drop_rate=proj_drop_rate,
            **arguments,
        )
        self.norm = make_norm(self.num_features)
        self.apply(init_linear)
        trunc_normal_(self.stages[-1].cls_token, std=0.02)  # type: ignore[arg-type]


def checkpoint_filter_fn(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Rename the tensors of microsoft/CvT's checkpoints to the model's names."""
    return rename_tensors(
        state, ((r"stage(\d+)\.patch_embed\.", r"stages.\1.embed."), (r"stage(\d+)\.", r"stages.\1."))
    )


_CONFIG = make_default_cfg("stages.0.embed.proj", crop_pct=DEIT_CROP_RATIO, license="mit")
default_cfgs = generate_default_cfgs({"cvt_13": _CONFIG, "cvt_21": _CONFIG})


_VARIANTS = {
    "cvt_13": {"drop_path_rate": 0.1},  # 20.0M parameters, 4.57 GMACs at 224 pixels
    "cvt_21": {"depths": (1, 4, 16), "drop_path_rate": 0.1},  # 31.6M parameters, 7.18 GMACs
}
register_variants(__name__, "CvT (Wu et al. 2021)", Cvt, _VARIANTS, checkpoint_filter_fn, 3)
