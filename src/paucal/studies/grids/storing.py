"""Storing a grid whose runs are not those of `paucal train`: checked, timed, and let grow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from paucal.runner.console import Console
from paucal.types import UserError
from paucal.verbs.compare.arms import Arm
from paucal.verbs.compare.cells.cell import of_verb
from paucal.verbs.compare.cells.grid import Grid, is_grid, merge_grids, read_grid
from paucal.verbs.compare.preparation import store_grid, threads_of_worker
from paucal.verbs.compare.settings import GridSettings

Seconds = Callable[[Mapping[str, Any]], float]


def settle_own(
    new: Grid,
    asked: GridSettings,
    seconds: Seconds,
    console: Console,
    absent: Mapping[str, Any] | None = None,
    before: Callable[[Grid], object] | None = None,
) -> Grid:
    """Check every arm of a grid, measure how long its runs take, and store it, or let the one that is there grow.

    Args:
        new: the grid, without threads and forecast.
        asked: who computes.
        seconds: puts a run of the given settings together, which finds mistakes, and says how long it takes.
        console: shows what takes long.
        absent: settings in the place of what is not there yet, such as the weights that a run begins with.
        before: called with the grid as it will be, when all is sound and before workers can see it.

    Raises:
        UserError: a setting does not do, or the folder holds something else.
    """
    where = new.folder
    if not is_grid(where) and where.exists() and any(where.iterdir()):
        raise UserError(f"--output: {str(where)!r} is not empty and holds no study: choose another folder.")
    old = read_grid(where) if is_grid(where) else None
    new = replace(new, threads=threads_of_worker(asked) if old is None else old.threads)
    grid = new if old is None else merge_grids(old, new)
    torch.set_num_threads(new.threads)
    known = {} if old is None else dict(old.forecast)
    arms = [arm for arm in grid.arms if arm.name not in known]
    found = _forecast(grid, arms, seconds, console, absent or {})
    if before is not None:
        before(grid)
        torch.set_num_threads(new.threads)
    return store_grid(where, replace(new, forecast={**known, **found}))


def _forecast(
    grid: Grid, arms: Sequence[Arm], seconds: Seconds, console: Console, absent: Mapping[str, Any]
) -> dict[str, float]:
    found = {}
    with console.progress("measuring") as advance:
        for number, arm in enumerate(arms):
            values = of_verb({**grid.shared, **arm.settings})
            try:
                found[arm.name] = round(seconds({**absent, **values, "seed": grid.seeds[0]}), 2)
            except UserError as problem:
                raise UserError(f"{arm.name}: {problem}") from problem
            advance(number + 1, len(arms))
    return found


def new_grid(
    where: Path,
    verb: str,
    digest: str,
    shared: Mapping[str, Any],
    arms: Sequence[Arm],
    seeds: Sequence[int],
    command: str,
) -> Grid:
    """Return a grid that is not stored yet; its parts are those of `Grid`."""
    return Grid(where, digest, shared, tuple(arms), tuple(seeds), (), 1, {}, (command,), verb)
