"""What a cell begins with, where that is a run of another grid: of a study's starts, which lie beside its grids."""

from paucal.types import UserError
from paucal.verbs.comparing.cells.cell import START, Cell, make_cell, state_of
from paucal.verbs.comparing.cells.grid import read_grid

STARTS = "starts"  # the folder beside a study's grids that holds a grid for each verb


def start_of(cell: Cell) -> Cell | None:
    """Return the cell, of the same seed, whose run a cell begins with; None where it begins with none.

    Raises:
        UserError: there is no such cell.
    """
    if START not in cell.settings:
        return None
    verb, name = cell.settings[START]
    grid = read_grid(cell.folder.parents[2] / STARTS / verb)
    found = [make_cell(grid, arm, cell.seed) for arm in grid.arms if arm.name == name]
    if not found or cell.seed not in grid.seeds:
        raise UserError(
            f"there is no run of {name!r} with seed {cell.seed} to begin with: call the study again, with --retry."
        )
    return found[0]


def begun_with(start: Cell | None) -> dict[str, str]:
    """Return the settings that let a cell begin with the run of another one; none where there is none.

    Raises:
        UserError: that run is not done.
    """
    if start is None:
        return {}
    state = state_of(start)
    if state.name != "done":
        why = f"has failed ({state.error})" if state.name == "failed" else f"is {state.name}"
        raise UserError(f"it begins with the run of {start.name}, which {why}: once it is done, --retry.")
    return {"init": str(start.run.path.resolve())}
