"""The loop of a worker: lock a free cell, compute it, and repeat until the grid is settled.

Workers share only the folder of the grid. They read it again before each cell, so that it may grow while they work.
A cell is locked by one worker at a time, released when the worker dies, and fails after several crashes.
"""

import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from paucal.runs import RunFolder
from paucal.runs.lock import RunLock
from paucal.types import UserError
from paucal.verbs.compare.grid import FAILED, Cell, Grid, cells_of, read_grid, state_of
from paucal.wording import sentence

PAUSE = 2.0  # seconds between two checks of a grid while other workers are busy
TRIES = "tries.json"
MAX_TRIES = 3  # crashes of workers in a cell without a new saved state
# Computes a cell on some threads, such as `train_cell`; returns False if a signal stopped it, with its state saved.
Compute = Callable[[Cell, int], bool]


def work(
    folder: Path,
    compute: Compute,
    report: Callable[[Grid], object] | None = None,
    pause: float = PAUSE,
    led: bool = False,
) -> bool:
    """Work on a grid until every cell is done or has failed, in this worker or another one.

    Return whether the grid is settled: a signal may stop this worker. A worker that is `led` by another process also
    stops after its cell if that process is gone; a worker that a user started continues after its terminal is closed.
    `report` is called with the grid after each cell and while other workers are busy; `pause` is in seconds.
    """
    parent = os.getppid()
    while not led or os.getppid() == parent:
        grid = read_grid(folder)
        open_cells = [cell for cell in cells_of(grid) if not state_of(cell).settled]
        if report is not None:
            report(grid)
        if not open_cells:
            return True
        outcome = compute_next(open_cells, compute, grid.threads)
        if outcome is False:
            return False
        if outcome is None:
            time.sleep(pause)
    return False


def compute_next(cells: Sequence[Cell], compute: Compute, threads: int) -> bool | None:
    """Compute the first free cell; return None if other workers hold all of them, False if it was stopped."""
    for cell in cells:
        with lock_cell(cell) as is_mine:
            if is_mine:
                try:
                    finished = compute(cell, threads)
                except KeyboardInterrupt:
                    clear_tries(cell)
                    raise
                except Exception as problem:  # the other cells continue after any error
                    store_failure(cell, problem)
                    return True
                clear_tries(cell)
                return finished
    return None


@contextmanager
def lock_cell(cell: Cell) -> Iterator[bool]:
    """Lock a cell within the block; yield whether this worker may compute it.

    The lock is renewed every few seconds, so that another worker takes over if this one dies.
    """
    cell.folder.mkdir(parents=True, exist_ok=True)
    lock = RunLock(cell.folder, "the cell")
    try:
        lock.acquire()
    except UserError:  # another worker holds the lock
        yield False
        return
    try:
        # Another worker may have finished the cell before this one got the lock.
        yield not state_of(cell).settled and _register_try(cell)
    finally:
        lock.release()


def _register_try(cell: Cell) -> bool:
    """Count the workers that started from the same saved state, and fail the cell if there are too many."""
    folder = RunFolder(cell.folder)
    try:
        state = str(cell.run.last.stat().st_mtime_ns)
    except FileNotFoundError:
        state = "none"
    try:
        record = folder.read_json(TRIES)
    except UserError:  # missing or damaged: count from zero
        record = {}
    tries = record.get("tries") if record.get("state") == state else 0
    tries = tries if isinstance(tries, int) else 0
    if tries >= MAX_TRIES:
        text = f"{tries} of its workers crashed without making progress (perhaps killed for lack of memory): use a "
        store_failure(cell, UserError(f"{text}smaller --batch-size or fewer --jobs, then --retry."))
        return False
    folder.write_json(TRIES, {"tries": tries + 1, "state": state})
    return True


def store_failure(cell: Cell, problem: BaseException) -> None:
    """Store why a cell failed; only the holder of its lock may call this."""
    expected = isinstance(problem, UserError)
    error = str(problem) if expected else sentence(f"{type(problem).__name__}: {problem}")
    trace = "" if expected else "".join(traceback.format_exception(problem))
    RunFolder(cell.folder).write_json(FAILED, {"error": error, "traceback": trace[-20_000:]})


def clear_failure(cell: Cell) -> None:
    """Let a failed cell be tried again."""
    (cell.folder / FAILED).unlink(missing_ok=True)
    clear_tries(cell)


def clear_tries(cell: Cell) -> None:
    """Reset the count of crashes: the worker ended by itself."""
    (cell.folder / TRIES).unlink(missing_ok=True)
