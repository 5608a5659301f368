"""Computes which cells attend to which cells in Vision Longformer's sparse attention (Zhang et al. 2021, section 3).

A grid is divided into chunks of w x w cells. The published code pads the grid to a multiple of w, and computes the
products of every chunk with its 8 neighbours; products with chunks outside the grid are masked afterwards. Here, the
keys of each chunk are gathered by their indices, so nothing is padded. An axis with one or two chunks, along which all
cells attend to each other anyway, is not divided, so no key is masked or occurs twice.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

Mode = Literal["blocks", "exact", "cyclic", "own"]
MODES: tuple[str, ...] = get_args(Mode)
N_NEIGHBOURS = 8  # number of chunks around a chunk
OWN_SLOT = 4  # index of a chunk among the 3x3 chunks around it, row by row

Grid = tuple[int, int]


class QueryKeyPairs(NamedTuple):
    """The keys of every chunk of queries. A chunk has Q queries and, for each of S neighbouring chunks (slots), K keys.

    Attributes:
        chunks: Number of chunks.
        queries: (chunks * Q,) index of the cell of each query; where a chunk extends beyond the grid, a cell is
            repeated. None if a single chunk covers the grid.
        restore: (H * W,) index of every cell in `queries`; None if `queries` is None.
        keys: (chunks, S, K) index of the cell of each key, arbitrary for masked keys; None if a single chunk has all
            cells in order.
        masked_keys: (chunks, 1 or Q, S, K) mask that is True for keys that are outside the grid or too far; None if no
            key is masked.
        offsets: (Q, S, K) index of each offset in the bias table with (4 w - 1)^2 entries, the same in every chunk.
    """

    chunks: int
    queries: Tensor | None
    restore: Tensor | None
    keys: Tensor | None
    masked_keys: Tensor | None
    offsets: Tensor


class _Axis(NamedTuple):
    """The pairs along one axis of the grid: n chunks with q queries, each with s slots of k keys."""

    queries: Tensor  # (n, q) positions along the axis
    keys: Tensor  # (n, s, k) positions along the axis
    is_valid: Tensor  # (n, s, k) whether a key is inside the grid
    offsets: Tensor  # (q, s, k) position of the query minus position of the key
    all_valid: bool


def sparse_pairs(grid: Grid, window: int, mode: Mode, like: Tensor, all_slots: bool = False) -> QueryKeyPairs:
    """Return the pairs for a grid, which are cached by size and device.

    Args:
        grid: (rows, columns) of the grid.
        window: Side w of a chunk in cells.
        mode: Cells to which a query attends: "blocks" for the 3x3 chunks around it that are in the grid; "exact" for
            the (2 w + 1)^2 cells around it; "cyclic" for 3x3 chunks, where a chunk at the border has neighbours at the
            opposite border; "own" for its own chunk.
        like: Tensor on the device of the result.
        all_slots: Whether to always return 9 slots of w x w keys, so that some slots can be selected.
    """
    is_plain = type(like) in (Tensor, torch.nn.Parameter)
    if torch.compiler.is_compiling() or not is_plain:  # do not cache tensors that are made while tracing
        return _build_pairs(*grid, window, mode, all_slots, like.device)
    return _cached_pairs(*grid, window, mode, all_slots, like.device)


def grid_offsets(grid: Grid, table: Grid, like: Tensor) -> Tensor:
    """Return the (H * W, H * W) indices of all pairs of a grid's cells in a bias table for a grid (Ht, Wt).

    The table has (2 Ht - 1) (2 Wt - 1) entries. An offset beyond the table has the index of the farthest entry in its
    direction.
    """
    if torch.compiler.is_compiling() or type(like) not in (Tensor, torch.nn.Parameter):
        return _grid_offsets(*grid, *table, like.device)
    return _cached_grid_offsets(*grid, *table, like.device)


def _build_pairs(
    height: int, width: int, window: int, mode: Mode, all_slots: bool, device: torch.device
) -> QueryKeyPairs:
    rows = _build_axis(height, window, mode, all_slots, device)
    columns = _build_axis(width, window, mode, all_slots, device)
    keys = (_join_axes(rows.keys * width, columns.keys, torch.add)).flatten(0, 1)
    is_valid = _join_axes(rows.is_valid, columns.is_valid, torch.logical_and).flatten(0, 1)
    hidden = None if rows.all_valid and columns.all_valid else ~is_valid.unsqueeze(1)
    max_offset = 2 * window - 1
    offsets = _join_axes(
        (rows.offsets + max_offset) * (2 * max_offset + 1), columns.offsets + max_offset, torch.add
    ).flatten(0, 1)
    if mode == "exact":
        is_near = _join_axes(rows.offsets.abs() <= window, columns.offsets.abs() <= window, torch.logical_and).flatten(
            0, 1
        )
        hidden = ~is_near.unsqueeze(0) if hidden is None else hidden | ~is_near
    chunks = rows.queries.shape[0] * columns.queries.shape[0]
    if chunks == 1 and not all_slots and rows.all_valid and columns.all_valid:
        return QueryKeyPairs(1, None, None, None, hidden, offsets)
    keys = keys.masked_fill(~is_valid, 0)
    queries = _join_axes(rows.queries.clamp(max=height - 1) * width, columns.queries.clamp(max=width - 1), torch.add)
    return QueryKeyPairs(
        chunks, queries.flatten(), _query_index_of_cells(rows, columns, height, width), keys, hidden, offsets
    )


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
    """Combine each entry for the rows of the grid with each entry for the columns.

    Args:
        rows: (a, b, ...) entries of the rows.
        columns: (A, B, ...) entries of the columns, with the same number of dimensions.
        combine: Elementwise function, such as `torch.add`.

    Returns:
        The (a, A, b * B, ...) results.
    """
    for dim in range(rows.ndim):
        rows, columns = rows.unsqueeze(2 * dim + 1), columns.unsqueeze(2 * dim)
    combined = combine(rows, columns)
    for dim in range(2, combined.ndim // 2 + 1):
        combined = combined.flatten(dim, dim + 1)
    return combined


def _query_index_of_cells(rows: _Axis, columns: _Axis, height: int, width: int) -> Tensor:
    device, chunk_rows, chunk_columns = rows.queries.device, rows.queries.shape[1], columns.queries.shape[1]
    row, column = torch.arange(height, device=device)[:, None], torch.arange(width, device=device)
    chunk = row // chunk_rows * columns.queries.shape[0] + column // chunk_columns
    index_in_chunk = row % chunk_rows * chunk_columns + column % chunk_columns
    return (chunk * (chunk_rows * chunk_columns) + index_in_chunk).flatten()


def _grid_offsets(height: int, width: int, table_rows: int, table_columns: int, device: torch.device) -> Tensor:
    row, column = torch.arange(height, device=device), torch.arange(width, device=device)
    rows = _clamp_offsets(row[:, None] - row, table_rows - 1) + table_rows - 1
    columns = _clamp_offsets(column[:, None] - column, table_columns - 1) + table_columns - 1
    return (rows[:, None, :, None] * (2 * table_columns - 1) + columns[None, :, None]).reshape(height * width, -1)


def _clamp_offsets(offsets: Tensor, limit: int) -> Tensor:
    """Return offsets limited to the range from -limit to limit.

    `clamp` would do the same, but compiling its index arithmetic for a GPU fails with torch 2.11.
    """
    return torch.where(offsets > limit, limit, torch.where(offsets < -limit, -limit, offsets))


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # since tensors made in inference mode could not be used in training
def _cached_pairs(
    height: int, width: int, window: int, mode: Mode, all_slots: bool, device: torch.device
) -> QueryKeyPairs:
    return _build_pairs(height, width, window, mode, all_slots, device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _cached_grid_offsets(height: int, width: int, table_rows: int, table_columns: int, device: torch.device) -> Tensor:
    return _grid_offsets(height, width, table_rows, table_columns, device)
