"""The sparse attention of Vision Longformer (Zhang et al. 2021, section 3): near cells and global tokens."""

import torch
from timm.layers.config import use_fused_attn
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.families.common.attention import attend, join_heads
from paucal.backbones.families.vil.attention import AttentionSettings, VilAttention
from paucal.backbones.families.vil.chunks import NEIGHBOURS, OWN_SLOT, Grid, Mode, Pairs, sparse_pairs


class GlobalAttention(nn.Module):
    """The part of sparse attention in which global tokens attend to all tokens; a module, so that it can be read."""

    def __init__(self, scale: float, attn_drop: float) -> None:
        super().__init__()
        self.scale = scale
        self.fused_attn = use_fused_attn()
        self.attn_drop = nn.Dropout(attn_drop)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Return (B, g, C) of queries (B, heads, g, d), keys and values (B, heads, N, d)."""
        return join_heads(attend(query, key, value, bias, self.scale, self.fused_attn, self.attn_drop))


class SparseAttention(VilAttention):
    """A cell attends to the global tokens and to the cells near it; global tokens attend to all tokens.

    Differs from the published program: `mode` has names, a cyclic grid hides all of its padding and counts a cell
    once that lies in several directions (grids of one or two chunks), and what is drawn comes from torch's
    generator of the device.

    Args:
        settings: as for full attention.
        window: side w of a chunk.
        mode: as in `vil_chunks.sparse_pairs`.
        share_projections: whether global tokens use the same projections as cells.

    Attributes:
        random_neighbour: whether, in training, a cell sees only its own chunk and one of the 8 neighbours, drawn
            once for each call, instead of all.
    """

    def __init__(
        self, settings: AttentionSettings, window: int, mode: Mode = "blocks", share_projections: bool = True
    ) -> None:
        super().__init__(settings, (2 * window, 2 * window))
        self.window = window
        self.mode: Mode = mode
        self.random_neighbour = False
        self.to_all = GlobalAttention(self.scale, settings.attn_drop) if self.global_tokens else None
        width, bias, own = settings.width, settings.qkv_bias, self.global_tokens > 0 and not share_projections
        self.query_global = nn.Linear(width, width, bias=bias) if own else None
        self.kv_global = nn.Linear(width, 2 * width, bias=bias) if own else None
        self.proj_global = nn.Linear(width, width) if own else None

    def freeze_global(self) -> None:
        """As in `VilAttention`; with projections of their own for global tokens, these as well."""
        super().freeze_global()
        for layer in (self.query_global, self.kv_global, self.proj_global):
            if layer is not None:
                layer.requires_grad_(False)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Return tokens (B, g + H * W, C) attended to; `grid` is (H, W)."""
        qkv = self.project(self.qkv, x, 3)
        cells = self._cells(qkv, grid)
        if self.to_all is None:
            return self.proj_drop(self.proj(cells))
        tokens = self._globals(x, qkv)
        if self.proj_global is None:
            return self.proj_drop(self.proj(torch.cat((tokens, cells), 1)))
        return self.proj_drop(torch.cat((self.proj_global(tokens), self.proj(cells)), 1))

    def _globals(self, x: Tensor, qkv: Tensor) -> Tensor:
        assert self.to_all is not None
        query, (key, value) = qkv[0, :, :, : self.global_tokens], qkv[1:]
        if self.query_global is not None and self.kv_global is not None:
            query = self.project(self.query_global, x[:, : self.global_tokens], 1)[0]
            key, value = self.project(self.kv_global, x, 2)
        return self.to_all(query, key, value, self.global_bias(x.shape[1] - self.global_tokens))

    def _cells(self, qkv: Tensor, grid: Grid) -> Tensor:
        """Return (B, H * W, C) of the projections (3, B, heads, g + H * W, d)."""
        pairs = self._pairs(grid, qkv)
        query = qkv[0, :, :, self.global_tokens :]
        if pairs.queries is not None:
            query = query.index_select(2, pairs.queries)
        query = query.unflatten(2, (pairs.chunks, -1))
        key, value = self._gathered(qkv[1:], pairs).unbind(0)
        out = self._attend(query, key, value, self._bias(pairs, query))
        out = join_heads(out.flatten(2, 3))
        return out if pairs.restore is None else out.index_select(1, pairs.restore)

    def _pairs(self, grid: Grid, like: Tensor) -> Pairs:
        if not (self.training and self.random_neighbour):
            return sparse_pairs(grid, self.window, self.mode, like)
        pairs = sparse_pairs(grid, self.window, self.mode, like, whole=True)
        drawn = torch.randint(NEIGHBOURS, (1,), device=like.device)
        slots = torch.cat((torch.full_like(drawn, OWN_SLOT), drawn + (drawn >= OWN_SLOT)))
        assert pairs.keys is not None
        hidden = None if pairs.hidden is None else pairs.hidden.index_select(2, slots)
        return pairs._replace(
            keys=pairs.keys.index_select(1, slots), hidden=hidden, offsets=pairs.offsets.index_select(1, slots)
        )

    def _gathered(self, tokens: Tensor, pairs: Pairs) -> Tensor:
        """Return (2, B, heads, chunks, g + S * K, d) of keys and values (2, B, heads, N, d), both at once."""
        if pairs.keys is None:
            return tokens.unsqueeze(3)
        cells = pairs.keys.flatten(1) + self.global_tokens
        first = torch.arange(self.global_tokens, device=cells.device).expand(pairs.chunks, -1)
        return tokens.index_select(3, torch.cat((first, cells), 1).flatten()).unflatten(3, (pairs.chunks, -1))

    def _bias(self, pairs: Pairs, like: Tensor) -> Tensor | None:
        """Return biases (heads or 1, chunks or 1, Q or 1, g + S * K), -inf where a key is hidden."""
        table, hidden = self.local_relative_position_bias_table, pairs.hidden
        bias = None
        if table is not None:
            bias = self.with_global_keys(table[pairs.offsets.flatten(1)].permute(2, 0, 1)).unsqueeze(1)
        if hidden is None:
            return bias
        hidden = functional.pad(hidden.flatten(2), (self.global_tokens, 0))  # no global token is hidden
        if bias is None:
            bias = like.new_zeros(1, 1, 1, hidden.shape[-1])
        return bias.masked_fill(hidden, -torch.inf)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Attend within chunks: query (B, heads, chunks, Q, d), key and value (B, heads, chunks, K, d)."""
        heads, chunks = query.shape[1:3]
        if self.fused_attn:  # kernels take four dimensions
            if bias is not None:
                bias = bias.expand(heads, chunks, -1, -1).flatten(0, 1).unsqueeze(0)
            query, key, value = query.flatten(1, 2), key.flatten(1, 2), value.flatten(1, 2)
            return attend(query, key, value, bias, self.scale, True, self.attn_drop).unflatten(1, (heads, chunks))
        weights = (query * self.scale) @ key.transpose(-2, -1)
        weights = (weights if bias is None else weights + bias).softmax(-1)
        weights = self.attn_drop(weights.transpose(1, 2).flatten(0, 1))  # one row per chunk, as of timm's windows
        weights = weights.unflatten(0, (-1, chunks)).transpose(1, 2)
        return weights.to(value.dtype) @ value
