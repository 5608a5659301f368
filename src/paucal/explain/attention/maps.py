"""The attention of one layer, with the position of every query and key in the image."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paucal.backbones.attention_layout import Token, Tokens
from paucal.types import UserError

MAX_ENTRIES = 1 << 27  # entries of a dense matrix, half a GiB


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """The weights of one attention layer, in groups of queries that share their keys.

    Full attention is one group; windowed attention has a group per window. Where keys are pooled (PVT), they lie on a
    coarser grid of their own.

    Attributes:
        layer: Dotted name of the layer.
        weights: (B, groups, heads, Q, K) after the softmax, before dropout.
        tokens: Tokens of the queries.
        key_tokens: Tokens of the keys; the same tokens, except in layers that pool keys.
        queries: (groups, Q) indices among `tokens`, -1 for padding.
        keys: (groups, K) indices among `key_tokens`, -1 for padding.
    """

    layer: str
    weights: Tensor
    tokens: Tokens
    key_tokens: Tokens
    queries: Tensor
    keys: Tensor

    @property
    def heads(self) -> int:
        """The number of heads of the layer."""
        return self.weights.shape[2]

    def with_weights(self, weights: Tensor) -> "AttentionMap":
        """Return a copy with other weights (B, groups, heads, Q, K) at the same positions."""
        return replace(self, weights=weights)

    def asks(self) -> Tensor:
        """Return which tokens are queries of this layer, bool (tokens,): all, only a class token (CaiT), or cells."""
        is_query = torch.zeros(len(self.tokens), dtype=torch.bool, device=self.queries.device)
        is_query[self.queries[self.queries >= 0]] = True
        return is_query

    def row(self, token: Token) -> Tensor:
        """Return how much a token attends to every key, (B, heads, keys); padded keys are left out.

        Raises:
            UserError: there is no such token, or it is not a query of this layer.
        """
        query_positions = (self.queries == self.tokens.place(token)).nonzero()
        if not len(query_positions):
            raise UserError(f"{token!r} is not a query of the layer {self.layer!r}: choose another layer or token.")
        group, query = query_positions[0].tolist()
        return self._sum_by_key(self.weights[:, group, :, query], self.keys[group])

    def cell_map(self, token: Token) -> Tensor:
        """Return how much a token attends to every cell, (B, heads, rows, columns) of the keys' grid."""
        return self.key_tokens.to_grid(self.row(token))

    def dense(self) -> Tensor:
        """Return the weights between all tokens, (B, heads, queries, keys), zero between tokens of different windows.

        Raises:
            UserError: the matrix would be too large.
        """
        batch, groups, heads = self.weights.shape[:3]
        shape = (batch, heads, len(self.tokens), len(self.key_tokens))
        if torch.Size(shape).numel() > MAX_ENTRIES:
            raise UserError(
                f"the attention of {self.layer!r} between all {shape[2]} tokens would not fit in memory: read single "
                "rows, or a deeper layer."
            )
        all_weights = self.weights.new_zeros(shape)
        for group in range(groups):
            queries, keys = self.queries[group], self.keys[group]
            rows, columns = (queries >= 0).nonzero()[:, 0], (keys >= 0).nonzero()[:, 0]
            part = self.weights[:, group][:, :, rows][..., columns]
            all_weights[:, :, queries[rows][:, None], keys[columns]] = part
        return all_weights

    def flow(self, share: Tensor) -> Tensor:
        """Propagate shares (B, queries) of the tokens back to (B, keys) by the mean attention of the heads.

        The result is `share @ dense().mean(1)`, without a matrix between all tokens.
        """
        weights = self.weights.mean(2)
        padded = share.new_zeros(share.shape[0], len(self.tokens) + 1)  # the last position is padding
        padded[:, :-1] = share
        sent = torch.einsum("bgq,bgqk->bgk", padded[:, self.queries], weights)
        return self._sum_by_key(sent.flatten(1), self.keys.flatten())

    def _sum_by_key(self, values: Tensor, keys: Tensor) -> Tensor:
        """Add up values (..., K) at the positions (K,) of their keys."""
        count = len(self.key_tokens)
        positions = torch.where(keys < 0, count, keys)
        sums = values.new_zeros(*values.shape[:-1], count + 1)
        return sums.index_add(-1, positions, values)[..., :-1]


def averaged(attention: AttentionMap) -> Tensor:
    """Return the attention between all tokens, averaged over heads, (B, tokens, tokens): DHVT's Figure 3 (a).

    Rows attend to columns; the order is class token, cells, head tokens.
    """
    return attention.dense().mean(1)


def head_token_maps(attention: AttentionMap) -> Tensor:
    """Return how each head token attends to the cells in its own head, (B, heads, rows, columns): Figure 3 (b).

    Raises:
        UserError: the layer has no head tokens.
    """
    names = attention.tokens.suffix
    if not names:
        raise UserError(
            f"the layer {attention.layer!r} has no head tokens, which only DHVT has: choose another --show."
        )
    rows = [attention.cell_map(name)[:, head] for head, name in enumerate(names)]
    return torch.stack(rows, 1)


def fold_head_tokens(attention: AttentionMap, average: bool) -> AttentionMap:
    """Return a layer without head tokens, which are replaced by their sources and targets.

    As a source, a head token represents the mean of all tokens. As a target, its row is given to the class token:
    shares of attention are averaged over head tokens (`average`), as the layer does, while relevances are summed, since
    they were already divided on the way back. A layer without head tokens is unchanged.
    """
    tokens = attention.tokens
    if not tokens.suffix:
        return attention
    n_kept = len(tokens) - len(tokens.suffix)
    weights = attention.weights
    via_heads = weights[..., n_kept:].sum(-1, keepdim=True) / n_kept
    folded = weights[..., :n_kept] + via_heads
    token_rows, heads = folded[..., :n_kept, :], folded[..., n_kept:, :]
    head_row = heads.mean(-2) if average else heads.sum(-2)
    all_rows = torch.cat((token_rows[..., :1, :] + head_row.unsqueeze(-2), token_rows[..., 1:, :]), -2)
    tokens_left = Tokens(tokens.grid, tokens.prefix)
    positions = torch.arange(n_kept, device=weights.device)[None]
    return AttentionMap(attention.layer, all_rows, tokens_left, tokens_left, positions, positions)
