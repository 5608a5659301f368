"""Tokens-to-token: how T2T-ViT makes its tokens (Yuan et al., ICCV 2021, section 3.1).

Overlapping windows of pixels become tokens, a narrow attention layer mixes them, and windows of these tokens become the
next tokens, twice; every step enlarges a token's receptive field.

Names and values are those of the published code, without its wasted work. It cuts windows with `unfold` from maps with
the channels first, which makes each token a column, so tokens must be transposed before and after. Here cells keep
their channels last, windows are cut row by row, and the few weights that read windows are reordered instead.

Linear attention uses positive random features ("Rethinking Attention with Performers", Choromanski et al. 2021). The
softmax kernel exp(q k) is the expected product of phi(q) and phi(k) over random w, where phi(x) is exp(w x - |x|^2 / 2)
/ sqrt(m). So keys and values can be summed once for all queries, and the cost grows linearly with the tokens. There is
no matrix of attention weights.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from timm.layers.config import use_fused_attn
from timm.layers.mlp import Mlp
from timm.models import checkpoint
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.families.common.attention import attend, split_heads
from paucal.types import height_and_width

EPS = 1e-8  # in the denominator; it dominates where keys are far from queries, so it is kept exactly
_LARGEST = 80.0  # an exponent whose exp still fits a float32


def random_features(count: int, width: int) -> Tensor:
    """Return (count, width) random directions, orthogonal to each other and of length sqrt(count)."""
    if not 1 <= count <= width:
        raise ValueError(f"{count} random features of {width} channels cannot be orthogonal; take 1 to {width}")
    return nn.init.orthogonal_(torch.empty(count, width)) * math.sqrt(count)


def linear_attention(query: Tensor, key: Tensor, value: Tensor, features: Tensor) -> Tensor:
    """Return phi(q) (phi(k)^T v) / (phi(q) sum(phi(k)) + 1e-8), in float32 or wider.

    The published code exponentiates directly, which overflows in half precision. Here the largest exponent of each
    query and of each image's keys is subtracted first. Both cancel in the fraction if the 1e-8 is divided by the same
    factors, so the value is the same for any features. The backward pass treats the factors as constants, since the
    fraction does not depend on them.

    Args:
        query: (B, N, d).
        key: (B, M, d).
        value: (B, M, e).
        features: (m, d), the random directions w.

    Returns:
        (B, N, e), in the precision of `value` or float32 if that is wider.
    """
    dtype = torch.promote_types(value.dtype, torch.float32)
    query, key, value, features = (part.to(dtype) for part in (query, key, value, features))
    query_exponents, key_exponents = _exponents(query, features), _exponents(key, features)
    query_top, key_top = (
        query_exponents.detach().amax(-1, keepdim=True),
        key_exponents.detach().amax((-2, -1), keepdim=True),
    )
    query_exponents, key_exponents = (query_exponents - query_top).exp(), (key_exponents - key_top).exp()
    # phi(k)^T v, and the sum of phi(k) as one more column, so that one product gives numerator and denominator.
    summary = torch.cat((key_exponents.transpose(1, 2) @ value, key_exponents.sum(1).unsqueeze(-1)), -1)
    parts = query_exponents @ summary
    constant = math.log(EPS * features.shape[0]) - query_top - key_top  # includes the sqrt(m) of both sides
    return parts[..., :-1] / (parts[..., -1:] + constant.clamp(max=_LARGEST).exp())


def _exponents(x: Tensor, features: Tensor) -> Tensor:
    return x @ features.t() - x.square().sum(-1, keepdim=True) / 2


@contextmanager
def full_precision(device_type: str) -> Iterator[None]:
    """Switch autocast off if it is on, since exponents of a norm lose too much in half precision."""
    if not torch.amp.is_autocast_available(device_type) or not torch.is_autocast_enabled(device_type):
        yield
        return
    with torch.autocast(device_type, enabled=False):
        yield


FIRST_WINDOW, NEXT_WINDOW = 7, 3  # side of the first window in pixels, and of the later ones in cells


def cut_windows(cells: Tensor, side: int, stride: int) -> Tensor:
    """Return the windows (B, H', W', side * side * C) around every `stride`-th cell of (B, H, W, C), zeros outside.

    A window holds its cells row by row, each with its channels; H' is H / stride, rounded up for windows of 3.
    """
    border = padding(side, stride)
    cells = functional.pad(cells, (0, 0, border, border, border, border))
    rows, columns = ((length - side) // stride + 1 for length in cells.shape[1:3])
    if side > NEXT_WINDOW:  # many views of few channels; the image rarely needs a gradient
        views = cells.unfold(1, side, stride).unfold(2, side, stride)
        return views.permute(0, 1, 2, 4, 5, 3).flatten(3)
    # The same with slices; their gradient costs half that of `Tensor.unfold` on a CPU and compiles to plain sums.
    last_row, last_column = (rows - 1) * stride + 1, (columns - 1) * stride + 1
    parts = [
        cells[:, row : row + last_row : stride, column : column + last_column : stride]
        for row in range(side)
        for column in range(side)
    ]
    return torch.cat(parts, -1)


def padding(side: int, stride: int) -> int:
    """Return the width of the zero border for windows at every `stride`-th cell: 2 for 7 and 4, 1 for 3 and 2."""
    return (side - stride + 1) // 2


def cells_last(weight: Tensor, channels: int) -> Tensor:
    """Reorder published weights (..., C * k * k), channel by channel, to the (..., k * k * C) of `cut_windows`."""
    return weight.unflatten(-1, (channels, -1)).transpose(-2, -1).flatten(-2)


def project_windows(windows: Tensor, norm: nn.LayerNorm, linear: nn.Linear, channels: int) -> Tensor:
    """Apply a layer norm and a linear layer, both in published order, to windows of cells with `channels` channels.

    The norm's scale and shift are folded into the layer's weights, which are fewer than the values of all windows. The
    remaining norm has no parameters, so windows of pixels need no gradient.
    """
    windows = functional.layer_norm(windows, norm.normalized_shape, eps=norm.eps)
    shift = linear.weight @ norm.bias
    shift = shift if linear.bias is None else shift + linear.bias
    return functional.linear(windows, cells_last(linear.weight * norm.weight, channels), shift)


class PerformerLayer(nn.Module):
    """Linear attention with the value as the skip connection, then an MLP: the token layer of T2T-ViT.

    Attention is computed in full precision under autocast. It has no matrix of weights, so none can be recorded.

    Args:
        channels: Channels of each cell in a window.
        window: Cells in a window.
        dim: Number of output channels.
        kernel_ratio: Random features over `dim`.
        drop: Dropout rate after the projection and at the end of the MLP; 0.1 in the published code.

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
            x = self._attend(windows.to(self.kqv.weight.dtype))
        return x + self.mlp(self.norm2(x))

    def _attend(self, windows: Tensor) -> Tensor:
        joint = project_windows(windows, self.norm1, self.kqv, self.channels)
        key, query, value = joint.flatten(1, 2).chunk(3, -1)
        mixed = linear_attention(query, key, value, self.w).to(value.dtype)
        return (value + self.drop(self.proj(mixed))).unflatten(1, joint.shape[1:3])


class TokenAttention(nn.Module):
    """Softmax attention of one head among windows, with the value as the skip connection."""

    def __init__(self, in_features: int, dim: int, drop: float = 0.0) -> None:
        super().__init__()
        self.scale = in_features**-0.5
        self.fused_attn = use_fused_attn()
        self.qkv = nn.Linear(in_features, 3 * dim, bias=False)
        self.attn_drop = nn.Dropout(0.0)  # rate as published; readers of attention weights need the module
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(drop)

    def forward(self, joint: Tensor) -> Tensor:
        """Return the result (B, N, dim) for joint queries, keys and values (B, N, 3 * dim), which `qkv` computed."""
        query, key, value = split_heads(joint, 3, 1)
        x = attend(query, key, value, None, self.scale, self.fused_attn, self.attn_drop)
        return value.squeeze(1) + self.proj_drop(self.proj(x.squeeze(1)))


class TransformerLayer(nn.Module):
    """Softmax attention with the value as the skip connection, then an MLP: the token layer of T2T-ViT_t.

    Args:
        channels: Channels of each cell in a window.
        window: Cells in a window.
        dim: Number of output channels.
        drop: Dropout rate after the projections; none in the published code.
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


Size = tuple[int, int]
TOKENS = ("performer", "transformer")
_LAST_STRIDES = 4  # the second and third step halve the grid


class TokensToToken(nn.Module):
    """The tokens-to-token module: three soft splits, with a token layer after the first two and a final projection.

    The windows of the soft splits have 7, 3 and 3 pixels or cells along each side. They overlap, so the image size
    need not be a multiple of the patch size; a border narrower than one stride may be left out at the right and the
    bottom.

    Args:
        img_size: Side of the images, or (height, width), in pixels.
        patch_size: Side of a token's patch in pixels; 16 in the published code. The stride of the first soft split is
            a quarter of it. The weights do not depend on it.
        in_chans: Channels of the images.
        embed_dim: Channels of the result.
        tokens: "performer" for linear attention, "transformer" for softmax attention in the token layers.
        token_dim: Channels of the token layers.
        kernel_ratio: Number of the performer's random features, as a multiple of `token_dim`.
        drop: Dropout rate in the token layers; None for the published rates, 0.1 in the performer and 0 in the
            transformer.

    Attributes:
        img_size: (height, width) in pixels.
        patch_size: (height, width) of a cell in pixels.
        grid_size: (rows, columns) of the cells at `img_size`.
        grad_checkpointing: Whether the token layers are computed again in the backward pass.
    """

    def __init__(
        self,
        img_size: int | Size = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        embed_dim: int = 384,
        tokens: str = "performer",
        token_dim: int = 64,
        kernel_ratio: float = 0.5,
        drop: float | None = None,
    ) -> None:
        super().__init__()
        if tokens not in TOKENS:
            raise ValueError(f"tokens_type is {tokens!r}; choose one of {', '.join(TOKENS)}")
        self.set_input_size(img_size, patch_size)
        self.grad_checkpointing = False
        if tokens == "performer":
            rate = 0.1 if drop is None else drop
            self.attention1 = PerformerLayer(in_chans, FIRST_WINDOW**2, token_dim, kernel_ratio, rate)
            self.attention2 = PerformerLayer(token_dim, NEXT_WINDOW**2, token_dim, kernel_ratio, rate)
        else:
            self.attention1 = TransformerLayer(in_chans, FIRST_WINDOW**2, token_dim, drop or 0.0)
            self.attention2 = TransformerLayer(token_dim, NEXT_WINDOW**2, token_dim, drop or 0.0)
        self.project = nn.Linear(token_dim * NEXT_WINDOW**2, embed_dim)

    def set_input_size(self, img_size: int | Size, patch_size: int) -> None:
        """Expect images of a size and give cells of a size, both in pixels; no weights depend on them."""
        if patch_size not in range(_LAST_STRIDES, _LAST_STRIDES * FIRST_WINDOW + 1, _LAST_STRIDES):
            raise ValueError(
                f"patch_size is {patch_size}; it must be a multiple of {_LAST_STRIDES} up to "
                f"{_LAST_STRIDES * FIRST_WINDOW}"
            )
        self.stride = patch_size // _LAST_STRIDES
        self.patch_size = (int(patch_size), int(patch_size))
        height, width = height_and_width(img_size)
        self.grid_size = self.grid_of(height, width)
        self.img_size = (height, width)

    def grid_of(self, height: int, width: int) -> Size:
        """Return (rows, columns) of the cells of images of that size in pixels."""
        smallest_side = FIRST_WINDOW - 2 * padding(FIRST_WINDOW, self.stride)
        if min(height, width) < smallest_side:
            raise ValueError(f"images of {height}x{width} pixels hold no window; give {smallest_side} pixels or more")
        rows, columns = ((side - smallest_side) // self.stride + 1 for side in (height, width))
        return -(-rows // _LAST_STRIDES), -(-columns // _LAST_STRIDES)

    def forward(self, x: Tensor) -> tuple[Tensor, Size]:
        """Return the tokens (B, H' * W', embed_dim) of images (B, C, H, W), row by row, and (H', W')."""
        x = x.permute(0, 2, 3, 1).contiguous()
        x = self._mix_step(self.attention1, x, FIRST_WINDOW, self.stride)
        x = self._mix_step(self.attention2, x, NEXT_WINDOW, 2)
        # A convolution would compute the same, but in TF32 on GPUs, where a matrix product is in float32.
        windows = cut_windows(x, NEXT_WINDOW, 2)
        channels = windows.shape[-1] // NEXT_WINDOW**2
        cells = functional.linear(windows, cells_last(self.project.weight, channels), self.project.bias)
        return cells.flatten(1, 2), (cells.shape[1], cells.shape[2])

    def _mix_step(self, layer: nn.Module, cells: Tensor, side: int, stride: int) -> Tensor:
        if self.grad_checkpointing and self.training:
            return checkpoint(_mix_windows, layer, cells, side, stride)
        return _mix_windows(layer, cells, side, stride)


def _mix_windows(layer: nn.Module, cells: Tensor, side: int, stride: int) -> Tensor:
    return layer(cut_windows(cells, side, stride))
