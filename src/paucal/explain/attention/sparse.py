"""Where the keys of Vision Longformer's sparse attention lie: chunks of near cells, and global tokens.

Such a layer is two: cells attend to near cells and to global tokens, and its submodule `to_all` is the attention of the
global tokens to everything.
"""

from typing import Any

import torch
from torch import Tensor

from paucal.backbones.families.vil_chunks import sparse_pairs
from paucal.explain.attention.calls import Call
from paucal.explain.attention.maps import AttentionMap, Tokens


def place_sparse(name: str, weights: Tensor, call: Call, prefix: tuple[str, ...]) -> AttentionMap:
    """Return the attention of the cells: a group per chunk of queries.

    Args:
        name: of the layer.
        weights: (B * chunks, heads, Q, g + K).
        call: of the layer, with (tokens, grid).
        prefix: names of the g global tokens.
    """
    layer: Any = call.layer
    tokens, grid = call.inputs
    found, first = sparse_pairs(grid, layer.window, layer.mode, tokens), len(prefix)
    cells = torch.arange(grid[0] * grid[1], device=weights.device)
    queries, keys = cells[None], cells[None]
    if found.queries is not None and found.restore is not None:
        queries = torch.full_like(found.queries, -first - 1)  # a cell that is there twice is read once
        queries[found.restore] = cells
        queries = queries.view(found.chunks, -1)
    if found.keys is not None:
        keys = found.keys.flatten(1)
    if found.hidden is not None:
        unseen = found.hidden.flatten(2).all(1).expand(found.chunks, -1)
        keys = torch.where(unseen, -first - 1, keys.expand(found.chunks, -1))
    of_globals = torch.arange(first, device=weights.device).expand(found.chunks, -1)
    own = Tokens(grid, prefix)
    return AttentionMap(
        name,
        weights.unflatten(0, (len(tokens), found.chunks)),
        own,
        own,
        queries + first,
        torch.cat((of_globals, keys.expand(found.chunks, -1) + first), 1),
    )


def place_global(name: str, weights: Tensor, call: Call, prefix: tuple[str, ...]) -> AttentionMap:
    """Return the attention of the global tokens to all tokens.

    Args:
        name: of the layer.
        weights: (B, heads, g, N).
        call: of the layer, whose block was given (tokens, grid).
        prefix: names of the g global tokens.
    """
    own = Tokens(call.block_inputs[1], prefix)
    queries, keys = (torch.arange(count, device=weights.device)[None] for count in weights.shape[2:])
    return AttentionMap(name, weights[:, None], own, own, queries, keys)
