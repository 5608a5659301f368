"""A cell: one run of the grid. What it is made of gives its folder, and its state is what lies there."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from paucal.runs import RunFolder
from paucal.runs.lock import is_locked
from paucal.types import UserError
from paucal.verbs.comparing.arms import Arm, settings_of
from paucal.verbs.comparing.cells.grid import EVAL, FREE, Grid

CELLS = "cells"
FAILED = "failed.json"
JUDGED = "judged.json"  # what a judge beside the run has found
# Entries of a cell's settings that are not the verb's own: what its judge is told, the cell that it begins with, and
# what is judged where nothing is trained.
JUDGING, START, SUBJECT = "judging", "start", "subject"
ENTRIES = (JUDGING, START, SUBJECT)
StateName = Literal["pending", "running", "stopped", "done", "failed"]


@dataclass(frozen=True)
class Cell:
    """One run.

    Attributes:
        folder: of the cell, in which the run lies.
        arm: the way to train.
        seed: of everything random.
        rate: learning rate, where one is tried or chosen; else None.
        settings: of the verb, all that are given, and those in `ENTRIES`.
        tried: whether the run is made to choose a learning rate.
        verb: that makes the run.
    """

    folder: Path
    arm: Arm
    seed: int
    rate: float | None
    settings: Mapping[str, Any] = field(hash=False)
    tried: bool = False
    verb: str = "train"

    @property
    def run(self) -> RunFolder:
        """The run."""
        return RunFolder(self.folder / "run")

    @property
    def given(self) -> dict[str, Any]:
        """The settings of the verb alone."""
        return of_verb(self.settings)

    @property
    def judged(self) -> bool:
        """Whether a judge belongs to it."""
        return self.verb == EVAL or JUDGING in self.settings

    @property
    def name(self) -> str:
        """What it is, for people."""
        rate = "" if self.rate is None else f", learning rate {self.rate:g}"
        return f"{self.arm.name}, seed {self.seed}{rate}"


@dataclass(frozen=True)
class State:
    """How far a cell is.

    Attributes:
        name: "pending" before anyone took it, "running" while its worker gives signs of life, "stopped" where that
            worker is gone and another will go on, "done", or "failed".
        error: why it failed; "" else.
    """

    name: StateName
    error: str = ""

    @property
    def settled(self) -> bool:
        """Whether nobody has to do anything about it."""
        return self.name in ("done", "failed")


def of_verb(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are the verb's own, without those in `ENTRIES`."""
    return {name: value for name, value in settings.items() if name not in ENTRIES}


def state_of(cell: Cell) -> State:
    """Look at a cell's folder."""
    trained = cell.verb == EVAL or cell.run.finished
    if trained and (not cell.judged or (cell.folder / JUDGED).is_file()):
        return State("done")
    if (cell.folder / FAILED).is_file():
        return State("failed", _error(cell.folder))
    if is_locked(cell.folder):
        return State("running")
    return State("stopped" if cell.run.config.is_file() else "pending")


def cells_of(grid: Grid) -> list[Cell]:
    """Return the cells that are known by now, seed after seed, so that a grid that is half done can be compared.

    Where learning rates are chosen, an arm has only the runs that try them until those are done.
    """
    if not grid.rates:
        return [make_cell(grid, arm, seed) for seed in grid.seeds for arm in grid.arms]
    trials = {arm: [make_cell(grid, arm, grid.seeds[0], rate, True) for rate in grid.rates] for arm in grid.arms}
    chosen = {arm: chosen_rate(cells) for arm, cells in trials.items()}
    made = [make_cell(grid, arm, seed, rate) for seed in grid.seeds for arm, rate in chosen.items() if rate is not None]
    # A trial with the chosen rate is the arm's run with that seed.
    return [
        *(cell for cells in trials.values() for cell in cells),
        *(cell for cell in made if cell.seed != grid.seeds[0]),
    ]


def chosen_rate(trials: list[Cell]) -> float | None:
    """Return the rate whose run is best on its validation images; None while some are to come, or where all failed.

    Of rates that are equally good the first is taken.
    """
    states = [state_of(cell) for cell in trials]
    done = [cell for cell, state in zip(trials, states, strict=True) if state.name == "done"]
    if not done or not all(state.settled for state in states):
        return None
    return max(done, key=lambda cell: validation_score(cell.run)).rate


def compared_cells(grid: Grid) -> list[Cell]:
    """Return the cells whose scores are compared, which are all but the trials of rates that were not chosen."""
    if not grid.rates:
        return cells_of(grid)
    cells = cells_of(grid)
    trials = {arm: [cell for cell in cells if cell.tried and cell.arm == arm] for arm in grid.arms}
    chosen = {arm: chosen_rate(found) for arm, found in trials.items()}
    return [cell for cell in cells if cell.rate == chosen[cell.arm]]


def validation_score(run: RunFolder) -> float:
    """Return the share of the validation images that a finished run's model gives the right class.

    Raises:
        UserError: the summary does not say.
    """
    summary = run.read_json("summary.json")
    for name in ("kept_val_top1", "best_val_top1"):
        if isinstance(summary.get(name), int | float):
            return float(summary[name])
    raise UserError(f"{str(run.path)!r} has no score on validation images, by which a rate could be chosen.")


def make_cell(grid: Grid, arm: Arm, seed: int, rate: float | None = None, tried: bool = False) -> Cell:
    """Return the cell of an arm, a seed and a learning rate; the same contents are the same folder."""
    own = settings_of(grid.shared, arm) if grid.verb == "train" else {**grid.shared, **arm.settings}
    settings = {**own, **({} if rate is None else {"lr": rate}), "seed": seed}
    content = {"images": grid.fingerprint, **{name: value for name, value in settings.items() if name not in FREE}}
    digest = hashlib.blake2b(json.dumps(content, sort_keys=True, default=str).encode(), digest_size=5).hexdigest()
    words = [arm.way, *([arm.model] if arm.model else []), *([f"{arm.share}"] if arm.share else [])]
    words += [*([f"lr{rate:g}"] if rate is not None else []), f"seed{seed}", digest]
    name = re.sub(r"[^A-Za-z0-9.+_-]+", "_", "-".join(words))[-120:].lstrip(".-")
    return Cell(grid.folder / CELLS / name, arm, seed, rate, settings, tried, grid.verb)


def _error(folder: Path) -> str:
    try:
        return str(RunFolder(folder).read_json(FAILED).get("error", "it does not say why"))
    except UserError as problem:
        return str(problem)
