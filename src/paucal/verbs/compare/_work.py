"""The loop of a worker: lock a free cell, compute it, and repeat until every cell is done or has failed.

Workers share only the folder of the grid. They read the grid again before each cell, so that the grid can be extended
while they work. A cell is locked by one worker at a time. The lock expires if the worker dies, and the cell is marked
as failed after several crashes.
"""

import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from paucal.runs import RunFolder
from paucal.runs.lock import RunLock
from paucal.types import UserError
from paucal.verbs.compare.grid import FAILURE_FILE, Cell, Grid, cells_of, read_grid, state_of
from paucal.wording import one_line_message

POLL_SECONDS = 2.0  # seconds between two checks of a grid while other workers are busy
TRIES_FILE = "tries.json"  # file in a cell's folder: number of starts of the cell since its last checkpoint
MAX_TRIES = 3  # a cell is marked as failed after this many crashes without a new checkpoint
# Function that computes a cell with a number of threads. The function returns False if a signal stopped the cell after
# saving a checkpoint.
Compute = Callable[[Cell, int], bool]


def work(
    folder: Path,
    compute: Compute,
    report: Callable[[Grid], object] | None = None,
    pause: float = POLL_SECONDS,
    end_with_parent: bool = False,
) -> bool:
    """Compute free cells until every cell of the grid is done or has failed.

    Return True if every cell is done or has failed, False if this worker was stopped. With `end_with_parent`, the
    worker stops after the current cell if its parent process has ended. `report` is called with the grid before each
    cell, and every `pause` seconds while only other workers are busy.
    """
    parent = os.getppid()
    while not end_with_parent or os.getppid() == parent:
        grid = read_grid(folder)
        open_cells = [cell for cell in cells_of(grid) if not state_of(cell).is_final]
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
    """Compute the first free cell; return False after a stop signal, None if other workers have locked all cells."""
    for cell in cells:
        with lock_cell(cell) as is_mine:
            if is_mine:
                try:
                    finished = compute(cell, threads)
                except KeyboardInterrupt:
                    clear_tries(cell)
                    raise
                except Exception as problem:  # an error in one cell must not prevent the other cells
                    store_failure(cell, problem)
                    return True
                clear_tries(cell)
                return finished
    return None


@contextmanager
def lock_cell(cell: Cell) -> Iterator[bool]:
    """Lock a cell within the block; yield whether this worker may compute it.

    The lock is renewed every few seconds, so that another worker takes over the cell if this worker dies.
    """
    cell.folder.mkdir(parents=True, exist_ok=True)
    lock = RunLock(cell.folder, "the cell")
    try:
        lock.acquire()
    except UserError:  # another worker holds the lock
        yield False
        return
    try:
        # Another worker may have finished the cell before this worker got the lock.
        yield not state_of(cell).is_final and _register_try(cell)
    finally:
        lock.release()


def _register_try(cell: Cell) -> bool:
    """Count this start of a cell; the count begins again at zero after each new checkpoint.

    If the count is already `MAX_TRIES`, mark the cell as failed and return False.
    """
    folder = RunFolder(cell.folder)
    try:
        state = str(cell.run.last.stat().st_mtime_ns)
    except FileNotFoundError:
        state = "none"
    record: dict[str, object] = {}
    with suppress(UserError):  # if the file is missing or damaged, the count starts at zero
        record = folder.read_json(TRIES_FILE)
    tries = record.get("tries") if record.get("state") == state else 0
    tries = tries if isinstance(tries, int) else 0
    if tries >= MAX_TRIES:
        text = f"{tries} of its workers crashed without making progress (perhaps killed for lack of memory): use a "
        store_failure(cell, UserError(f"{text}smaller --batch-size or fewer --jobs, then --retry."))
        return False
    folder.write_json(TRIES_FILE, {"tries": tries + 1, "state": state})
    return True


def store_failure(cell: Cell, problem: BaseException) -> None:
    """Store the reason why a cell failed; only the worker that has locked the cell may call this function."""
    expected = isinstance(problem, UserError)
    error = str(problem) if expected else one_line_message(f"{type(problem).__name__}: {problem}")
    trace = "" if expected else "".join(traceback.format_exception(problem))
    RunFolder(cell.folder).write_json(FAILURE_FILE, {"error": error, "traceback": trace[-20_000:]})


def clear_failure(cell: Cell) -> None:
    """Delete the record of a cell's failure, so that the cell is computed again."""
    (cell.folder / FAILURE_FILE).unlink(missing_ok=True)
    clear_tries(cell)


def clear_tries(cell: Cell) -> None:
    """Reset the number of starts of a cell whose worker ended without a crash, or that is computed again."""
    (cell.folder / TRIES_FILE).unlink(missing_ok=True)
