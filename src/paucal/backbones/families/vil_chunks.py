"""The pairs of cells that see each other in Vision Longformer's sparse attention (Zhang et al. 2021, section 3).

A grid is cut into chunks of w x w cells. The published code pads the grid to whole chunks and multiplies every chunk
with its 8 neighbours, including those outside the grid, which it hides afterwards. Here the keys of each chunk are
listed by their index among the tokens and gathered at once, so nothing is padded. An axis of one or two chunks, where
all cells see each other anyway, is not cut at all, so no key is used and then hidden, or counted twice.
"""

from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

Mode = Literal["blocks", "exact", "cyclic", "own"]
MODES: tuple[str, ...] = get_args(Mode)
NEIGHBOURS = 8
OWN_SLOT = 4  # index of a query's own chunk among the 3x3 around it, row by row

Grid = tuple[int, int]


class Pairs(NamedTuple):
    """The keys of every chunk of queries; `chunks` chunks of Q queries with S slots of K keys each.

    Attributes:
        chunks: Number of chunks.
        queries: (chunks * Q,) cells, one of them repeated where a chunk extends beyond the grid; None if a single chunk
            is the grid.
        restore: (H * W,) index of every cell in `queries`; None if `queries` is.
        keys: (chunks, S, K) cells, arbitrary where hidden; None if a single chunk sees every cell in order.
        hidden: (chunks, 1 or Q, S, K), true where the cell does not exist or is too far; None if no key is hidden.
        offsets: (Q, S, K) index of each offset in the table of (4 w - 1)^2, the same in every chunk.
    """

    chunks: int
    queries: Tensor | None
    restore: Tensor | None
    keys: Tensor | None
    hidden: Tensor | None
    offsets: Tensor


class _Axis(NamedTuple):
    """One axis of the grid: n chunks of q queries, each with s slots of k keys."""

    queries: Tensor  # (n, q)
    keys: Tensor  # (n, s, k)
    shown: Tensor  # (n, s, k)
    offsets: Tensor  # (q, s, k)
    all_shown: bool


def sparse_pairs(grid: Grid, window: int, mode: Mode, like: Tensor, whole: bool = False) -> Pairs:
    """Return the pairs of a grid, made once per size and device.

    Args:
        grid: (rows, columns).
        window: Side w of a chunk.
        mode: "blocks" for the 3x3 chunks around the query, hidden outside the grid; "exact" for the (2 w + 1)^2 cells
            around it; "cyclic" for 3x3 chunks of a grid that closes on itself; "own" for its chunk alone.
        like: A tensor on the wanted device.
        whole: Whether to give 9 slots of w x w keys on any grid, so that some of them can be selected.
    """
    plain = type(like) in (Tensor, torch.nn.Parameter)
    if torch.compiler.is_compiling() or not plain:  # traced tensors must not outlive their trace
        return _build_pairs(*grid, window, mode, whole, like.device)
    return _kept_pairs(*grid, window, mode, whole, like.device)


def grid_offsets(grid: Grid, table: Grid, like: Tensor) -> Tensor:
    """Return (H * W, H * W) indices into a bias table built for a grid of size `table`, one per pair of cells.

    The table has (2 Ht - 1) (2 Wt - 1) entries. An offset beyond the table takes the farthest entry in its direction.
    """
    if torch.compiler.is_compiling() or type(like) not in (Tensor, torch.nn.Parameter):
        return _grid_offsets(*grid, *table, like.device)
    return _kept_grid_offsets(*grid, *table, like.device)


def _build_pairs(height: int, width: int, window: int, mode: Mode, whole: bool, device: torch.device) -> Pairs:
    rows = _build_axis(height, window, mode, whole, device)
    columns = _build_axis(width, window, mode, whole, device)
    keys = (_join_axes(rows.keys * width, columns.keys, torch.add)).flatten(0, 1)
    is_shown = _join_axes(rows.shown, columns.shown, torch.logical_and).flatten(0, 1)
    hidden = None if rows.all_shown and columns.all_shown else ~is_shown.unsqueeze(1)
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
    if chunks == 1 and not whole and rows.all_shown and columns.all_shown:
        return Pairs(1, None, None, None, hidden, offsets)
    keys = keys.masked_fill(~is_shown, 0)
    queries = _join_axes(rows.queries.clamp(max=height - 1) * width, columns.queries.clamp(max=width - 1), torch.add)
    return Pairs(chunks, queries.flatten(), _rows_by_cell(rows, columns, height, width), keys, hidden, offsets)


def _build_axis(length: int, window: int, mode: Mode, whole: bool, device: torch.device) -> _Axis:
    count = -(-length // window)
    if not whole and (count == 1 or (count == 2 and mode != "own")):
        cells = torch.arange(length, device=device)
        queries, keys, shifts = cells[None], cells[None, None], None
    else:
        inner, starts = torch.arange(window, device=device), torch.arange(count, device=device) * window
        shifts = torch.arange(0, 1, device=device) if mode == "own" else torch.arange(-1, 2, device=device)
        queries = starts[:, None] + inner
        keys = queries[:, None] + shifts[:, None] * window
    offsets = queries[0][:, None, None] - keys[0]
    is_shown = (keys >= 0) & (keys < length)
    if mode == "cyclic":
        period = count * window
        is_shown = keys % period < length
        if shifts is not None and count == 1:  # a single chunk is not its own neighbour
            is_shown = is_shown & (shifts == 0)[:, None]
        keys = keys % period
        if count <= 2:  # the same cell lies in both directions; the nearer one counts
            offsets = (offsets + period // 2) % period - period // 2
    is_even = mode in ("own", "cyclic") and length % window == 0 and (mode == "own" or count > 1)
    return _Axis(queries, keys, is_shown, offsets, shifts is None or is_even)


def _join_axes(rows: Tensor, columns: Tensor, join) -> Tensor:
    """Join (a, b, ...) of the rows with (A, B, ...) of the columns to (a, A, b * B, ...)."""
    for dim in range(rows.ndim):
        rows, columns = rows.unsqueeze(2 * dim + 1), columns.unsqueeze(2 * dim)
    joined = join(rows, columns)
    for dim in range(2, joined.ndim // 2 + 1):
        joined = joined.flatten(dim, dim + 1)
    return joined


def _rows_by_cell(rows: _Axis, columns: _Axis, height: int, width: int) -> Tensor:
    device, deep, across = rows.queries.device, rows.queries.shape[1], columns.queries.shape[1]
    row, column = torch.arange(height, device=device)[:, None], torch.arange(width, device=device)
    chunk = row // deep * columns.queries.shape[0] + column // across
    return (chunk * (deep * across) + row % deep * across + column % across).flatten()


def _grid_offsets(height: int, width: int, deep: int, across: int, device: torch.device) -> Tensor:
    row, column = torch.arange(height, device=device), torch.arange(width, device=device)
    rows = _clamp_offsets(row[:, None] - row, deep - 1) + deep - 1
    columns = _clamp_offsets(column[:, None] - column, across - 1) + across - 1
    return (rows[:, None, :, None] * (2 * across - 1) + columns[None, :, None]).reshape(height * width, -1)


def _clamp_offsets(offsets: Tensor, limit: int) -> Tensor:
    """Return offsets limited to the range from -limit to limit.

    `clamp` does the same, but compiling for a GPU (torch 2.11) fails on the index arithmetic that it becomes.
    """
    return torch.where(offsets > limit, limit, torch.where(offsets < -limit, -limit, offsets))


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # otherwise tensors first made in inference mode could not be used in training
def _kept_pairs(height: int, width: int, window: int, mode: Mode, whole: bool, device: torch.device) -> Pairs:
    return _build_pairs(height, width, window, mode, whole, device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _kept_grid_offsets(height: int, width: int, deep: int, across: int, device: torch.device) -> Tensor:
    return _grid_offsets(height, width, deep, across, device)
