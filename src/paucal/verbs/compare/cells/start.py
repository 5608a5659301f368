"""Cells that start from the weights of another grid's run, which is in a study's folder of starts."""

from paucal.types import UserError
from paucal.verbs.compare.cells.cell import START, Cell, make_cell, state_of
from paucal.verbs.compare.cells.grid import read_grid

STARTS = "starts"  # the folder beside a study's grids that holds a grid for each verb


def start_of(cell: Cell) -> Cell | None:
    """Return the cell with the same seed that a cell starts from; None for random or published weights.

    Raises:
        UserError: There is no such cell.
    """
    if START not in cell.settings:
        return None
    verb, name = cell.settings[START]
    grid = read_grid(cell.folder.parents[2] / STARTS / verb)
    found = [make_cell(grid, arm, cell.seed) for arm in grid.arms if arm.name == name]
    if not found or cell.seed not in grid.seeds:
        raise UserError(
            f"there is no run of {name!r} with seed {cell.seed} to start from: run the study again with --retry."
        )
    return found[0]


def start_settings(start: Cell | None) -> dict[str, str]:
    """Return the settings that let a cell start from another one's run; empty without one.

    Raises:
        UserError: That run is not done.
    """
    if start is None:
        return {}
    state = state_of(start)
    if state.name != "done":
        why = f"has failed ({state.error})" if state.name == "failed" else f"is {state.name}"
        raise UserError(f"it starts from the run of {start.name}, which {why}: use --retry once that is done.")
    return {"init": str(start.run.path.resolve())}
