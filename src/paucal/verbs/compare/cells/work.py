"""The loop of a worker: lock a free cell, compute it, and repeat until the grid is settled.

Workers share only the folder of the grid. They read it again before each cell, so that it may grow while they work.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from paucal.verbs.compare.cells.cell import Cell, cells_of, state_of
from paucal.verbs.compare.cells.claim import claimed, clear_tries, fail
from paucal.verbs.compare.cells.grid import Grid, read_grid

PAUSE = 2.0  # seconds between two checks of a grid while other workers are busy


class Compute(Protocol):
    """A function that computes a cell, such as `train_cell`."""

    def __call__(self, cell: Cell, threads: int) -> bool:
        """Compute the cell; return False if a signal stopped it and its state is saved."""
        ...


def work(
    folder: Path,
    compute: Compute,
    look: Callable[[Grid], object] | None = None,
    pause: float = PAUSE,
    led: bool = False,
) -> bool:
    """Work at a grid until every cell is done or has failed, in this worker or another one.

    Args:
        folder: Folder of the grid.
        compute: Function that computes a cell.
        look: Called with the grid after each cell and while other workers are busy.
        pause: Seconds between two checks.
        led: Whether a leading process started this one, which then stops after its cell if the leader is gone. A call
            by a user continues after its terminal is closed.

    Returns:
        Whether the grid is settled; False if a signal stopped this worker or the leader is gone.

    Raises:
        UserError: The grid cannot be read.
    """
    parent = os.getppid()
    while not led or os.getppid() == parent:
        grid = read_grid(folder)
        open_cells = [cell for cell in cells_of(grid) if not state_of(cell).settled]
        if look is not None:
            look(grid)
        if not open_cells:
            return True
        outcome = compute_next(open_cells, compute, grid.threads)
        if outcome is False:
            return False
        if outcome is None:
            time.sleep(pause)
    return False


def compute_next(cells: Sequence[Cell], compute: Compute, threads: int) -> bool | None:
    """Compute the first free cell; return None if other workers have all of them, False if it was stopped."""
    for cell in cells:
        with claimed(cell) as mine:
            if mine:
                return _computed(cell, compute, threads)
    return None


def _computed(cell: Cell, compute: Compute, threads: int) -> bool:
    try:
        finished = compute(cell, threads)
    except KeyboardInterrupt:
        clear_tries(cell)
        raise
    except Exception as problem:  # the other cells continue after any error
        fail(cell, problem)
        return True
    clear_tries(cell)
    return finished
