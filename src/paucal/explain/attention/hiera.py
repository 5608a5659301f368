"""Which cells Hiera's tokens are: it keeps them in an order in which pooling joins neighbours (Ryali et al. 2023).

Tokens are unrolled so that the four cells of a pooled one lie a quarter of all tokens apart; a mask unit is every n-th
token. An order of indices is led through the blocks as the tokens are.
"""

from dataclasses import dataclass
from typing import Any

import torch
from timm.models.hiera import Hiera, MaskUnitAttention
from torch import Tensor, nn

from paucal.explain.attention.calls import Call
from paucal.explain.attention.maps import AttentionMap, Size, Tokens


@dataclass(frozen=True)
class _Order:
    """The tokens between two blocks.

    Attributes:
        grid: (rows, columns) of the cells.
        cells: index in that grid, row by row, of each token.
    """

    grid: Size
    cells: Tensor

    def pooled(self, stride: Size) -> "_Order":
        """Return the order after pooling, as the tokens are pooled."""
        rows, columns = self.grid
        kept = self.cells[: len(self.cells) // (stride[0] * stride[1])]  # one of the cells of each pooled token
        grid = (rows // stride[0], columns // stride[1])
        return _Order(grid, kept // columns // stride[0] * grid[1] + kept % columns // stride[1])


def place_hiera(name: str, weights: Tensor, call: Call, model: nn.Module) -> AttentionMap:
    """Return the attention of a layer of Hiera with its places.

    Args:
        name: of the layer.
        weights: (B, heads, units, Q, K), or (B, heads, Q, K) where all tokens see each other.
        call: what the layer was called with.
        model: the whole.
    """
    layer = call.layer
    assert isinstance(layer, MaskUnitAttention)
    whole: Any = next(part for part in model.modules() if isinstance(part, Hiera))
    seen = asked = _first(whole, weights.device)
    for block in whole.blocks:
        seen = asked
        if block.attn.q_stride > 1:
            asked = seen.pooled(tuple(whole.q_stride))
        if block.attn is layer:
            break
    units = weights.shape[2] if weights.ndim == 5 else 1
    places = [order.cells.view(-1, units).T for order in (asked, seen)]
    return AttentionMap(name, in_units(weights), Tokens(asked.grid), Tokens(seen.grid), places[0], places[1])


def in_units(weights: Tensor) -> Tensor:
    """Return weights, or their gradients, as (B, units, heads, Q, K)."""
    return weights.transpose(1, 2) if weights.ndim == 5 else weights[:, None]


def _first(whole: Any, device: torch.device) -> _Order:
    rows, columns = (int(side) for side in whole.tokens_spatial_shape)
    cells = torch.arange(rows * columns, device=device).view(1, -1, 1)
    return _Order((rows, columns), whole.unroll(cells).flatten())
