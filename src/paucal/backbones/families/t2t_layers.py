"""Tokens-to-token, the patch embedding of T2T-ViT (Yuan et al., ICCV 2021, section 3.1).

Overlapping windows of pixels become tokens, and a narrow attention layer mixes these tokens. Then, twice, overlapping
windows of tokens become the next tokens. Each step enlarges the receptive field of a token.

Tensor names and outputs are those of the published code, but the computation takes less work. The published code uses
`unfold` on maps with the channels first, so tokens must be transposed before and after. Here, the channels are last,
windows are collected row by row, and the weights that are applied to windows are reordered instead.

Linear attention uses positive random features ("Rethinking Attention with Performers", Choromanski et al. 2021). The
softmax kernel exp(q k) is the expectation of phi(q) phi(k) over m random directions w, where phi(x) is
exp(w x - |x|^2 / 2) / sqrt(m). Therefore, keys and values are summed once for all queries, the cost is linear in the
number of tokens, and there is no matrix of attention weights.
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

EPS = 1e-8  # added to the denominator, as published; dominates the denominator if keys are far from queries
_MAX_EXPONENT = 80.0  # largest exponent, since exp(80) is still finite in float32


def random_features(count: int, width: int) -> Tensor:
    """Return (count, width) random vectors that are orthogonal to each other and have the length sqrt(count)."""
    if not 1 <= count <= width:
        raise ValueError(f"{count} random features of {width} channels cannot be orthogonal; use 1 to {width}")
    return nn.init.orthogonal_(torch.empty(count, width)) * math.sqrt(count)


def linear_attention(query: Tensor, key: Tensor, value: Tensor, features: Tensor) -> Tensor:
    """Return phi(q) (phi(k)^T v) / (phi(q) sum(phi(k)) + 1e-8), in float32 or wider.

    The published code computes the exponentials directly, which overflows in half precision. Here the largest exponent
    of each query and of each image's keys is subtracted first. The resulting factors cancel in the fraction, since 1e-8
    is also divided by them, so the result is the same. The backward pass treats the factors as constants, since the
    fraction does not depend on them.

    Args:
        query: (B, N, d) queries.
        key: (B, M, d) keys.
        value: (B, M, e) values.
        features: (m, d) random vectors w.

    Returns:
        (B, N, e) weighted sums of the values, in the precision of `value` but at least float32.
    """
    dtype = torch.promote_types(value.dtype, torch.float32)
    query, key, value, features = (part.to(dtype) for part in (query, key, value, features))
    query_exponents, key_exponents = _exponents(query, features), _exponents(key, features)
    query_max = query_exponents.detach().amax(-1, keepdim=True)
    key_max = key_exponents.detach().amax((-2, -1), keepdim=True)
    query_phi, key_phi = (query_exponents - query_max).exp(), (key_exponents - key_max).exp()
    # phi(k)^T v, with the sum of phi(k) as a further column, so that one product gives numerator and denominator.
    summary = torch.cat((key_phi.transpose(1, 2) @ value, key_phi.sum(1).unsqueeze(-1)), -1)
    products = query_phi @ summary
    # Includes the factors 1 / sqrt(m) of phi(q) and phi(k).
    log_eps = math.log(EPS * features.shape[0]) - query_max - key_max
    return products[..., :-1] / (products[..., -1:] + log_eps.clamp(max=_MAX_EXPONENT).exp())


def _exponents(x: Tensor, features: Tensor) -> Tensor:
    return x @ features.t() - x.square().sum(-1, keepdim=True) / 2


@contextmanager
def full_precision(device_type: str) -> Iterator[None]:
    """Switch autocast off in the `with` block, since half precision is too inexact for the exponents."""
    if not torch.amp.is_autocast_available(device_type) or not torch.is_autocast_enabled(device_type):
        yield
        return
    with torch.autocast(device_type, enabled=False):
        yield


FIRST_WINDOW, NEXT_WINDOW = 7, 3  # side of the first windows in pixels, and of the later windows in cells


def cut_windows(cells: Tensor, side: int, stride: int) -> Tensor:
    """Return the windows (B, H', W', side * side * C) around every `stride`-th cell of a map (B, H, W, C).

    Cells outside the map are zero. A window contains the C channels of each of its cells, row by row.
    H' is H / stride, rounded up for windows of 3.
    """
    border = padding_width(side, stride)
    cells = functional.pad(cells, (0, 0, border, border, border, border))
    rows, columns = ((length - side) // stride + 1 for length in cells.shape[1:3])
    if side > NEXT_WINDOW:  # windows of the image, which have few channels and rarely need a gradient
        views = cells.unfold(1, side, stride).unfold(2, side, stride)
        return views.permute(0, 1, 2, 4, 5, 3).flatten(3)
    # Use slices, whose gradient takes half as long as the gradient of `Tensor.unfold` on a CPU and is compiled to sums.
    last_row, last_column = (rows - 1) * stride + 1, (columns - 1) * stride + 1
    parts = [
        cells[:, row : row + last_row : stride, column : column + last_column : stride]
        for row in range(side)
        for column in range(side)
    ]
    return torch.cat(parts, -1)


def padding_width(side: int, stride: int) -> int:
    """Return the zero padding per side of a map: 2 for windows of 7 with stride 4, 1 for windows of 3 with stride 2."""
    return (side - stride + 1) // 2


def reorder_to_cells_last(weight: Tensor, channels: int) -> Tensor:
    """Reorder published weights (..., C * k * k) to (..., k * k * C), the order of the values in `cut_windows`."""
    return weight.unflatten(-1, (channels, -1)).transpose(-2, -1).flatten(-2)


def project_windows(windows: Tensor, norm: nn.LayerNorm, linear: nn.Linear, channels: int) -> Tensor:
    """Apply a layer norm and a linear layer, with weights in the published order, to windows of cells.

    The norm's scale and shift are merged into the weights and the bias of the linear layer, which are smaller than the
    windows. The remaining norm has no parameters, so windows of pixels need no gradient.
    """
    windows = functional.layer_norm(windows, norm.normalized_shape, eps=norm.eps)
    shift = linear.weight @ norm.bias
    shift = shift if linear.bias is None else shift + linear.bias
    return functional.linear(windows, reorder_to_cells_last(linear.weight * norm.weight, channels), shift)


class PerformerLayer(nn.Module):
    """The token layer of T2T-ViT: linear attention with the value as the residual connection, then an MLP.

    Attention is computed in full precision, even under autocast. There is no matrix of attention weights to record.

    Args:
        channels: Number of channels of each cell in a window.
        window: Number of cells in a window.
        dim: Number of output channels.
        kernel_ratio: Number of random features, divided by `dim`.
        drop: Dropout rate after the projection and at the end of the MLP. Published: 0.1.

    Attributes:
        w: (m, dim) random vectors, which are not trained but are in the state dict.
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
        """Return the cells (B, H, W, dim) for windows (B, H, W, k * k * C)."""
        with full_precision(windows.device.type):
            x = self._attend(windows.to(self.kqv.weight.dtype))
        return x + self.mlp(self.norm2(x))

    def _attend(self, windows: Tensor) -> Tensor:
        qkv = project_windows(windows, self.norm1, self.kqv, self.channels)
        key, query, value = qkv.flatten(1, 2).chunk(3, -1)
        mixed = linear_attention(query, key, value, self.w).to(value.dtype)
        return (value + self.drop(self.proj(mixed))).unflatten(1, qkv.shape[1:3])


class TokenAttention(nn.Module):
    """Softmax attention with one head between windows, with the value as the residual connection."""

    def __init__(self, in_features: int, dim: int, drop: float = 0.0) -> None:
        super().__init__()
        self.scale = in_features**-0.5
        self.fused_attn = use_fused_attn()
        self.qkv = nn.Linear(in_features, 3 * dim, bias=False)
        self.attn_drop = nn.Dropout(0.0)  # no dropout, as published; attention weights are recorded at this module
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(drop)

    def forward(self, qkv: Tensor) -> Tensor:
        """Return the output (B, N, dim) for the output of `qkv` (B, N, 3 * dim)."""
        query, key, value = split_heads(qkv, 3, 1)
        x = attend(query, key, value, None, self.scale, self.fused_attn, self.attn_drop)
        return value.squeeze(1) + self.proj_drop(self.proj(x.squeeze(1)))


class TransformerLayer(nn.Module):
    """The token layer of T2T-ViT_t: softmax attention with the value as the residual connection, then an MLP.

    Args:
        channels: Number of channels of each cell in a window.
        window: Number of cells in a window.
        dim: Number of output channels.
        drop: Dropout rate after the projections. Published: 0.
    """

    def __init__(self, channels: int, window: int, dim: int, drop: float = 0.0) -> None:
        super().__init__()
        self.channels = channels
        self.norm1 = nn.LayerNorm(channels * window)
        self.attn = TokenAttention(channels * window, dim, drop)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, dim, drop=drop)

    def forward(self, windows: Tensor) -> Tensor:
        """Return the cells (B, H, W, dim) for windows (B, H, W, k * k * C)."""
        qkv = project_windows(windows, self.norm1, self.attn.qkv, self.channels)
        x = self.attn(qkv.flatten(1, 2)).unflatten(1, qkv.shape[1:3])
        return x + self.mlp(self.norm2(x))


Size = tuple[int, int]
TOKEN_LAYERS = ("performer", "transformer")  # attention of the token layers: linear or softmax
_LATER_STRIDES = 4  # product of the strides of the second and third soft split


class TokensToToken(nn.Module):
    """The tokens-to-token module: three soft splits, a token layer after each of the first two, and a projection.

    A soft split divides a map into overlapping windows, whose sides are 7 pixels in the first split and 3 cells in the
    other two. Therefore, the sides of images need not be multiples of the patch size; less than one stride of pixels
    may be ignored on the right and bottom.

    Args:
        img_size: Side, or (height, width), of the images in pixels.
        patch_size: Side of a token's patch in pixels, which is four times the stride of the first soft split.
            Published: 16. The weights do not depend on the patch size.
        in_chans: Number of channels of the images.
        embed_dim: Number of channels of the output.
        tokens: Attention of the token layers: "performer" for linear, "transformer" for softmax attention.
        token_dim: Number of channels of the token layers.
        kernel_ratio: Number of the performer's random features, divided by `token_dim`.
        drop: Dropout rate in the token layers; None for the published rates, 0.1 in the performer and 0 in the
            transformer.

    Attributes:
        img_size: (height, width) of the images in pixels.
        patch_size: (height, width) of a patch in pixels.
        grid_size: (rows, columns) of the grid for `img_size`.
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
        if tokens not in TOKEN_LAYERS:
            raise ValueError(f"tokens_type is {tokens!r}; choose one of {', '.join(TOKEN_LAYERS)}")
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
        """Set the image size and the side of a patch in pixels, on which no weights depend."""
        if patch_size not in range(_LATER_STRIDES, _LATER_STRIDES * FIRST_WINDOW + 1, _LATER_STRIDES):
            raise ValueError(
                f"patch_size is {patch_size}; it must be a multiple of {_LATER_STRIDES} up to "
                f"{_LATER_STRIDES * FIRST_WINDOW}"
            )
        self.stride = patch_size // _LATER_STRIDES
        self.patch_size = (int(patch_size), int(patch_size))
        height, width = height_and_width(img_size)
        self.grid_size = self.grid_of(height, width)
        self.img_size = (height, width)

    def grid_of(self, height: int, width: int) -> Size:
        """Return the (rows, columns) of the grid for images of this size in pixels."""
        smallest_side = FIRST_WINDOW - 2 * padding_width(FIRST_WINDOW, self.stride)
        if min(height, width) < smallest_side:
            raise ValueError(
                f"images of {height}x{width} pixels are smaller than a window; use {smallest_side} pixels or more"
            )
        rows, columns = ((side - smallest_side) // self.stride + 1 for side in (height, width))
        return -(-rows // _LATER_STRIDES), -(-columns // _LATER_STRIDES)

    def forward(self, x: Tensor) -> tuple[Tensor, Size]:
        """Return the tokens (B, H' * W', embed_dim) for images (B, C, H, W), row by row, and their grid (H', W')."""
        x = x.permute(0, 2, 3, 1).contiguous()
        x = self._run_token_layer(self.attention1, x, FIRST_WINDOW, self.stride)
        x = self._run_token_layer(self.attention2, x, NEXT_WINDOW, 2)
        # Use a matrix product, which is computed in float32, since GPUs would compute a convolution in TF32.
        windows = cut_windows(x, NEXT_WINDOW, 2)
        channels = windows.shape[-1] // NEXT_WINDOW**2
        cells = functional.linear(windows, reorder_to_cells_last(self.project.weight, channels), self.project.bias)
        return cells.flatten(1, 2), (cells.shape[1], cells.shape[2])

    def _run_token_layer(self, layer: nn.Module, cells: Tensor, side: int, stride: int) -> Tensor:
        if self.grad_checkpointing and self.training:
            return checkpoint(_apply_to_windows, layer, cells, side, stride)
        return _apply_to_windows(layer, cells, side, stride)


def _apply_to_windows(layer: nn.Module, cells: Tensor, side: int, stride: int) -> Tensor:
    return layer(cut_windows(cells, side, stride))
