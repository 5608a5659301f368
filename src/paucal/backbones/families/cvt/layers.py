"""The layers that the three flavours of CvT share.

"CvT: Introducing Convolutions to Vision Transformers" (Wu et al., ICCV 2021). Stages begin with a strided convolution,
and attention projects its tokens by a depthwise convolution on their grid before the linear layers, so that no position
embedding is needed.

Tokens (B, N, C) are the layout throughout. Their map (B, C, H, W) is a view of the same memory, "channels last", which
is what depthwise convolutions and batch norms are fastest on, so that nothing is copied between the two. The published
programs transpose before and after every convolution or norm.
"""

from collections.abc import Callable

import torch
from timm.layers.drop import DropPath
from timm.layers.mlp import Mlp
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.families.common.contract import to_tokens
from paucal.backbones.families.common.recompute import recompute

Grid = tuple[int, int]
MakeNorm = Callable[[int], nn.Module]


def as_map(tokens: Tensor, grid: Grid) -> Tensor:
    """Return tokens (B, H * W, C), row by row, as a map (B, C, H, W) on the same memory."""
    return tokens.transpose(1, 2).unflatten(2, grid)


class QuickGelu(nn.Module):
    """x * sigmoid(1.702 x), written as silu(1.702 x) / 1.702: one tensor is kept for the backward pass, not two.

    It overwrites what it has made itself, which on a CPU takes two thirds of the time, and a third without gradients.
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
        """Return tokens (B, H * W, width) of a map, and their grid (H, W).

        Raises:
            ValueError: the map is smaller than the kernel.
        """
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
    """Attention and a feed-forward, each behind a norm and beside a shortcut; one stochastic depth serves both.

    Args:
        width: channels.
        attn: attention, called with the normed tokens and their grid.
        mlp_ratio: hidden channels of the feed-forward over `width`.
        act_layer: its activation.
        make_norm: the norm over that many channels.
        proj_drop: dropout within the feed-forward.
        drop_path: chance that a branch is skipped in training.
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
    """A convolutional embedding, then blocks, with a class token before the cells where it has one.

    Args:
        embed: the embedding.
        blocks: the blocks.
        width: channels.
        class_token: whether the stage has one.
    """

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
