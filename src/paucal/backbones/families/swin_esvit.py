"""Swin as EsViT trains it: for images of any size, above all the small crops of multi-crop training.

Li et al. 2022, "Efficient Self-supervised Vision Transformers for Representation Learning", Table 6: Swin-T, S and B
with windows of 7 and of 14. The parameters are those of timm's Swin of the same size, and each loads the other's
weights. At 224 pixels both compute the same; at other sizes timm pads in another order (see `common.windows`).

A padded cell is zero after the norm, so its query, key and value are the biases of their projection. Here these are
filled in after the projection, and padding is cut off before the output projection. The papers' code computes both
projections for padding too, with the same result.
"""

from functools import partial
from typing import Any

from timm.layers.config import use_fused_attn
from timm.layers.patch_embed import PatchEmbed
from timm.models import generate_default_cfgs
from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock, WindowAttention, window_partition
from timm.models.swin_transformer import checkpoint_filter_fn as checkpoint_filter_fn
from torch import Tensor, nn

from paucal.backbones.attention_layout import AttentionGroups, AttentionLayout, Call, cell_indices, window_groups
from paucal.backbones.families.common.attention import add_bias, attend, is_fused_faster
from paucal.backbones.families.common.contract import DEIT_CROP_RATIO, configuration, register_variants
from paucal.backbones.families.common.windows import Size, Windows, pad_and_shift, unpad_and_unshift, window_mask

PADDINGS = ("published", "masked", "shrunk")


def relative_bias(table: Tensor, of: Size, window: Size) -> Tensor:
    """Look up the relative position bias of every pair of cells of a window.

    Entries are found by offset, so a window may be smaller than the table's. The result is not cached, since that could
    get stale and computing it takes under 1 % of a block's time.

    Args:
        table: (offsets, heads), offsets row by row from the most negative.
        of: (rows, columns) of the window for which the table was built.
        window: (rows, columns) of the window, at most those of `of`.

    Returns:
        (heads, queries, keys).
    """
    (window_height, window_width), (rows, columns) = of, window
    offsets = table.t().reshape(-1, 2 * window_height - 1, 2 * window_width - 1)
    offsets = offsets[
        :, window_height - rows : window_height + rows - 1, window_width - columns : window_width + columns - 1
    ]
    # [query row, query column, key row, key column] is then the offset query - key: keys run backwards.
    pairs = offsets.flip(1, 2).unfold(1, rows, 1).unfold(2, columns, 1).flip(1, 2)
    return pairs.reshape(-1, rows * columns, rows * columns)


def attend_windows(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float, fused: bool, drop: nn.Dropout
) -> Tensor:
    """Apply `attend` within windows, which have a bias each or share one.

    The bias is never repeated for the images of a batch. The weights reach `drop` as (B * windows, heads, N, N), as in
    timm.

    Args:
        query: (B, windows, heads, N, d), as are key and value.
        key: See query.
        value: See query.
        bias: (windows or 1, heads, N, N).
        scale: Factor on the products of queries and keys.
        fused: Whether the fused kernel may be used.
        drop: Dropout rate of the attention weights.

    Returns:
        (B, windows, heads, N, d).
    """
    if bias.shape[0] == 1:
        q, k, v = (part.flatten(0, 1) for part in (query, key, value))
        return attend(q, k, v, bias, scale, fused, drop).view(value.shape)
    if fused and is_fused_faster(query, bias):
        q, k, v = (part.flatten(1, 2) for part in (query, key, value))  # windows beside heads
        return attend(q, k, v, bias.flatten(0, 1)[None], scale, fused, drop).view(value.shape)
    weights = add_bias((query * scale) @ key.transpose(-2, -1), bias).softmax(-1)
    return (drop(weights.flatten(0, 1)).to(value.dtype) @ value.flatten(0, 1)).view(value.shape)


class PaddedWindowAttention(WindowAttention):
    """timm's window attention with the same parameters, applied to a whole map of any size."""

    def forward(self, x: Tensor, windows: Windows) -> Tensor:  # type: ignore[override]
        """Return the output (B, H, W, C) for a normed map (B, H, W, C)."""
        if windows.padded == windows.size:
            # The input has a third of the channels of qkv, so shifting it is cheaper.
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
        out = unpad_and_unshift(out.reshape(-1, *windows.padded, qkv.shape[-1] // 3), windows)
        return self.proj_drop(self.proj(out))

    def _bias(self, windows: Windows, like: Tensor) -> Tensor:
        full: Size = self.window_size  # type: ignore[assignment]
        bias = relative_bias(self.relative_position_bias_table, full, windows.window)[None]
        if not windows.needs_mask:
            return bias
        # The papers' code adds -100, which makes no difference after a softmax in float32.
        return bias.masked_fill(window_mask(windows, like)[:, None], float("-inf"))


def _places(call: Call, weights: Tensor, image_size: Size) -> AttentionGroups:
    features = call.block_inputs[0]
    grid = (features.shape[1], features.shape[2])
    windows = call.block.windows(grid)
    laid_out = pad_and_shift(cell_indices(grid, features) + 1, windows) - 1  # padding, which is 0 there, becomes -1
    return window_groups(grid, window_partition(laid_out, windows.window))


class PaddedSwinBlock(SwinTransformerBlock):
    """timm's block with the same parameters, for a map of any size.

    Attributes:
        padding: "published", "masked" or "shrunk", see `EsvitSwin`.
    """

    attention_layout = AttentionLayout(find_groups=_places)
    padding: str

    @classmethod
    def adopt(cls, block: SwinTransformerBlock, padding: str) -> None:
        """Turn one of timm's blocks into a `PaddedSwinBlock`, in place.

        timm's constructors build the blocks without letting the caller choose their class. Parameters and
        initialisation are the same, so changing the class avoids building the blocks twice.
        """
        block.__class__ = cls
        block.attn.__class__ = PaddedWindowAttention
        block.attn.fused_attn = use_fused_attn()  # in Swin, timm uses it only where experimental kernels are on
        block.padding = padding  # type: ignore[assignment]

    def windows(self, size: Size) -> Windows:
        """Return how a map of (rows, columns) is cut."""
        cut = Windows(size, self.window_size, self.shift_size, hides_padding=self.padding != "published")
        return cut.shrunk() if self.padding == "shrunk" else cut

    def _attn(self, x: Tensor) -> Any:
        return self.attn(x, self.windows((x.shape[1], x.shape[2])))


class AnySizePatchEmbed(PatchEmbed):
    """timm's patch embedding for images of any size, padded with zeros at the right and the bottom."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{**arguments, "strict_img_size": False, "dynamic_img_pad": True})

    def forward(self, x: Tensor) -> Tensor:
        """Embed the patches; compiled code is bound to the size of the images."""
        # At a second image size torch.compile would make the size symbolic, and then spend minutes on the algebra of an
        # unknown number of windows. A range needs its length, which keeps the size fixed.
        _ = range(x.shape[2]), range(x.shape[3])
        return super().forward(x)


class EsvitSwin(SwinTransformer):
    """timm's Swin with the papers' padding.

    Windows and shifts are fixed when the model is built, from `img_size`: where a stage's grid is no larger than its
    window, the window becomes the grid and nothing is shifted. Images of any other size can then be given; windows are
    padded where the map ends, and an image that is not a multiple of the patch is padded with zeros.

    Args:
        padding: Treatment of padded cells. "published": they take part in attention like others, with the bias of the
            projection as their content, as in EsViT's code; in the last stage of a 96-pixel crop they are 5 of 6 cells.
            "masked": cells do not see them. "shrunk": a window larger than the map is shrunk to it, with the relative
            positions looked up in the same table, and the remaining padding is masked.
        norm_eps: Epsilon of all layer norms; 1e-6 in EsViT.
        arguments: Arguments of timm's `SwinTransformer`.
    """

    def __init__(self, *, padding: str = "published", norm_eps: float = 1e-6, **arguments: Any) -> None:
        if padding not in PADDINGS:
            raise ValueError(f"padding is {padding!r}; EsvitSwin has {', '.join(map(repr, PADDINGS))}")
        defaults = {"norm_layer": partial(nn.LayerNorm, eps=norm_eps), "embed_layer": AnySizePatchEmbed}
        super().__init__(**{**defaults, **arguments, "strict_img_size": False})
        self.padding = padding
        for module in self.modules():
            if isinstance(module, SwinTransformerBlock):
                PaddedSwinBlock.adopt(module, padding)


default_cfgs = generate_default_cfgs(
    {
        f"esvit_swin_{size}_patch4_window{window}_224": configuration(
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
    "esvit_swin_small_patch4_window7_224": {**_SMALL, "window_size": 7},  # 49.6M
    "esvit_swin_small_patch4_window14_224": {**_SMALL, "window_size": 14},
    "esvit_swin_base_patch4_window7_224": {**_BASE, "window_size": 7},  # 87.8M
    "esvit_swin_base_patch4_window14_224": {**_BASE, "window_size": 14},
}
register_variants(__name__, EsvitSwin, _VARIANTS, checkpoint_filter_fn)
