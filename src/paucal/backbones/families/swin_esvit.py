"""Swin as in EsViT's code: for images of any size, such as the small crops of multi-crop training.

Li et al. 2022, "Efficient Self-supervised Vision Transformers for Representation Learning", Table 6: Swin-T, S and B
with windows of 7 and of 14 cells. The parameters are those of timm's Swin of the same size, so weights can be loaded in
both directions. The models `padded_swin_*` are timm's Swins with the same names, and their weights, as in the Swin
authors' code for detection and segmentation (Liu et al., ICCV 2021).

Maps are padded on the right and bottom to a multiple of the window, then shifted cyclically. Cells that are shifted to
the opposite border must not attend to their new neighbours, which a mask prevents. timm shifts maps before padding
them, which puts other cells into a window. At 224 pixels, the outputs are equal. They differ if the sides of a map are
not multiples of the window.

A padded cell is zero after the norm, so its query, key and value are the biases of their projection. Here, padded cells
get these values after the projection, and are removed before the output projection. The papers' code also computes both
projections for padded cells, with the same result.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from timm.layers.config import use_fused_attn
from timm.layers.patch_embed import PatchEmbed
from timm.models import generate_default_cfgs
from timm.models._registry import get_arch_pretrained_cfgs
from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock, WindowAttention, window_partition
from timm.models.swin_transformer import checkpoint_filter_fn as checkpoint_filter_fn
from torch import Tensor, nn

from paucal.backbones.attention_layout import (
    AttentionCall,
    AttentionGroups,
    AttentionLayout,
    cell_indices,
    window_groups,
)
from paucal.backbones.families.common.attention import add_bias, attend, cached_on_device, is_fused_faster
from paucal.backbones.families.common.contract import DEIT_CROP_RATIO, make_default_cfg, register_variants

Size = tuple[int, int]
PADDINGS = ("published", "masked", "shrunk")  # see `EsvitSwin`


class Windows(NamedTuple):
    """How a map is divided into windows."""

    size: Size  # (rows, columns) of the map
    window: Size  # (rows, columns) of a window
    shift: Size  # (up, left) number of cells by which the padded map is shifted
    hides_padding: bool = False  # whether cells must not attend to padding

    @property
    def padded_size(self) -> Size:
        """(rows, columns) of the map after padding."""
        (height, width), (rows, columns) = self.size, self.window
        return height + -height % rows, width + -width % columns

    @property
    def counts(self) -> Size:
        """Number of windows along the height and along the width."""
        return self.padded_size[0] // self.window[0], self.padded_size[1] // self.window[1]

    @property
    def needs_mask(self) -> bool:
        """Whether some cells of a window must not attend to each other."""
        return any(self.shift) or (self.hides_padding and self.padded_size != self.size)

    def shrink_to_map(self) -> "Windows":
        """Return windows that are not larger than the map, and are not shifted along sides with a single window."""
        (height, width), (rows, columns), (up, left) = self.size, self.window, self.shift
        return self._replace(
            window=(min(rows, height), min(columns, width)),
            shift=(up if height > rows else 0, left if width > columns else 0),
        )


def pad_and_shift(x: Tensor, windows: Windows, fill: Tensor | None = None) -> Tensor:
    """Pad a map (B, H, W, C) with `fill` (C,) or zeros, and shift it, so that it can be divided into windows."""
    for axis, padded in zip((1, 2), windows.padded_size, strict=True):
        if padded > x.shape[axis]:
            shape = [padded - side if index == axis else side for index, side in enumerate(x.shape)]
            filling = x.new_zeros(shape) if fill is None else fill.to(x.dtype).expand(shape)
            x = torch.cat([x, filling], axis)
    up, left = windows.shift
    return x.roll((-up, -left), (1, 2)) if up or left else x


def unpad_and_unshift(x: Tensor, windows: Windows) -> Tensor:
    """Undo `pad_and_shift`: return the (B, H, W, C) map shifted back and without padding."""
    x = x.roll(windows.shift, (1, 2)) if any(windows.shift) else x
    return x if windows.padded_size == windows.size else x[:, : windows.size[0], : windows.size[1]]


@cached_on_device
def window_mask(windows: Windows, device: torch.device) -> Tensor:
    """Return the mask (windows, queries, keys), which is True where a query must not attend to a key.

    Cells that are neighbours only because of the cyclic shift must not attend to each other. Padding may attend to all
    cells, so that every query has a key; the padding's output is not used.
    """
    sides = []
    for size, padded, shift in zip(windows.size, windows.padded_size, windows.shift, strict=True):
        index = torch.arange(padded, device=device)
        sides.append((index >= padded - shift, (index + shift) % padded >= size))
    (is_wrapped_row, is_padded_row), (is_wrapped_column, is_padded_column) = sides
    region = _divide_into_windows(is_wrapped_row[:, None] * 2 + is_wrapped_column, windows)
    mask = region[:, :, None] != region[:, None, :]
    if windows.hides_padding:
        padding = _divide_into_windows(is_padded_row[:, None] | is_padded_column, windows)
        mask = mask | (padding[:, None, :] & ~padding[:, :, None])
    return mask


def _divide_into_windows(cells: Tensor, windows: Windows) -> Tensor:
    """Divide (H, W) values of cells into (windows, cells per window)."""
    (down, across), (rows, columns) = windows.counts, windows.window
    return cells.view(down, rows, across, columns).transpose(1, 2).reshape(down * across, rows * columns)


def relative_bias(table: Tensor, table_window: Size, window: Size) -> Tensor:
    """Return the relative position biases (heads, queries, keys) of a window from the table of a larger window.

    The table is (offsets, heads), with offsets in row-major order, the most negative first. The result is not cached,
    since the table changes in training, and since the lookup takes less than 1 % of a block's time.
    """
    (window_height, window_width), (rows, columns) = table_window, window
    offsets = table.t().reshape(-1, 2 * window_height - 1, 2 * window_width - 1)
    offsets = offsets[
        :, window_height - rows : window_height + rows - 1, window_width - columns : window_width + columns - 1
    ]
    # The offset of a query and a key is query - key, so the axes of the keys are in reverse order.
    pairs = offsets.flip(1, 2).unfold(1, rows, 1).unfold(2, columns, 1).flip(1, 2)
    return pairs.reshape(-1, rows * columns, rows * columns)


def attend_windows(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float, fused: bool, drop: nn.Dropout
) -> Tensor:
    """Apply `attend` within windows, with one bias per window or the same bias for all windows.

    Queries, keys, values and the result are (B, windows, heads, N, d), the bias is (windows or 1, heads, N, N) and not
    repeated for the images of a batch. Explicit weights pass through `drop` as (B * windows, heads, N, N), as in timm.
    """
    if bias.shape[0] == 1:
        q, k, v = (part.flatten(0, 1) for part in (query, key, value))
        return attend(q, k, v, bias, scale, fused, drop).view(value.shape)
    if fused and is_fused_faster(query, bias):
        q, k, v = (part.flatten(1, 2) for part in (query, key, value))  # windows and heads in one axis
        return attend(q, k, v, bias.flatten(0, 1)[None], scale, fused, drop).view(value.shape)
    weights = add_bias((query * scale) @ key.transpose(-2, -1), bias).softmax(-1)
    return (drop(weights.flatten(0, 1)).to(value.dtype) @ value.flatten(0, 1)).view(value.shape)


class PaddedWindowAttention(WindowAttention):
    """timm's window attention, with the same parameters, for maps of any size."""

    def forward(self, x: Tensor, windows: Windows) -> Tensor:  # type: ignore[override]
        """Return the output (B, H, W, C) for a normalised map (B, H, W, C)."""
        if windows.padded_size == windows.size:
            # Shift the input, which has a third of the channels of the output of `qkv`.
            qkv = self.qkv(pad_and_shift(x, windows))
        else:
            qkv = pad_and_shift(self.qkv(x), windows, self.qkv.bias)
        (down, across), (rows, columns), heads = windows.counts, windows.window, self.num_heads
        parts = qkv.view(-1, down, rows, across, columns, 3, heads, qkv.shape[-1] // (3 * heads))
        parts = parts.permute(5, 0, 1, 3, 6, 2, 4, 7).reshape(
            3, -1, down * across, heads, rows * columns, parts.shape[-1]
        )
        query, key, value = parts.unbind(0)
        full: Size = self.window_size  # type: ignore[assignment]
        bias = relative_bias(self.relative_position_bias_table, full, windows.window)[None]
        if windows.needs_mask:
            # The papers' code adds -100 instead of -inf, which gives the same softmax in float32.
            bias = bias.masked_fill(window_mask(windows, x)[:, None], float("-inf"))
        out = attend_windows(query, key, value, bias, self.scale, self.fused_attn, self.attn_drop)
        out = out.view(-1, down, across, heads, rows, columns, out.shape[-1]).permute(0, 1, 4, 2, 5, 3, 6)
        out = unpad_and_unshift(out.reshape(-1, *windows.padded_size, qkv.shape[-1] // 3), windows)
        return self.proj_drop(self.proj(out))


def _window_groups(call: AttentionCall, weights: Tensor, image_size: Size) -> AttentionGroups:
    features = call.block_inputs[0]
    grid = (features.shape[1], features.shape[2])
    windows = call.block.windows(grid)
    indices = pad_and_shift(cell_indices(grid, features) + 1, windows) - 1  # zero padding becomes -1
    return window_groups(grid, window_partition(indices, windows.window))


class PaddedSwinBlock(SwinTransformerBlock):
    """timm's block, with the same parameters, for maps of any size; see `EsvitSwin` for `padding`."""

    attention_layout = AttentionLayout(find_groups=_window_groups)
    padding: str

    def windows(self, size: Size) -> Windows:
        """Return how a map with these (rows, columns) is divided into windows."""
        windows = Windows(size, self.window_size, self.shift_size, hides_padding=self.padding != "published")
        return windows.shrink_to_map() if self.padding == "shrunk" else windows

    def _attn(self, x: Tensor) -> Any:
        return self.attn(x, self.windows((x.shape[1], x.shape[2])))


class AnySizePatchEmbed(PatchEmbed):
    """timm's patch embedding for images of any size, which are padded with zeros on the right and bottom."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{**arguments, "strict_img_size": False, "dynamic_img_pad": True})

    def forward(self, x: Tensor) -> Tensor:
        """Embed the patches; `torch.compile` compiles again for each image size."""
        # For a second image size, torch.compile would use a symbolic size, and spend minutes on expressions with an
        # unknown number of windows. `range` needs integers, so the sizes stay constants.
        _ = range(x.shape[2]), range(x.shape[3])
        return super().forward(x)


class EsvitSwin(SwinTransformer):
    """timm's Swin with the papers' padding.

    Windows and shifts are determined by `img_size` when the model is built: if a stage's grid is not larger than the
    stage's window, the window is the grid and is not shifted. The built model accepts images of any size. Maps are
    padded to a multiple of the window, and images are padded with zeros to a multiple of the patch size.

    Args:
        padding: How padded cells are treated. "published": cells attend to padded cells as to other cells, and the keys
            and values of padded cells are the bias of the projection, as in EsViT's code; in the last stage of a
            96-pixel crop, 5 of 6 cells are padding. "masked": cells do not attend to padded cells. "shrunk": a window
            larger than the map gets the map's size, with relative positions from the same table, and the remaining
            padding is masked.
        norm_eps: Epsilon of all layer norms; 1e-6 in EsViT.
        arguments: Arguments of timm's `SwinTransformer`.
    """

    def __init__(self, *, padding: str = "published", norm_eps: float = 1e-6, **arguments: Any) -> None:
        if padding not in PADDINGS:
            raise ValueError(f"padding is {padding!r}; it must be one of {', '.join(map(repr, PADDINGS))}")
        defaults = {"norm_layer": partial(nn.LayerNorm, eps=norm_eps), "embed_layer": AnySizePatchEmbed}
        super().__init__(**{**defaults, **arguments, "strict_img_size": False})
        self.padding = padding
        for module in self.modules():
            if isinstance(module, SwinTransformerBlock):
                # timm's constructors do not allow another class for the blocks. Since parameters and initialisation are
                # the same, the class of the existing blocks is changed.
                module.__class__, module.attn.__class__ = PaddedSwinBlock, PaddedWindowAttention
                module.attn.fused_attn = use_fused_attn()  # timm's Swin sets this only if experimental kernels are on
                module.padding = padding  # type: ignore[assignment]


_TINY = {"embed_dim": 96, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24)}
_SMALL = {**_TINY, "depths": (2, 2, 18, 2)}
_BASE = {**_SMALL, "embed_dim": 128, "num_heads": (4, 8, 16, 32)}
_LARGE = {**_SMALL, "embed_dim": 192, "num_heads": (6, 12, 24, 48)}
# The models have 28.3M, 49.6M and 87.8M parameters. In the last stage, all have windows of 7.
_ESVIT_VARIANTS = {
    f"esvit_swin_{size}_patch4_window{window}_224": {**sizes, "drop_path_rate": rate, "window_size": window}
    for size, sizes, rate in (("tiny", _TINY, 0.1), ("small", _SMALL, 0.2), ("base", _BASE, 0.2))
    for window in (7, 14)
}
PREFIX, NORM_EPS = "padded_", 1e-5  # prefix of the padded models' names, and epsilon of their layer norms
ARGUMENTS_BY_NAME: Mapping[str, dict[str, Any]] = {
    f"swin_{size}_patch4_window7_224": sizes
    for size, sizes in (("tiny", _TINY), ("small", _SMALL), ("base", _BASE), ("large", _LARGE))
}
_PADDED_VARIANTS = {
    f"{PREFIX}{name}": {"window_size": 7, "norm_eps": NORM_EPS, **sizes} for name, sizes in ARGUMENTS_BY_NAME.items()
}
_ESVIT_CFG = make_default_cfg(
    "patch_embed.proj", "head.fc", pool_size=(7, 7), fixed_input_size=True, crop_pct=DEIT_CROP_RATIO, license="mit"
)
default_cfgs = generate_default_cfgs(
    {
        **dict.fromkeys(_ESVIT_VARIANTS, _ESVIT_CFG),
        **{f"{PREFIX}{tag}": cfg for name in ARGUMENTS_BY_NAME for tag, cfg in get_arch_pretrained_cfgs(name).items()},
    }
)
for _paper, _variants in (
    ("Swin in EsViT (Li et al. 2022)", _ESVIT_VARIANTS),
    ("Swin (Liu et al. 2021), padded before it is shifted", _PADDED_VARIANTS),
):
    register_variants(__name__, _paper, EsvitSwin, _variants, checkpoint_filter_fn)
