"""The blocks of a Swin whose maps need not divide into windows, after timm's, whose weights they share.

A padded cell is zero after the norm, so that its query, key and value are the biases of their projection. They are
filled in after the projection here, and padding is cut off before the output projection: neither is computed for
padding, as both are in the papers' programs, with the same result.
"""

from typing import Any

from timm.layers.config import use_fused_attn
from timm.models.swin_transformer import SwinTransformerBlock, WindowAttention
from torch import Tensor, nn

from paucal.backbones.families.common.attention import attend, biased, is_fused_faster
from paucal.backbones.families.common.windows import Size, Windows, kept_apart, lay_out, take_back

PADDINGS = ("published", "masked", "shrunk")


def relative_bias(table: Tensor, of: Size, window: Size) -> Tensor:
    """Look up the relative position bias of every pair of cells of a window.

    Looked up by offset, so that a window may be smaller than the table's. Cheap enough (under 1 % of a block) not
    to be kept between calls, where it could get stale.

    Args:
        table: (offsets, heads), offsets row by row from the most negative.
        of: (rows, columns) of the window that the table is for.
        window: (rows, columns), at most those.

    Returns:
        (heads, queries, keys).
    """
    (high, wide), (rows, columns) = of, window
    offsets = table.t().reshape(-1, 2 * high - 1, 2 * wide - 1)
    offsets = offsets[:, high - rows : high + rows - 1, wide - columns : wide + columns - 1]
    # [query row, query column, key row, key column] is then the offset query - key: keys run backwards.
    pairs = offsets.flip(1, 2).unfold(1, rows, 1).unfold(2, columns, 1).flip(1, 2)
    return pairs.reshape(-1, rows * columns, rows * columns)


def attend_windows(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float, fused: bool, drop: nn.Dropout
) -> Tensor:
    """Apply `attend` within windows, each window with a bias of its own or all with one.

    The bias is never repeated for the images of a batch. The weights reach `drop` as (B * windows, heads, N, N), as in
    timm.

    Args:
        query: (B, windows, heads, N, d), as are key and value.
        key: see query.
        value: see query.
        bias: (windows or 1, heads, N, N).
        scale: of the products.
        fused: whether the fused kernel may be used.
        drop: dropout of the weights.

    Returns:
        (B, windows, heads, N, d).
    """
    if bias.shape[0] == 1:
        q, k, v = (part.flatten(0, 1) for part in (query, key, value))
        return attend(q, k, v, bias, scale, fused, drop).view(value.shape)
    if fused and is_fused_faster(query, bias):
        q, k, v = (part.flatten(1, 2) for part in (query, key, value))  # windows beside heads
        return attend(q, k, v, bias.flatten(0, 1)[None], scale, fused, drop).view(value.shape)
    weights = biased((query * scale) @ key.transpose(-2, -1), bias).softmax(-1)
    return (drop(weights.flatten(0, 1)).to(value.dtype) @ value.flatten(0, 1)).view(value.shape)


class PaddedWindowAttention(WindowAttention):
    """timm's window attention with the same parameters, applied to a whole map of any size."""

    def forward(self, x: Tensor, windows: Windows) -> Tensor:  # type: ignore[override]
        """Return the output (B, H, W, C) for a normed map (B, H, W, C)."""
        if windows.padded == windows.size:
            qkv = self.qkv(lay_out(x, windows))  # a third of the channels to shift
        else:
            qkv = lay_out(self.qkv(x), windows, self.qkv.bias)
        (down, across), (rows, columns), heads = windows.counts, windows.window, self.num_heads
        parts = qkv.view(-1, down, rows, across, columns, 3, heads, qkv.shape[-1] // (3 * heads))
        parts = parts.permute(5, 0, 1, 3, 6, 2, 4, 7).reshape(
            3, -1, down * across, heads, rows * columns, parts.shape[-1]
        )
        query, key, value = parts.unbind(0)
        out = attend_windows(query, key, value, self._bias(windows, x), self.scale, self.fused_attn, self.attn_drop)
        out = out.view(-1, down, across, heads, rows, columns, out.shape[-1]).permute(0, 1, 4, 2, 5, 3, 6)
        out = take_back(out.reshape(-1, *windows.padded, qkv.shape[-1] // 3), windows)
        return self.proj_drop(self.proj(out))

    def _bias(self, windows: Windows, like: Tensor) -> Tensor:
        full: Size = self.window_size  # type: ignore[assignment]
        bias = relative_bias(self.relative_position_bias_table, full, windows.window)[None]
        if not windows.needs_mask:
            return bias
        # The papers' programs add -100, which is nothing beside it after the softmax in float32.
        return bias.masked_fill(kept_apart(windows, like)[:, None], float("-inf"))


class PaddedSwinBlock(SwinTransformerBlock):
    """timm's block with the same parameters, for a map of any size.

    Attributes:
        padding: "published", "masked" or "shrunk", see `EsvitSwin`.
    """

    padding: str

    @classmethod
    def adopt(cls, block: SwinTransformerBlock, padding: str) -> None:
        """Turn one of timm's blocks into one of this kind, in place.

        timm's constructors build the blocks and take no class for them; the parameters and their initialisation are
        the same, so that nothing is built twice.
        """
        block.__class__ = cls
        block.attn.__class__ = PaddedWindowAttention
        block.attn.fused_attn = use_fused_attn()  # timm leaves it out for its Swin unless asked for experiments
        block.padding = padding  # type: ignore[assignment]

    def windows(self, size: Size) -> Windows:
        """Return how a map of that many rows and columns is cut."""
        cut = Windows(size, self.window_size, self.shift_size, hides_padding=self.padding != "published")
        return cut.shrunk() if self.padding == "shrunk" else cut

    def _attn(self, x: Tensor) -> Any:
        return self.attn(x, self.windows((x.shape[1], x.shape[2])))
