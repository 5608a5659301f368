"""Tokens-to-token: how T2T-ViT makes its tokens (Yuan et al., ICCV 2021, section 3.1).

Overlapping windows of pixels become tokens, a narrow attention layer mixes them, and windows of these become the next
tokens, twice; every step enlarges what a token sees.

Names and values are those of the published program; what it wastes is saved. Its windows are cut by `unfold` from maps
with the channels first, which gives each token as a column, so that tokens are transposed before and after. Here cells
keep their channels last, windows are cut row by row, and the few weights that read windows are reordered instead.
"""

import torch
from timm.layers.config import use_fused_attn
from timm.layers.mlp import Mlp
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.families.common.attention import attend, split_heads
from paucal.backbones.families.t2t.performer import full_precision, linear_attention, random_features

FIRST, NEXT = 7, 3  # sides of the windows, in pixels and in cells


def cut_windows(cells: Tensor, side: int, stride: int) -> Tensor:
    """Return the windows (B, H', W', side * side * C) around every `stride`-th cell of (B, H, W, C), zeros outside.

    A window lists its cells row by row, each with its channels; H' is H / stride, rounded up for windows of 3.
    """
    border = padding(side, stride)
    cells = functional.pad(cells, (0, 0, border, border, border, border))
    rows, columns = ((length - side) // stride + 1 for length in cells.shape[1:3])
    if side > NEXT:  # many views of few channels: of the image, which rarely needs a gradient
        views = cells.unfold(1, side, stride).unfold(2, side, stride)
        return views.permute(0, 1, 2, 4, 5, 3).flatten(3)
    # The same by slices, whose gradient costs half of that of `Tensor.unfold` on a CPU and compiles to plain sums.
    last_row, last_column = (rows - 1) * stride + 1, (columns - 1) * stride + 1
    parts = [
        cells[:, row : row + last_row : stride, column : column + last_column : stride]
        for row in range(side)
        for column in range(side)
    ]
    return torch.cat(parts, -1)


def padding(side: int, stride: int) -> int:
    """Return the border of zeros with which a window starts at every `stride`-th cell: 2 for 7 and 4, 1 for 3 and 2."""
    return (side - stride + 1) // 2


def cells_last(weight: Tensor, channels: int) -> Tensor:
    """Reorder weights (..., C * k * k), channel by channel as published, to the (..., k * k * C) of `cut_windows`."""
    return weight.unflatten(-1, (channels, -1)).transpose(-2, -1).flatten(-2)


def project_windows(windows: Tensor, norm: nn.LayerNorm, linear: nn.Linear, channels: int) -> Tensor:
    """Apply a layer norm and a linear layer, of published order, to windows of cells with these channels.

    The scale and shift of the norm are taken into the weights of the layer, of which there are fewer than windows. What
    is left of the norm has no parameters, so that windows of pixels need no gradient.
    """
    windows = functional.layer_norm(windows, norm.normalized_shape, eps=norm.eps)
    shift = linear.weight @ norm.bias
    shift = shift if linear.bias is None else shift + linear.bias
    return functional.linear(windows, cells_last(linear.weight * norm.weight, channels), shift)


class PerformerLayer(nn.Module):
    """Linear attention with the value as the skip connection, then an MLP: the token layer of T2T-ViT.

    Attention is computed in full precision under autocast. It has no matrix of weights, so none can be recorded.

    Args:
        channels: of the cells in a window.
        window: cells in a window.
        dim: channels that come out.
        kernel_ratio: random features over `dim`.
        drop: dropout after the projection and at the end of the MLP; 0.1 in the published program.

    Attributes:
        w: (m, dim) random directions, fixed and stored.
    """

    def __init__(self, channels: int, window: int, dim: int, kernel_ratio: float = 0.5, drop: float = 0.1) -> None:
        super().__init__()
        self.channels = channels
        self.w = nn.Parameter(random_features(int(kernel_ratio * dim), dim), requires_grad=False)
        self.norm1 = nn.LayerNorm(channels * window)
        self.kqv = nn.Linear(channels * window, 3 * dim)  # key, query, value, in this order
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim), nn.Dropout(drop))

    def forward(self, windows: Tensor) -> Tensor:
        """Return the cells (B, H, W, dim) of windows (B, H, W, k * k * C)."""
        with full_precision(windows.device.type):
            x = self._attended(windows.to(self.kqv.weight.dtype))
        return x + self.mlp(self.norm2(x))

    def _attended(self, windows: Tensor) -> Tensor:
        joint = project_windows(windows, self.norm1, self.kqv, self.channels)
        key, query, value = joint.flatten(1, 2).chunk(3, -1)
        mixed = linear_attention(query, key, value, self.w).to(value.dtype)
        return (value + self.drop(self.proj(mixed))).unflatten(1, joint.shape[1:3])


class TokenAttention(nn.Module):
    """Softmax attention of one head among windows, with the value as the skip connection.

    Args:
        in_features: of a window; the products are scaled by its root, not by that of `dim`.
        dim: channels that come out.
        drop: dropout of the output.
    """

    def __init__(self, in_features: int, dim: int, drop: float = 0.0) -> None:
        super().__init__()
        self.scale = in_features**-0.5
        self.fused_attn = use_fused_attn()
        self.qkv = nn.Linear(in_features, 3 * dim, bias=False)
        self.attn_drop = nn.Dropout(0.0)  # the published program drops no weights here; readers of weights look for it
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(drop)

    def forward(self, joint: Tensor) -> Tensor:
        """Return (B, N, dim) of the output (B, N, 3 * dim) of `qkv`, which the layer applies to windows."""
        query, key, value = split_heads(joint, 3, 1)
        x = attend(query, key, value, None, self.scale, self.fused_attn, self.attn_drop)
        return value.squeeze(1) + self.proj_drop(self.proj(x.squeeze(1)))


class TransformerLayer(nn.Module):
    """Softmax attention with the value as the skip connection, then an MLP: the token layer of T2T-ViT_t.

    Args:
        channels: of the cells in a window.
        window: cells in a window.
        dim: channels that come out.
        drop: dropout after the projections; none in the published program.
    """

    def __init__(self, channels: int, window: int, dim: int, drop: float = 0.0) -> None:
        super().__init__()
        self.channels = channels
        self.norm1 = nn.LayerNorm(channels * window)
        self.attn = TokenAttention(channels * window, dim, drop)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, dim, drop=drop)

    def forward(self, windows: Tensor) -> Tensor:
        """Return the cells (B, H, W, dim) of windows (B, H, W, k * k * C)."""
        joint = project_windows(windows, self.norm1, self.attn.qkv, self.channels)
        x = self.attn(joint.flatten(1, 2)).unflatten(1, joint.shape[1:3])
        return x + self.mlp(self.norm2(x))
