"""The code that the three flavours of CvT share: layers, stages, and renaming of published tensors.

"CvT: Introducing Convolutions to Vision Transformers" (Wu et al., ICCV 2021). Each stage begins with a strided
convolution, and attention applies a depthwise convolution to the grid of tokens before its linear layers, so no
position embedding is needed.

Tokens (B, N, C) are the layout throughout. Their map (B, C, H, W) is a view of the same memory in the "channels last"
format, on which depthwise convolutions and batch norms are fastest, so nothing is copied between the two. The published
code transposes before and after every convolution or norm.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from timm.layers.drop import DropPath
from timm.layers.mlp import Mlp
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.families.common.contract import recompute, to_tokens
from paucal.backbones.families.common.staged import StagedBackbone

Grid = tuple[int, int]
MakeNorm = Callable[[int], nn.Module]


def as_map(tokens: Tensor, grid: Grid) -> Tensor:
    """Return tokens (B, H * W, C), row by row, as a map (B, C, H, W) on the same memory."""
    return tokens.transpose(1, 2).unflatten(2, grid)


class QuickGelu(nn.Module):
    """x * sigmoid(1.702 x), written as silu(1.702 x) / 1.702: one tensor is kept for the backward pass, not two.

    It works in place on its own intermediate results, which on a CPU takes two thirds of the time, or a third without
    gradients.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of each entry; `x` stays as it is."""
        scaled = 1.702 * x
        # The backward pass of silu reads its input, but not its output.
        return functional.silu(scaled, inplace=not torch.is_grad_enabled()).mul_(1 / 1.702)


class ConvEmbed(nn.Module):
    """Overlapping patches: a strided convolution, then a norm over the channels."""

    def __init__(self, in_chans: int, width: int, kernel: int, stride: int, padding: int, norm: nn.Module) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, width, kernel, stride, padding)
        self.norm = norm
        self.least = kernel - 2 * padding

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Return tokens (B, H * W, width) of a map, and their grid (H, W)."""
        height, width = x.shape[2], x.shape[3]
        if height < self.least or width < self.least:
            raise ValueError(f"images are {height}x{width} pixels; each side must be {self.least} or more")
        x = self.proj(x)
        return self.norm(to_tokens(x)), (x.shape[2], x.shape[3])


class DepthwiseNorm(nn.Module):
    """A depthwise 3x3 convolution without bias, then a batch norm: the first half of a convolutional projection."""

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map (B, C, ceil(H / stride), ceil(W / stride)) of a map (B, C, H, W)."""
        return self.bn(self.conv(x))


class CvtBlock(nn.Module):
    """Attention and a feed-forward, each after a norm and with a shortcut; one stochastic depth module serves both.

    Args:
        attn: Attention, called with the normed tokens and their grid.
        act_layer: Activation of the feed-forward.
        make_norm: Function that builds the norm for a number of channels.
        drop_path: Chance that a branch is skipped in training.
    """

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
        """Return tokens (B, P + H * W, C) of tokens whose cells lie on a grid (H, W)."""
        x = x + self.drop_path(self.attn(self.norm1(x), grid))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class CvtStage(nn.Module):
    """A convolutional embedding, then blocks, with a class token before the cells where it has one."""

    def __init__(self, embed: ConvEmbed, blocks: list[nn.Module], width: int, class_token: bool) -> None:
        super().__init__()
        self.embed = embed
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width)) if class_token else None
        self.blocks = nn.ModuleList(blocks)
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the stage's map (B, C, H, W), channels last, and its class token (B, 1, C) or None."""
        x, grid = self.embed(x)
        if self.cls_token is not None:
            x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), 1)
        for block in self.blocks:
            x = recompute(block, x, grid) if self.grad_checkpointing and self.training else block(x, grid)
        if self.cls_token is None:
            return as_map(x, grid), None
        return as_map(x[:, 1:], grid), x[:, :1]


Rules = Sequence[tuple[str, str]]


class CvtBackbone(StagedBackbone):
    """Stages of a CvT: the first with 4 pixels per cell, each further one with twice as many.

    Args:
        stem_padding: Zeros around the image in the first convolution, 7x7 with stride 4.
        make_norm: Function that builds the norm for a number of channels.
        make_block: Function that builds a block, given the numbers of its stage and the block.
        class_token: Whether the last stage has a class token.
        classifying: `num_classes`, `global_pool` and `drop_rate` of `StagedBackbone`.
    """

    embed_layer: type[ConvEmbed] = ConvEmbed

    def __init__(
        self,
        *,
        in_chans: int,
        embed_dims: Sequence[int],
        depths: Sequence[int],
        stem_padding: int,
        make_norm: MakeNorm,
        make_block: Callable[[int, int], nn.Module],
        class_token: bool = False,
        **classifying: Any,
    ) -> None:
        super().__init__(
            in_chans=in_chans,
            widths=tuple(embed_dims),
            reductions=tuple(4 * 2**stage for stage in range(len(embed_dims))),
            num_prefix_tokens=int(class_token),
            **classifying,
        )
        last = len(embed_dims) - 1
        self.stages = nn.ModuleList()
        for stage, (width, depth) in enumerate(zip(embed_dims, depths, strict=True)):
            in_width, window = (in_chans, (7, 4, stem_padding)) if stage == 0 else (embed_dims[stage - 1], (3, 2, 1))
            embed = self.embed_layer(in_width, width, *window, make_norm(width))
            blocks = [make_block(stage, number) for number in range(depth)]
            self.stages.append(CvtStage(embed, blocks, width, class_token and stage == last))

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay."""
        return {name for name, _ in self.named_parameters() if name.endswith("cls_token")}


def require_valid_sizes(
    embed_dims: Sequence[int], depths: Sequence[int], num_heads: Sequence[int], mlp_ratio: float, drop_path_rate: float
) -> None:
    """Check the values that describe the stages of a CvT."""
    if not len(embed_dims) == len(depths) == len(num_heads) > 0:
        raise ValueError(
            f"embed_dims has {len(embed_dims)} entries, depths {len(depths)} and num_heads {len(num_heads)}; give one "
            "of each per stage"
        )
    for width, heads in zip(embed_dims, num_heads, strict=True):
        if heads < 1 or width < 1 or width % heads:
            raise ValueError(f"embed_dims has {width} for {heads} heads; it must be a multiple of the heads")
        if int(width * mlp_ratio) < 1:
            raise ValueError(f"mlp_ratio is {mlp_ratio}; it must leave {width} channels at least one hidden channel")
    if min(depths) < 1:
        raise ValueError(f"depths is {tuple(depths)}; each stage must have a block or more")
    if not 0 <= drop_path_rate < 1:
        raise ValueError(f"drop_path_rate is {drop_path_rate}; give a probability from 0 to below 1")


def rename_tensors(state: Mapping[str, Tensor], rules: Rules) -> dict[str, Tensor]:
    """Return a published state dict under our names and in our shapes; other names are left alone.

    1x1 convolutions become linear layers, norms of shape (1, C, 1, 1) become (C).

    Args:
        state: Tensors by name. A common prefix, such as "backbone.", is removed; the first rule shows where names
            begin.
        rules: (pattern of the beginning of a name, its replacement); the first rule that matches is used.
    """
    matches = (re.match(rf"(.*?)(?:{rules[0][0]})", name) for name in state)
    prefix = next((match[1] for match in matches if match is not None), "")
    result = {}
    for name, value in state.items():
        plain = name.removeprefix(prefix)
        own_name = _renamed_key(plain, rules)
        result[own_name] = _flatten_convolution(own_name, value) if own_name != plain else value
    return result


def _renamed_key(name: str, rules: Rules) -> str:
    for pattern, replacement in rules:
        renamed, count = re.subn(rf"^(?:{pattern})", replacement, name)
        if count:
            return renamed
    return name


def _flatten_convolution(name: str, value: Tensor) -> Tensor:
    if value.ndim != 4 or value.shape[2:] != (1, 1):
        return value
    return value.flatten() if re.search(r"norm\d?\.\w+$", name) else value.flatten(1)
