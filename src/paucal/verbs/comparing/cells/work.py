"""What a worker does: take the next cell that nobody has, compute it, and so on until the grid is settled.

Workers know nothing of each other. All they share is the folder of the grid, which is read anew before each cell, so
that it may grow while they work.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from paucal.verbs.comparing.cells.cell import Cell, cells_of, state_of
from paucal.verbs.comparing.cells.claim import claimed, fail, settle_tries
from paucal.verbs.comparing.cells.grid import Grid, read_grid

PAUSE = 2.0  # seconds between two looks at a grid in which others are at work


class Compute(Protocol):
    """What computes a cell, such as `train_cell`."""

    def __call__(self, cell: Cell, threads: int) -> bool:
        """Compute it; return False where a signal came between, whose state is saved."""
        ...


def work(
    folder: Path,
    compute: Compute,
    look: Callable[[Grid], object] | None = None,
    pause: float = PAUSE,
    led: bool = False,
) -> bool:
    """Work at a grid until every cell is done or has failed, by this worker or another one.

    Args:
        folder: of the grid.
        compute: a cell.
        look: at the grid, after each cell and while others are at work.
        pause: seconds between two looks.
        led: whether this process was started by the one that leads, without which it ends after its cell. A call by
            a person goes on when the terminal that it was typed into is closed.

    Returns:
        Whether the grid is settled; False where a signal has stopped this worker, or the one that leads is gone.

    Raises:
        UserError: the grid cannot be read.
    """
    parent = os.getppid()
    while not led or os.getppid() == parent:
        grid = read_grid(folder)
        open_cells = [cell for cell in cells_of(grid) if not state_of(cell).settled]
        if look is not None:
            look(grid)
        if not open_cells:
            return True
        outcome = take_one(open_cells, compute, grid.threads)
        if outcome is False:
            return False
        if outcome is None:
            time.sleep(pause)
    return False


def take_one(cells: Sequence[Cell], compute: Compute, threads: int) -> bool | None:
    """Compute the first cell that is free; return None where others have all of them, False where it was stopped."""
    for cell in cells:
        with claimed(cell) as mine:
            if mine:
                return _computed(cell, compute, threads)
    return None


def _computed(cell: Cell, compute: Compute, threads: int) -> bool:
    try:
        finished = compute(cell, threads)
    except KeyboardInterrupt:
        settle_tries(cell)
        raise
    except Exception as problem:  # whatever it is, the other cells go on
        fail(cell, problem)
        return True
    settle_tries(cell)
    return finished
