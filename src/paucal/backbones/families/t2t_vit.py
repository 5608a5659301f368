"""T2T-ViT, a narrow and deep transformer whose tokens are computed from overlapping windows.

"Tokens-to-Token ViT: Training Vision Transformers from Scratch on ImageNet" (Yuan et al., ICCV 2021). The state dict
has the names of the published code and of DrLoc's code, which contain the same model, so checkpoints of either code can
be loaded.

Differences from the published code:
- Images need not be square, and the size of the grid is computed instead of assumed to be a sixteenth of the image.
- Drop-path and the dropout rates of the token layers are arguments.
- The performer is computed in float32, even under autocast, and cannot overflow; see `linear_attention`.
- In the blocks, products of queries and keys are divided by the root of the number of channels per head. The published
  functions that build a model use the root of the number of all channels if pretrained weights are requested, but the
  published evaluation does not request pretrained weights. Set `qk_scale` to use another factor.

The token layers have linear attention, or softmax attention in the variants with `_t_`. Variants are built without
drop-path unless `drop_path_rate` is passed (published: 0.1; 0 in DrLoc's code). For images of other sizes than 224
pixels, pass `img_size`; the position embedding of a checkpoint for 224 pixels is then interpolated. Small images need a
smaller `patch_size`: with 4, an image of 32 pixels has 8x8 patches.

In tokens-to-token, the patch embedding (section 3.1), overlapping windows of pixels become tokens, and a narrow
attention layer mixes these tokens. Then, twice, overlapping windows of tokens become the next tokens. Each step
enlarges the receptive field of a token. The published code uses `unfold` on maps with the channels first, so tokens
must be transposed before and after. Here, the channels are last, windows are collected row by row, and the weights that
are applied to windows are reordered instead, which takes less work.

Linear attention uses positive random features ("Rethinking Attention with Performers", Choromanski et al. 2021). The
softmax kernel exp(q k) is the expectation of phi(q) phi(k) over m random directions w, where phi(x) is
exp(w x - |x|^2 / 2) / sqrt(m). Therefore, keys and values are summed once for all queries, the cost is linear in the
number of tokens, and there is no matrix of attention weights.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from timm.layers.config import use_fused_attn
from timm.layers.drop import calculate_drop_path_rates
from timm.layers.mlp import Mlp
from timm.layers.weight_init import trunc_normal_
from timm.models import adapt_input_conv, checkpoint, generate_default_cfgs
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.families.common.attention import attend, split_heads
from paucal.backbones.families.common.contract import init_linear, make_default_cfg, register_variants
from paucal.backbones.families.common.positions import Size, fit_position_embedding
from paucal.backbones.families.common.tokens import Grid, TokenBackbone, require_valid_sizes
from paucal.backbones.families.lvvit import LvVitBlock
from paucal.types import height_and_width

EPS = 1e-8  # added to the denominator, as published; dominates the denominator if keys are far from queries
_MAX_EXPONENT = 80.0  # largest exponent, since exp(80) is still finite in float32
FIRST_WINDOW, NEXT_WINDOW = 7, 3  # side of the first windows in pixels, and of the later windows in cells
TOKEN_LAYERS = ("performer", "transformer")  # attention of the token layers: linear or softmax
_LATER_STRIDES = 4  # product of the strides of the second and third soft split
# Parameters of the first token layer whose shapes depend on the number of image channels.
_PIXEL_PARAMETERS = ("norm1.weight", "norm1.bias", "kqv.weight", "attn.qkv.weight")


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
    fraction does not depend on them. Queries are (B, N, d), keys (B, M, d), values (B, M, e), and the random vectors w,
    `features`, (m, d).
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

    Attention is computed in full precision, even under autocast. There is no matrix of attention weights to record. The
    (m, dim) random vectors `w`, m = `kernel_ratio` * dim, are not trained but are in the state dict. A window has
    `window` cells with `channels` channels each.
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
            kqv = project_windows(windows.to(self.kqv.weight.dtype), self.norm1, self.kqv, self.channels)
            key, query, value = kqv.flatten(1, 2).chunk(3, -1)
            mixed = linear_attention(query, key, value, self.w).to(value.dtype)
            x = (value + self.drop(self.proj(mixed))).unflatten(1, kqv.shape[1:3])
        return x + self.mlp(self.norm2(x))


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
    """The token layer of T2T-ViT_t: softmax attention with the value as the residual connection, then an MLP."""

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


class TokensToToken(nn.Module):
    """The tokens-to-token module: three soft splits, a token layer after each of the first two, and a projection.

    A soft split divides a map into overlapping windows, whose sides are 7 pixels in the first split and 3 cells in the
    other two. Therefore, the sides of images need not be multiples of the patch size; less than one stride of pixels
    may be ignored on the right and bottom. The patch size is four times the stride of the first split (published: 16);
    the weights do not depend on it. See `T2tVit` for the other arguments.
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
        if patch_size not in range(_LATER_STRIDES, _LATER_STRIDES * FIRST_WINDOW + 1, _LATER_STRIDES):
            raise ValueError(
                f"patch_size is {patch_size}; it must be a multiple of {_LATER_STRIDES} up to "
                f"{_LATER_STRIDES * FIRST_WINDOW}"
            )
        self.stride = patch_size // _LATER_STRIDES
        self.patch_size = (int(patch_size), int(patch_size))
        self.set_input_size(img_size)
        self.grad_checkpointing = False
        if tokens == "performer":
            rate = 0.1 if drop is None else drop
            self.attention1 = PerformerLayer(in_chans, FIRST_WINDOW**2, token_dim, kernel_ratio, rate)
            self.attention2 = PerformerLayer(token_dim, NEXT_WINDOW**2, token_dim, kernel_ratio, rate)
        else:
            self.attention1 = TransformerLayer(in_chans, FIRST_WINDOW**2, token_dim, drop or 0.0)
            self.attention2 = TransformerLayer(token_dim, NEXT_WINDOW**2, token_dim, drop or 0.0)
        self.project = nn.Linear(token_dim * NEXT_WINDOW**2, embed_dim)

    def set_input_size(self, img_size: int | Size) -> None:
        """Set the image size in pixels; no weights depend on this size."""
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
        def run(cells: Tensor) -> Tensor:
            return layer(cut_windows(cells, side, stride))

        return checkpoint(run, cells) if self.grad_checkpointing and self.training else run(cells)


class T2tVit(TokenBackbone):
    """A T2T-ViT; the defaults are those of T2T-ViT-14.

    The position embedding consists of fixed sines and cosines of a token's position in the sequence, the class token
    first; it is in the state dict. The embedding is computed for the image size for which the model is built. For other
    sizes (`set_input_size`, `dynamic_img_size` and checkpoints), the embedding is interpolated on the grid, so that
    positions keep their meaning for a trained model.

    Args:
        patch_size: Side of a patch in pixels, a multiple of 4 up to 28; see `TokensToToken`.
        tokens_type: Attention of the token layers, "performer" or "transformer" (T2T-ViT_t).
        token_dim: Number of channels of the token layers.
        kernel_ratio: Number of the performer's random features, divided by `token_dim`; at most 1.
        token_drop_rate: Dropout rate in the token layers; None for the published rates, 0.1 in the performer and 0 in
            the transformer.
        qk_scale: Factor of the products of queries and keys; None for the inverse root of a head's width.
    """

    stem_names = ("cls_token", "pos_embed", "tokens_to_token")

    def __init__(  # noqa: PLR0913 (timm's models take plain arguments)
        self,
        *,
        img_size: int | Size = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        tokens_type: str = "performer",
        token_dim: int = 64,
        kernel_ratio: float = 0.5,
        token_drop_rate: float | None = None,
        embed_dim: int = 384,
        depth: int = 14,
        num_heads: int = 6,
        mlp_ratio: float = 3.0,
        qkv_bias: bool = False,
        qk_scale: float | None = None,
        dynamic_img_size: bool = False,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        require_valid_sizes(embed_dim, depth, num_heads, mlp_ratio)
        super().__init__(
            num_classes=num_classes,
            in_chans=in_chans,
            embed_dim=embed_dim,
            depth=depth,
            reduction=patch_size,
            global_pool=global_pool,
            drop_rate=drop_rate,
        )
        self.dynamic_img_size = dynamic_img_size
        self.tokens_to_token = TokensToToken(
            img_size, patch_size, in_chans, embed_dim, tokens_type, token_dim, kernel_ratio, token_drop_rate
        )
        rows, columns = self.tokens_to_token.grid_size
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(sinusoid(1 + rows * columns, embed_dim), requires_grad=False)
        self.pos_drop = nn.Dropout(pos_drop_rate)
        rates: list[float] = calculate_drop_path_rates(drop_path_rate, depth)  # type: ignore[assignment]
        self.blocks = nn.ModuleList(
            LvVitBlock(  # with a divisor of 1 this is the block of T2T-ViT
                embed_dim,
                num_heads,
                mlp_ratio,
                qkv_bias,
                skip_lam=1.0,
                proj_drop=proj_drop_rate,
                attn_drop=attn_drop_rate,
                drop_path=rate,
            )
            for rate in rates
        )
        for block in self.blocks if qk_scale is not None else ():
            block.attn.scale = float(qk_scale)  # type: ignore[union-attr]
        self.norm = nn.LayerNorm(embed_dim)
        self.apply(init_linear)
        trunc_normal_(self.cls_token, std=0.02)

    @property
    def patch_embed(self) -> TokensToToken:
        """The tokens-to-token module, under timm's name of a patch embedding."""
        return self.tokens_to_token

    def embed(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Return the tokens (B, 1 + H * W, C) of images, including positions, and the (rows, columns) of their grid."""
        height, width = x.shape[2:]
        built_size = self.tokens_to_token.img_size
        if (height, width) != built_size and not self.dynamic_img_size:
            raise ValueError(
                f"the images have {height}x{width} pixels, but the model is built for {built_size[0]}x{built_size[1]}: "
                "call set_input_size, or build the model with img_size or dynamic_img_size"
            )
        cells, grid = self.tokens_to_token(x)
        tokens = torch.cat((self.cls_token.expand(cells.shape[0], -1, -1), cells), 1)
        return self.pos_drop(self.add_positions(tokens, grid)), grid

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Set whether blocks and token layers are computed again in the backward pass, to save memory."""
        super().set_grad_checkpointing(enable)
        self.tokens_to_token.grad_checkpointing = enable


def sinusoid(count: int, channels: int) -> Tensor:
    """Return a position embedding (1, count, channels) of sines and cosines.

    Channel j of position p is the sine, or for odd j the cosine, of p / 10000^(2 * floor(j / 2) / channels).
    """
    index = torch.arange(count, dtype=torch.float64).unsqueeze(1)
    entry = torch.arange(channels)
    angle = index / 10000 ** (2 * (entry // 2).double() / channels)
    return torch.where(entry % 2 == 0, angle.sin(), angle.cos()).float().unsqueeze(0)


def checkpoint_filter_fn(state: Mapping[str, Tensor], model: T2tVit) -> dict[str, Tensor]:
    """Interpolate a checkpoint's position embedding for square images of another size, and adapt the input channels.

    As in timm's conversion of convolutions, weights are summed over the channels for grey images, and repeated for more
    channels. The parameters of the preceding layer norm are averaged over the channels. Therefore, the
    output for a grey image equals the output for three equal channels, if the norm's parameters were equal for all
    channels.
    """
    stem = model.tokens_to_token
    fitted = fit_position_embedding(state, model.pos_embed, stem.grid_size)
    for name, parameter in stem.attention1.named_parameters(prefix="tokens_to_token.attention1"):
        value = fitted.get(name)
        if value is not None and value.shape != parameter.shape and name.endswith(_PIXEL_PARAMETERS):
            fitted[name] = _with_channels(value, parameter, model.in_chans)
            if name.endswith("attn.qkv.weight") and fitted[name] is not value:
                # Attention divides by the root of the layer's width, which has changed; scaled queries correct this.
                fitted[name][: len(parameter) // 3] *= (parameter.shape[1] / value.shape[1]) ** 0.5
    return fitted


def _with_channels(value: Tensor, parameter: Tensor, channels: int) -> Tensor:
    """Return a parameter (..., C * 7 * 7) of the first layer for another C; return other tensors unchanged."""
    count, remainder = divmod(value.shape[-1], FIRST_WINDOW**2) if value.ndim else (0, 1)
    if remainder or not count or value.ndim != parameter.ndim or value.shape[:-1] != parameter.shape[:-1]:
        return value
    split = value.unflatten(-1, (count, FIRST_WINDOW, FIRST_WINDOW))
    if value.ndim == 1:
        return split.mean(0).repeat(channels, 1, 1).flatten()
    return adapt_input_conv(channels, split, base_chans=count).flatten(1).clone()


# Names of the first linear layer, whose input is the image, by `tokens_type`.
_FIRST_LAYERS = {"performer": "tokens_to_token.attention1.kqv", "transformer": "tokens_to_token.attention1.attn.qkv"}
_NARROW = {"embed_dim": 256, "num_heads": 4, "mlp_ratio": 2.0}
_DEPTH_14 = {"embed_dim": 384, "depth": 14, "num_heads": 6}
_DEPTH_19 = {"embed_dim": 448, "depth": 19, "num_heads": 7}
_DEPTH_24 = {"embed_dim": 512, "depth": 24, "num_heads": 8}
_VARIANTS: dict[str, dict[str, Any]] = {
    "t2t_vit_7": {"depth": 7, **_NARROW},  # 4.3M parameters
    "t2t_vit_10": {"depth": 10, **_NARROW},  # 5.9M parameters
    "t2t_vit_12": {"depth": 12, **_NARROW},  # 6.9M parameters
    "t2t_vit_14": _DEPTH_14,  # 21.5M parameters
    "t2t_vit_19": _DEPTH_19,  # 39.2M parameters
    "t2t_vit_24": _DEPTH_24,  # 64.1M parameters
    "t2t_vit_t_14": {**_DEPTH_14, "tokens_type": "transformer"},
    "t2t_vit_t_19": {**_DEPTH_19, "tokens_type": "transformer"},
    "t2t_vit_t_24": {**_DEPTH_24, "tokens_type": "transformer"},
}
default_cfgs = generate_default_cfgs(
    {
        name: make_default_cfg(
            _FIRST_LAYERS[settings.get("tokens_type", "performer")], fixed_input_size=True, license="bsd-3-clause-clear"
        )
        for name, settings in _VARIANTS.items()
    }
)


def _config_changes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    tokens = arguments.get("tokens_type")
    # The model raises an error for other values.
    return {"first_conv": _FIRST_LAYERS[tokens]} if tokens in _FIRST_LAYERS else {}


register_variants(__name__, "T2T-ViT (Yuan et al. 2021)", T2tVit, _VARIANTS, checkpoint_filter_fn, 3, _config_changes)
