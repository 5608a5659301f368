"""What a cell begins with, where that is a run of another grid: of a study's starts, which lie beside its grids."""

from paucal.types import UserError
from paucal.verbs.comparing.cells.cell import START, Cell, make_cell, state_of
from paucal.verbs.comparing.cells.grid import read_grid

STARTS = "starts"  # the folder beside a study's grids that holds a grid for each verb


def begun_with(cell: Cell) -> dict[str, str]:
    """Return the settings that let a cell begin with the run of its start, of the same seed; none where it has none.

    Raises:
        UserError: that run is not done.
    """
    if START not in cell.settings:
        return {}
    verb, name = cell.settings[START]
    grid = read_grid(cell.folder.parents[2] / STARTS / verb)
    found = [make_cell(grid, arm, cell.seed) for arm in grid.arms if arm.name == name]
    if not found or cell.seed not in grid.seeds:
        raise UserError(f"there is no run of {name!r} with seed {cell.seed} to begin with: call the study again.")
    state = state_of(found[0])
    if state.name != "done":
        why = f"has failed ({state.error})" if state.name == "failed" else f"is {state.name}"
        raise UserError(f"it begins with the run of {found[0].name}, which {why}: once it is done, --retry.")
    return {"init": str(found[0].run.path.resolve())}
