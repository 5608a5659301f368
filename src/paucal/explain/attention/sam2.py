"""Which cells lie in which window of SAM 2's Hiera, which pools queries within windows (Ravi et al. 2024)."""

from typing import Any

from torch import Tensor

from paucal.explain.attention.calls import Call
from paucal.explain.attention.maps import AttentionMap, Tokens
from paucal.explain.attention.windows import cut_from_the_corner


def place_sam2(name: str, weights: Tensor, call: Call) -> AttentionMap:
    """Return the attention of a layer with its places.

    Cells of padding are keys like others, and where queries are pooled, one of them may stand for cells and padding.

    Args:
        name: of the layer.
        weights: (B, windows, heads, Q, K).
        call: what the layer was called with.
    """
    block: Any = call.block
    features = call.block_inputs[0]
    rows, columns = int(features.shape[1]), int(features.shape[2])
    window = tuple(block.window_size) if block.is_windowed else (rows, columns)
    keys = cut_from_the_corner((rows, columns), window, features)
    down, right = block.q_stride or (1, 1)
    # The pooled map is cut off where the shortcut's is, which drops the rest of a side that the stride does not divide.
    grid = (rows // down, columns // right)
    queries = cut_from_the_corner(grid, (window[0] // down, window[1] // right), features)
    return AttentionMap(name, weights, Tokens(queries.grid), Tokens(keys.grid), queries.places, keys.places)
