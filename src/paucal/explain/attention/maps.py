"""The attention weights of one layer, with the positions of all queries and keys in the image."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paucal.backbones.attention_layout import Token, Tokens
from paucal.types import UserError

MAX_ENTRIES = 1 << 27  # largest number of entries of a dense attention matrix, which takes up half a GiB in float32


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """The weights of one attention layer, in groups of queries that attend to the same keys.

    Full attention has a single group, and windowed attention has one group per window. Pooled keys (PVT) have a coarser
    grid than the queries.

    Attributes:
        layer: Dotted name of the layer in the model.
        weights: (B, groups, heads, Q, K) attention weights after the softmax, before dropout.
        tokens: Tokens of the queries.
        key_tokens: Tokens of the keys, which are equal to `tokens` except in layers that pool keys.
        queries: (groups, Q) indices of the queries in `tokens`, -1 for padding.
        keys: (groups, K) indices of the keys in `key_tokens`, -1 for padding.
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
        """Return a copy with different weights (B, groups, heads, Q, K)."""
        return replace(self, weights=weights)

    def query_mask(self) -> Tensor:
        """Return a (tokens,) bool mask of the tokens that are queries of this layer.

        The queries may be all tokens, only the class token (CaiT), or only patch tokens.
        """
        is_query = torch.zeros(len(self.tokens), dtype=torch.bool, device=self.queries.device)
        is_query[self.queries[self.queries >= 0]] = True
        return is_query

    def row(self, token: Token) -> Tensor:
        """Return the attention of a token to each key, (B, heads, keys), without padded keys.

        Raises:
            UserError: the layer has no such token, or the token is not a query.
        """
        query_positions = (self.queries == self.tokens.index_of(token)).nonzero()
        if not len(query_positions):
            raise UserError(f"{token!r} is not a query of the layer {self.layer!r}: choose another layer or token.")
        group, query = query_positions[0].tolist()
        return self._sum_by_key(self.weights[:, group, :, query], self.keys[group])

    def cell_map(self, token: Token) -> Tensor:
        """Return the attention of a token to each patch, (B, heads, rows, columns), on the grid of the keys."""
        return self.key_tokens.to_grid(self.row(token))

    def dense(self) -> Tensor:
        """Return the weights between all tokens, (B, heads, queries, keys); 0 if two tokens are in different windows.

        Raises:
            UserError: the matrix would be too large.
        """
        batch, groups, heads = self.weights.shape[:3]
        shape = (batch, heads, len(self.tokens), len(self.key_tokens))
        if torch.Size(shape).numel() > MAX_ENTRIES:
            raise UserError(
                f"the attention matrix of {self.layer!r} between all {shape[2]} tokens is too large for memory: read "
                "single rows, or choose a deeper layer."
            )
        all_weights = self.weights.new_zeros(shape)
        for group in range(groups):
            queries, keys = self.queries[group], self.keys[group]
            rows, columns = (queries >= 0).nonzero()[:, 0], (keys >= 0).nonzero()[:, 0]
            group_weights = self.weights[:, group][:, :, rows][..., columns]
            all_weights[:, :, queries[rows][:, None], keys[columns]] = group_weights
        return all_weights

    def flow(self, share: Tensor) -> Tensor:
        """Distribute the (B, queries) contributions `share` of tokens among the keys in proportion to mean attention.

        The mean is taken over heads. The (B, keys) result equals `share @ dense().mean(1)`, but is computed without the
        attention matrix between all tokens.
        """
        weights = self.weights.mean(2)
        padded = share.new_zeros(share.shape[0], len(self.tokens) + 1)  # padding (index -1) reads the additional 0
        padded[:, :-1] = share
        key_shares = torch.einsum("bgq,bgqk->bgk", padded[:, self.queries], weights)
        return self._sum_by_key(key_shares.flatten(1), self.keys.flatten())

    def _sum_by_key(self, values: Tensor, keys: Tensor) -> Tensor:
        """Sum the (..., K) values that belong to the same key; return (..., keys).

        `keys` are (K,) indices of the keys, -1 for padding.
        """
        count = len(self.key_tokens)
        positions = torch.where(keys < 0, count, keys)
        sums = values.new_zeros(*values.shape[:-1], count + 1)
        return sums.index_add(-1, positions, values)[..., :-1]


def averaged(attention: AttentionMap) -> Tensor:
    """Return the (B, tokens, tokens) attention between all tokens, averaged over heads, as in DHVT's Figure 3 (a).

    Rows are queries and columns are keys. The order is class token, patches, head tokens.
    """
    return attention.dense().mean(1)


def head_token_maps(attention: AttentionMap) -> Tensor:
    """Return the attention of each head's head token to the patches in that head, (B, heads, rows, columns).

    DHVT's Figure 3 (b) shows these maps.

    Raises:
        UserError: the layer has no head tokens.
    """
    names = attention.tokens.suffix
    if not names:
        raise UserError(
            f"the layer {attention.layer!r} has no head tokens (only DHVT has head tokens): choose another --show."
        )
    maps = [attention.cell_map(name)[:, head] for head, name in enumerate(names)]
    return torch.stack(maps, 1)


def fold_head_tokens(attention: AttentionMap, average: bool) -> AttentionMap:
    """Return a layer's attention without its head tokens; a layer without head tokens is returned unchanged.

    A head token of DHVT, used as a key, represents the mean of all tokens. So attention to a head token is divided
    equally among all tokens. The rows of the head tokens (as queries) are combined and added to the row of the class
    token. For attention, use `average`: the rows are averaged, as in the layer. For relevance, the rows are summed,
    since the backward pass has already divided relevance among the head tokens.
    """
    tokens = attention.tokens
    if not tokens.suffix:
        return attention
    n_kept = len(tokens) - len(tokens.suffix)
    weights = attention.weights
    weight_via_heads = weights[..., n_kept:].sum(-1, keepdim=True) / n_kept
    folded = weights[..., :n_kept] + weight_via_heads
    token_rows, head_rows = folded[..., :n_kept, :], folded[..., n_kept:, :]
    head_row = head_rows.mean(-2) if average else head_rows.sum(-2)
    all_rows = torch.cat((token_rows[..., :1, :] + head_row.unsqueeze(-2), token_rows[..., 1:, :]), -2)
    kept_tokens = Tokens(tokens.grid, tokens.prefix)
    positions = torch.arange(n_kept, device=weights.device)[None]
    return AttentionMap(attention.layer, all_rows, kept_tokens, kept_tokens, positions, positions)
