"""Swin as in EsViT's code: for images of any size, such as the small crops of multi-crop training.

Li et al. 2022, "Efficient Self-supervised Vision Transformers for Representation Learning", Table 6: Swin-T, S and B
with windows of 7 and of 14 cells. The parameters are those of timm's Swin of the same size, so weights can be loaded in
both directions. At 224 pixels, the outputs are equal; at other sizes, timm shifts maps before padding
them instead of after (see `common.windows`).

A padded cell is zero after the norm, so its query, key and value are the biases of their projection. Here, padded cells
get these values after the projection, and are removed before the output projection. The papers' code also computes both
projections for padded cells, with the same result.
"""

from functools import partial
from typing import Any

from timm.layers.config import use_fused_attn
from timm.layers.patch_embed import PatchEmbed
from timm.models import generate_default_cfgs
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
from paucal.backbones.families.common.attention import add_bias, attend, is_fused_faster
from paucal.backbones.families.common.contract import DEIT_CROP_RATIO, make_default_cfg, register_variants
from paucal.backbones.families.common.windows import Size, Windows, pad_and_shift, unpad_and_unshift, window_mask

PAPER = "Swin in EsViT (Li et al. 2022)"  # in the table of models

PADDINGS = ("published", "masked", "shrunk")  # see `EsvitSwin`


def relative_bias(table: Tensor, table_window: Size, window: Size) -> Tensor:
    """Return the relative position bias of every pair of cells of a window.

    Entries are looked up by offset, so the window may be smaller than the window of the table. The result is not
    cached, since the table changes in training, and since the lookup takes less than 1 % of a block's time.

    Args:
        table: (offsets, heads) biases, with one row per offset in row-major order, starting at the most negative row
            and column offset.
        table_window: (rows, columns) of the window for which the table was built.
        window: (rows, columns) of the window, not larger than `table_window`.

    Returns:
        (heads, queries, keys) biases.
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

    The bias is not repeated for the images of a batch. Explicit weights pass through `drop` as
    (B * windows, heads, N, N), as in timm.

    Args:
        query: (B, windows, heads, N, d) queries.
        key: (B, windows, heads, N, d) keys.
        value: (B, windows, heads, N, d) values.
        bias: (windows or 1, heads, N, N) biases.
        scale: Factor of the products of queries and keys.
        fused: Whether the fused kernel may be used.
        drop: Dropout module of the attention weights.

    Returns:
        (B, windows, heads, N, d) weighted sums of the values.
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
        out = attend_windows(query, key, value, self._bias(windows, x), self.scale, self.fused_attn, self.attn_drop)
        out = out.view(-1, down, across, heads, rows, columns, out.shape[-1]).permute(0, 1, 4, 2, 5, 3, 6)
        out = unpad_and_unshift(out.reshape(-1, *windows.padded_size, qkv.shape[-1] // 3), windows)
        return self.proj_drop(self.proj(out))

    def _bias(self, windows: Windows, like: Tensor) -> Tensor:
        full: Size = self.window_size  # type: ignore[assignment]
        bias = relative_bias(self.relative_position_bias_table, full, windows.window)[None]
        if not windows.needs_mask:
            return bias
        # The papers' code adds -100 instead of -inf, which gives the same softmax in float32.
        return bias.masked_fill(window_mask(windows, like)[:, None], float("-inf"))


def _window_groups(call: AttentionCall, weights: Tensor, image_size: Size) -> AttentionGroups:
    features = call.block_inputs[0]
    grid = (features.shape[1], features.shape[2])
    windows = call.block.windows(grid)
    indices = pad_and_shift(cell_indices(grid, features) + 1, windows) - 1  # zero padding becomes -1
    return window_groups(grid, window_partition(indices, windows.window))


class PaddedSwinBlock(SwinTransformerBlock):
    """timm's block, with the same parameters, for maps of any size.

    Attributes:
        padding: "published", "masked" or "shrunk", see `EsvitSwin`.
    """

    attention_layout = AttentionLayout(find_groups=_window_groups)
    padding: str

    @classmethod
    def convert_in_place(cls, block: SwinTransformerBlock, padding: str) -> None:
        """Turn one of timm's blocks into a `PaddedSwinBlock`, in place.

        timm's constructors do not allow another class for the blocks. Since parameters and initialisation are the same,
        the class of the existing blocks is changed instead of building new blocks.
        """
        block.__class__ = cls
        block.attn.__class__ = PaddedWindowAttention
        block.attn.fused_attn = use_fused_attn()  # timm's Swin sets this only if experimental kernels are on
        block.padding = padding  # type: ignore[assignment]

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
                PaddedSwinBlock.convert_in_place(module, padding)


default_cfgs = generate_default_cfgs(
    {
        f"esvit_swin_{size}_patch4_window{window}_224": make_default_cfg(
            "patch_embed.proj",
            "head.fc",
            pool_size=(7, 7),
            fixed_input_size=True,
            crop_pct=DEIT_CROP_RATIO,
            license="mit",
        )
        for size in ("tiny", "small", "base")
        for window in (7, 14)
    }
)
_TINY = {"embed_dim": 96, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24), "drop_path_rate": 0.1}
_SMALL = {**_TINY, "depths": (2, 2, 18, 2), "drop_path_rate": 0.2}
_BASE = {**_SMALL, "embed_dim": 128, "num_heads": (4, 8, 16, 32)}


_VARIANTS = {
    "esvit_swin_tiny_patch4_window7_224": {**_TINY, "window_size": 7},  # 28.3M parameters
    "esvit_swin_tiny_patch4_window14_224": {**_TINY, "window_size": 14},  # the last stage has windows of 7
    "esvit_swin_small_patch4_window7_224": {**_SMALL, "window_size": 7},  # 49.6M parameters
    "esvit_swin_small_patch4_window14_224": {**_SMALL, "window_size": 14},
    "esvit_swin_base_patch4_window7_224": {**_BASE, "window_size": 7},  # 87.8M parameters
    "esvit_swin_base_patch4_window14_224": {**_BASE, "window_size": 14},
}
register_variants(__name__, EsvitSwin, _VARIANTS, checkpoint_filter_fn)
