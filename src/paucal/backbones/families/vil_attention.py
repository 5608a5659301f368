"""The sparse and the full attention of Vision Longformer (Zhang et al. 2021, section 3).

The tokens are g global tokens, followed by the cells (patch tokens) row by row. As in Swin, biases are added to the
products of queries and keys. Each head has a bias for each offset between two cells, two biases for each global token
(for its attention to cells, and for the attention of cells to it), and a bias for each pair of global tokens.

In sparse attention, a grid is divided into chunks of w x w cells. The published code pads the grid to a multiple of w,
and computes the products of every chunk with its 8 neighbours; products with chunks outside the grid are masked
afterwards. Here, the keys of each chunk are gathered by their indices, so nothing is padded. An axis with one or two
chunks, along which all cells attend to each other anyway, is not divided, so no key is masked or occurs twice.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from timm.layers.config import use_fused_attn
from timm.layers.pos_embed_rel import resize_rel_pos_bias_table
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.attention_layout import AttentionCall, AttentionGroups, AttentionLayout, Tokens, prefix_names
from paucal.backbones.families.common.attention import attend, cached_on_device, join_heads
from paucal.backbones.families.common.contract import init_table

Mode = Literal["blocks", "exact", "cyclic", "own"]
MODES: tuple[str, ...] = get_args(Mode)
N_NEIGHBOURS = 8  # number of chunks around a chunk
OWN_SLOT = 4  # index of a chunk among the 3x3 chunks around it, row by row

Grid = tuple[int, int]


class QueryKeyPairs(NamedTuple):
    """The keys that each chunk of Q queries attends to: K keys of each of S neighbouring chunks (slots).

    If a single chunk covers the grid, `queries`, `restore` and `keys` are None.
    """

    chunks: int  # number of chunks
    queries: Tensor | None  # (chunks * Q,) index of each query's cell; a cell is repeated if a chunk leaves the grid
    restore: Tensor | None  # (H * W,) index of every cell in `queries`
    keys: Tensor | None  # (chunks, S, K) index of the cell of each key, arbitrary for masked keys
    masked_keys: Tensor | None  # (chunks, 1 or Q, S, K) mask of keys outside the grid or too far; None for no mask
    # (Q, S, K) index of each offset in the bias table with (4 w - 1)^2 entries, the same in every chunk.
    offsets: Tensor


class _Axis(NamedTuple):
    """The pairs along one axis of the grid: n chunks with q queries, each with s slots of k keys."""

    queries: Tensor  # (n, q) positions along the axis
    keys: Tensor  # (n, s, k) positions along the axis
    is_valid: Tensor  # (n, s, k) whether a key is inside the grid
    offsets: Tensor  # (q, s, k) position of the query minus position of the key
    all_valid: bool


@cached_on_device
def sparse_pairs(grid: Grid, window: int, mode: Mode, all_slots: bool, device: torch.device) -> QueryKeyPairs:
    """Return the pairs for a grid that is divided into chunks with the side `window`, in cells.

    With `all_slots`, every chunk has 9 slots of w x w keys, even in a small grid, so that the caller can select slots
    by their index. `mode` selects the cells to which a query attends: "blocks" for the 3x3 chunks around it that are in
    the grid; "exact" for the (2 w + 1)^2 cells around it; "cyclic" for 3x3 chunks, where a chunk at the border has
    neighbours at the opposite border; "own" for its own chunk.
    """
    height, width = grid
    rows = _build_axis(height, window, mode, all_slots, device)
    columns = _build_axis(width, window, mode, all_slots, device)
    keys = _join_axes(rows.keys * width, columns.keys, torch.add).flatten(0, 1)
    is_valid = _join_axes(rows.is_valid, columns.is_valid, torch.logical_and).flatten(0, 1)
    hidden = None if rows.all_valid and columns.all_valid else ~is_valid.unsqueeze(1)
    last = 2 * window - 1  # largest offset
    offsets = _join_axes((rows.offsets + last) * (2 * last + 1), columns.offsets + last, torch.add).flatten(0, 1)
    if mode == "exact":
        is_near = _join_axes(rows.offsets.abs() <= window, columns.offsets.abs() <= window, torch.logical_and)
        is_far = ~is_near.flatten(0, 1)
        hidden = is_far.unsqueeze(0) if hidden is None else hidden | is_far
    chunks = rows.queries.shape[0] * columns.queries.shape[0]
    if chunks == 1 and not all_slots and rows.all_valid and columns.all_valid:
        return QueryKeyPairs(1, None, None, None, hidden, offsets)
    queries = _join_axes(rows.queries.clamp(max=height - 1) * width, columns.queries.clamp(max=width - 1), torch.add)
    # The index in `queries` of every cell: the index of its chunk, then its index in the chunk.
    chunk_rows, chunk_columns = rows.queries.shape[1], columns.queries.shape[1]
    row, column = torch.arange(height, device=device)[:, None], torch.arange(width, device=device)
    chunk = row // chunk_rows * columns.queries.shape[0] + column // chunk_columns
    index_in_chunk = row % chunk_rows * chunk_columns + column % chunk_columns
    restore = (chunk * (chunk_rows * chunk_columns) + index_in_chunk).flatten()
    return QueryKeyPairs(chunks, queries.flatten(), restore, keys.masked_fill(~is_valid, 0), hidden, offsets)


def _build_axis(length: int, window: int, mode: Mode, all_slots: bool, device: torch.device) -> _Axis:
    count = -(-length // window)
    if not all_slots and (count == 1 or (count == 2 and mode != "own")):
        cells = torch.arange(length, device=device)
        queries, keys, shifts = cells[None], cells[None, None], None
    else:
        inner, starts = torch.arange(window, device=device), torch.arange(count, device=device) * window
        shifts = torch.arange(0, 1, device=device) if mode == "own" else torch.arange(-1, 2, device=device)
        queries = starts[:, None] + inner
        keys = queries[:, None] + shifts[:, None] * window
    offsets = queries[0][:, None, None] - keys[0]
    is_valid = (keys >= 0) & (keys < length)
    if mode == "cyclic":
        period = count * window
        is_valid = keys % period < length
        if shifts is not None and count == 1:  # otherwise a single chunk would be a neighbour of itself
            is_valid = is_valid & (shifts == 0)[:, None]
        keys = keys % period
        if count <= 2:  # a cell is reached in two directions; take the shorter offset
            offsets = (offsets + period // 2) % period - period // 2
    has_only_valid_keys = mode in ("own", "cyclic") and length % window == 0 and (mode == "own" or count > 1)
    return _Axis(queries, keys, is_valid, offsets, shifts is None or has_only_valid_keys)


def _join_axes(rows: Tensor, columns: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Combine each entry (a, b, ...) for the rows of the grid with each entry (A, B, ...) for the columns.

    The result of the elementwise function `combine` has the shape (a, A, b * B, ...).
    """
    for dim in range(rows.ndim):
        rows, columns = rows.unsqueeze(2 * dim + 1), columns.unsqueeze(2 * dim)
    combined = combine(rows, columns)
    for dim in range(2, combined.ndim // 2 + 1):
        combined = combined.flatten(dim, dim + 1)
    return combined


@cached_on_device
def grid_offsets(grid: Grid, table: Grid, device: torch.device) -> Tensor:
    """Return the (H * W, H * W) indices of all pairs of a grid's cells in a bias table for a grid (Ht, Wt).

    The table has (2 Ht - 1) (2 Wt - 1) entries. An offset beyond the table has the index of the farthest entry in its
    direction.
    """
    row, column = torch.arange(grid[0], device=device), torch.arange(grid[1], device=device)
    rows = _clamp_offsets(row[:, None] - row, table[0] - 1) + table[0] - 1
    columns = _clamp_offsets(column[:, None] - column, table[1] - 1) + table[1] - 1
    return (rows[:, None, :, None] * (2 * table[1] - 1) + columns[None, :, None]).reshape(grid[0] * grid[1], -1)


def _clamp_offsets(offsets: Tensor, limit: int) -> Tensor:
    """Return offsets limited to the range from -limit to limit.

    `clamp` would do the same, but compiling its index arithmetic for a GPU fails with torch 2.11.
    """
    return torch.where(offsets > limit, limit, torch.where(offsets < -limit, -limit, offsets))


@dataclass(frozen=True)
class AttentionSettings:
    """Settings of sparse and of full attention; `relative` means relative position biases."""

    width: int
    heads: int
    global_tokens: int = 0
    relative: bool = True
    qkv_bias: bool = True
    attn_drop: float = 0.0
    proj_drop: float = 0.0


def new_table(is_used: bool, *shape: int) -> nn.Parameter | None:
    """Return a table with the papers' initialisation; None if it is not used."""
    if not is_used:
        return None
    table = nn.Parameter(torch.empty(shape))
    init_table(table)
    return table


class VilAttention(nn.Module):
    """The base class of sparse and full attention, with a bias table for a grid of `table_grid` (rows, columns)."""

    # ((2 rows - 1) (2 columns - 1), heads) biases of the attention between cells.
    local_relative_position_bias_table: nn.Parameter | None
    # (2, heads, g) biases of the attention from global tokens to cells, then from cells to global tokens.
    g2l_relative_position_bias: nn.Parameter | None
    # (heads, g, g) biases of the attention between global tokens.
    g2g_relative_position_bias: nn.Parameter | None

    def __init__(self, settings: AttentionSettings, table_grid: Grid) -> None:
        super().__init__()
        width, heads, self.global_tokens = settings.width, settings.heads, settings.global_tokens
        # `window_size` is timm's name of the grid of a bias table; `weights.adapt` reads this attribute.
        self.num_heads, self.window_size = heads, table_grid
        self.scale = (width // heads) ** -0.5
        self.fused_attn = use_fused_attn()
        self.qkv = nn.Linear(width, 3 * width, bias=settings.qkv_bias)
        self.attn_drop = nn.Dropout(settings.attn_drop)
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(settings.proj_drop)
        rows, columns = table_grid
        self.local_relative_position_bias_table = new_table(
            settings.relative, (2 * rows - 1) * (2 * columns - 1), heads
        )
        with_global = settings.relative and self.global_tokens > 0
        self.g2l_relative_position_bias = new_table(with_global, 2, heads, self.global_tokens)
        self.g2g_relative_position_bias = new_table(with_global, heads, self.global_tokens, self.global_tokens)

    def freeze_global_token_parameters(self) -> None:
        """Freeze the parameters that affect only the output of global tokens, which is not used."""
        if self.g2g_relative_position_bias is not None:
            self.g2g_relative_position_bias.requires_grad_(False)

    def project(self, layer: nn.Linear, x: Tensor, parts: int) -> Tensor:
        """Apply a linear layer to tokens (B, N, C) and split its output into (parts, B, heads, N, d)."""
        return layer(x).unflatten(2, (parts, self.num_heads, -1)).permute(2, 0, 3, 1, 4)

    def global_bias(self, cells: int) -> Tensor | None:
        """Return the biases (heads, g, g + cells) of the global queries; None if there are no biases."""
        if self.g2l_relative_position_bias is None or self.g2g_relative_position_bias is None:
            return None
        to_cells = self.g2l_relative_position_bias[0].unsqueeze(2).expand(-1, -1, cells)
        return torch.cat((self.g2g_relative_position_bias, to_cells), 2)

    def with_global_keys(self, bias: Tensor) -> Tensor:
        """Prepend the biases of the global keys to the biases (heads, Q, K) of the cells."""
        if self.g2l_relative_position_bias is None:
            return bias
        to_global = self.g2l_relative_position_bias[1].unsqueeze(1).expand(-1, bias.shape[1], -1)
        return torch.cat((to_global, bias), 2)


class FullAttention(VilAttention):
    """Attention of all tokens to all tokens.

    If the grid differs from the grid for which the bias table was built, there are two options. "lookup" takes the bias
    of each offset from the table, and the farthest entry for offsets beyond the table. "picture" resizes the matrix of
    biases between all pairs of cells bicubically, like an image. This resizing has no geometric meaning, but EsViT's
    code resizes the matrix for crops of 96 pixels, and EsViT's weights were trained in this way.
    """

    def __init__(self, settings: AttentionSettings, table_grid: Grid, bias_resize: str = "lookup") -> None:
        super().__init__(settings, table_grid)
        self.bias_resize = bias_resize

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Apply the layer to tokens (B, g + H * W, C) with the grid (H, W); the shape stays the same."""
        query, key, value = self.project(self.qkv, x, 3).unbind(0)
        out = attend(query, key, value, self.bias(grid), self.scale, self.fused_attn, self.attn_drop)
        return self.proj_drop(self.proj(join_heads(out)))

    def resize_table(self, grid: Grid) -> None:
        """Resize the bias table, in place, for another grid of (rows, columns)."""
        table = self.local_relative_position_bias_table
        if table is not None and grid != self.window_size:
            shape = ((2 * grid[0] - 1) * (2 * grid[1] - 1), self.num_heads)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # timm calls a search function with tensors that are not contiguous
                resized = resize_rel_pos_bias_table(table, grid, shape, self.window_size)
            self.local_relative_position_bias_table = nn.Parameter(resized)
        self.window_size = grid

    def bias(self, grid: Grid) -> Tensor | None:
        """Return the biases (heads, g + H * W, g + H * W) for a grid (H, W); None if there are no biases."""
        table = self.local_relative_position_bias_table
        if table is None:
            return None
        if self.bias_resize == "lookup" or grid == self.window_size:
            local = table[grid_offsets(grid, self.window_size, table)].permute(2, 0, 1)
        else:
            matrix = table[grid_offsets(self.window_size, self.window_size, table)].permute(2, 0, 1)
            cells = grid[0] * grid[1]
            local = functional.interpolate(matrix[None].float(), size=(cells, cells), mode="bicubic")[0].to(table)
        local = self.with_global_keys(local)
        global_bias = self.global_bias(grid[0] * grid[1])
        return local if global_bias is None else torch.cat((global_bias, local), 1)


def _global_groups(call: AttentionCall, weights: Tensor, image_size: Grid) -> AttentionGroups:
    """Return the group of the global queries, whose weights are (B, heads, g, N).

    The second argument of the block is the grid.
    """
    tokens = Tokens(call.block_inputs[1], prefix_names(call.model, weights.shape[2]))
    queries, keys = (torch.arange(count, device=weights.device)[None] for count in weights.shape[2:])
    return AttentionGroups(tokens, tokens, queries, keys)


def _sparse_groups(call: AttentionCall, weights: Tensor, image_size: Grid) -> AttentionGroups:
    """Return a group per chunk of cell queries, whose weights are (B * chunks, heads, Q, g + K)."""
    layer, (tokens, grid) = call.layer, call.inputs
    layout = Tokens(grid, prefix_names(call.model, layer.global_tokens))
    pairs, first = sparse_pairs(grid, layer.window, layer.mode, False, tokens), len(layout.prefix)
    cells = torch.arange(layout.cells, device=weights.device)
    queries, keys = cells[None], cells[None]
    if pairs.queries is not None and pairs.restore is not None:
        queries = torch.full_like(pairs.queries, -first - 1)  # -1 after `first` is added
        queries[pairs.restore] = cells
        queries = queries.view(pairs.chunks, -1)
    if pairs.keys is not None:
        keys = pairs.keys.flatten(1)
    if pairs.masked_keys is not None:
        unseen = pairs.masked_keys.flatten(2).all(1).expand(pairs.chunks, -1)
        keys = torch.where(unseen, -first - 1, keys.expand(pairs.chunks, -1))
    global_positions = torch.arange(first, device=weights.device).expand(pairs.chunks, -1)
    keys = torch.cat((global_positions, keys.expand(pairs.chunks, -1) + first), 1)
    return AttentionGroups(layout, layout, queries + first, keys)


class GlobalAttention(nn.Module):
    """The attention of global tokens to all tokens; a separate module, so that the weights can be recorded."""

    attention_layout = AttentionLayout(find_groups=_global_groups)

    def __init__(self, scale: float, attn_drop: float) -> None:
        super().__init__()
        self.scale = scale
        self.fused_attn = use_fused_attn()
        self.attn_drop = nn.Dropout(attn_drop)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Return the output (B, g, C) for queries (B, heads, g, d), and keys and values (B, heads, N, d)."""
        return join_heads(attend(query, key, value, bias, self.scale, self.fused_attn, self.attn_drop))


class SparseAttention(VilAttention):
    """Attention of each cell to the global tokens and to the cells near it, and of global tokens to all tokens.

    Differences from the published code:
    - `mode` has names instead of numbers.
    - In the mode "cyclic", all padding is masked.
    - On grids with one or two chunks per side, a cell that is a neighbour in several directions counts once.
    - Random numbers come from torch's generator of the device.

    `window` is the side w of a chunk in cells; see `sparse_pairs` for `mode`. With `share_projections`, global tokens
    have the same projections as cells. With `random_neighbour`, a cell attends in training to its chunk and one of the
    8 chunks around, drawn once for each call, instead of all 8.
    """

    attention_layout = AttentionLayout(find_groups=_sparse_groups)

    def __init__(
        self, settings: AttentionSettings, window: int, mode: Mode = "blocks", share_projections: bool = True
    ) -> None:
        super().__init__(settings, (2 * window, 2 * window))
        self.window = window
        self.mode: Mode = mode
        self.random_neighbour = False
        self.to_all = GlobalAttention(self.scale, settings.attn_drop) if self.global_tokens else None
        width, bias = settings.width, settings.qkv_bias
        has_own_projections = self.global_tokens > 0 and not share_projections
        self.query_global = nn.Linear(width, width, bias=bias) if has_own_projections else None
        self.kv_global = nn.Linear(width, 2 * width, bias=bias) if has_own_projections else None
        self.proj_global = nn.Linear(width, width) if has_own_projections else None

    def freeze_global_token_parameters(self) -> None:
        """Freeze the parameters that affect only the output of global tokens, including separate projections."""
        super().freeze_global_token_parameters()
        for layer in (self.query_global, self.kv_global, self.proj_global):
            if layer is not None:
                layer.requires_grad_(False)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Apply the layer to tokens (B, g + H * W, C) with the grid (H, W); the shape stays the same."""
        qkv = self.project(self.qkv, x, 3)
        cells = self._attend_from_cells(qkv, grid)
        if self.to_all is None:
            return self.proj_drop(self.proj(cells))
        query, (key, value) = qkv[0, :, :, : self.global_tokens], qkv[1:]
        if self.query_global is not None and self.kv_global is not None:
            query = self.project(self.query_global, x[:, : self.global_tokens], 1)[0]
            key, value = self.project(self.kv_global, x, 2)
        tokens = self.to_all(query, key, value, self.global_bias(x.shape[1] - self.global_tokens))
        if self.proj_global is None:
            return self.proj_drop(self.proj(torch.cat((tokens, cells), 1)))
        return self.proj_drop(torch.cat((self.proj_global(tokens), self.proj(cells)), 1))

    def _attend_from_cells(self, qkv: Tensor, grid: Grid) -> Tensor:
        """Return the cells' output (B, H * W, C) from the projections (3, B, heads, g + H * W, d)."""
        pairs = self._pairs_of_grid(grid, qkv)
        query = qkv[0, :, :, self.global_tokens :]
        if pairs.queries is not None:
            query = query.index_select(2, pairs.queries)
        query = query.unflatten(2, (pairs.chunks, -1))
        if pairs.keys is None:
            key, value = qkv[1:].unsqueeze(3).unbind(0)
        else:  # gather the global tokens and the keys of every chunk
            cells = pairs.keys.flatten(1) + self.global_tokens
            first = torch.arange(self.global_tokens, device=cells.device).expand(pairs.chunks, -1)
            tokens = qkv[1:].index_select(3, torch.cat((first, cells), 1).flatten())
            key, value = tokens.unflatten(3, (pairs.chunks, -1)).unbind(0)
        out = self._attend_in_chunks(query, key, value, self._chunk_bias(pairs, query))
        out = join_heads(out.flatten(2, 3))
        return out if pairs.restore is None else out.index_select(1, pairs.restore)

    def _pairs_of_grid(self, grid: Grid, like: Tensor) -> QueryKeyPairs:
        if not (self.training and self.random_neighbour):
            return sparse_pairs(grid, self.window, self.mode, False, like)
        pairs = sparse_pairs(grid, self.window, self.mode, True, like)
        neighbour = torch.randint(N_NEIGHBOURS, (1,), device=like.device)
        slots = torch.cat((torch.full_like(neighbour, OWN_SLOT), neighbour + (neighbour >= OWN_SLOT)))
        assert pairs.keys is not None
        hidden = None if pairs.masked_keys is None else pairs.masked_keys.index_select(2, slots)
        return pairs._replace(
            keys=pairs.keys.index_select(1, slots), masked_keys=hidden, offsets=pairs.offsets.index_select(1, slots)
        )

    def _chunk_bias(self, pairs: QueryKeyPairs, like: Tensor) -> Tensor | None:
        """Return biases (heads or 1, chunks or 1, Q or 1, g + S * K), which are -inf for masked keys.

        The result is None if there is no bias table and no masked key.
        """
        table, hidden = self.local_relative_position_bias_table, pairs.masked_keys
        bias = None
        if table is not None:
            bias = self.with_global_keys(table[pairs.offsets.flatten(1)].permute(2, 0, 1)).unsqueeze(1)
        if hidden is None:
            return bias
        hidden = functional.pad(hidden.flatten(2), (self.global_tokens, 0))  # global tokens are never masked
        if bias is None:
            bias = like.new_zeros(1, 1, 1, hidden.shape[-1])
        return bias.masked_fill(hidden, -torch.inf)

    def _attend_in_chunks(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Return the output (B, heads, chunks, Q, d) of attention within chunks.

        Queries are (B, heads, chunks, Q, d); keys and values are (B, heads, chunks, K, d).
        """
        heads, chunks = query.shape[1:3]
        if self.fused_attn:  # fused kernels support four dimensions only
            if bias is not None:
                bias = bias.expand(heads, chunks, -1, -1).flatten(0, 1).unsqueeze(0)
            query, key, value = query.flatten(1, 2), key.flatten(1, 2), value.flatten(1, 2)
            return attend(query, key, value, bias, self.scale, True, self.attn_drop).unflatten(1, (heads, chunks))
        weights = (query * self.scale) @ key.transpose(-2, -1)
        weights = (weights if bias is None else weights + bias).softmax(-1)
        weights = self.attn_drop(weights.transpose(1, 2).flatten(0, 1))  # (B * chunks, heads, Q, K), as in timm's Swin
        weights = weights.unflatten(0, (-1, chunks)).transpose(1, 2)
        return weights.to(value.dtype) @ value
