"""A cell: one run of the grid. Its folder is named by a hash of its settings, and its files give its state."""

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
from paucal.verbs.compare.arms import Arm, settings_of
from paucal.verbs.compare.cells.grid import EVAL, FREE, Grid

CELLS = "cells"
FAILED = "failed.json"
JUDGED = "judged.json"  # scores of an evaluation beside the run's own
# Entries of a cell's settings that are not settings of the verb: those of its evaluation, the cell that it starts from,
# and the model to evaluate if nothing is trained.
JUDGING, START, SUBJECT = "judging", "start", "subject"
ENTRIES = (JUDGING, START, SUBJECT)
StateName = Literal["pending", "running", "stopped", "done", "failed"]


@dataclass(frozen=True)
class Cell:
    """One run of a grid.

    Attributes:
        folder: Folder of the cell, which contains the run.
        arm: Way to train.
        seed: Seed for all random numbers.
        rate: Learning rate that is tried or was chosen; None if it is not searched.
        settings: Given settings of the verb, and those in `ENTRIES`.
        tried: Whether the run serves to choose a learning rate.
        verb: Verb that makes the run.
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
        """The run folder."""
        return RunFolder(self.folder / "run")

    @property
    def given(self) -> dict[str, Any]:
        """The settings of the verb, without those in `ENTRIES`."""
        return of_verb(self.settings)

    @property
    def judged(self) -> bool:
        """Whether the cell has an evaluation beside the run's own."""
        return self.verb == EVAL or JUDGING in self.settings

    @property
    def name(self) -> str:
        """Name of the cell for messages."""
        rate = "" if self.rate is None else f", learning rate {self.rate:g}"
        return f"{self.arm.name}, seed {self.seed}{rate}"


@dataclass(frozen=True)
class State:
    """Progress of a cell.

    Attributes:
        name: Name "pending", "running" (its worker renews the lock), "stopped" (its worker is gone, another one will
            continue), "done" or "failed".
        error: Reason of the failure, or "".
    """

    name: StateName
    error: str = ""

    @property
    def settled(self) -> bool:
        """Whether the cell needs no more work."""
        return self.name in ("done", "failed")


def of_verb(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the verb, without those in `ENTRIES`."""
    return {name: value for name, value in settings.items() if name not in ENTRIES}


def state_of(cell: Cell) -> State:
    """Return the state of a cell, read from its folder."""
    trained = cell.verb == EVAL or cell.run.finished
    if trained and (not cell.judged or (cell.folder / JUDGED).is_file()):
        return State("done")
    if (cell.folder / FAILED).is_file():
        return State("failed", _error(cell.folder))
    if is_locked(cell.folder):
        return State("running")
    return State("stopped" if cell.run.config.is_file() else "pending")


def cells_of(grid: Grid) -> list[Cell]:
    """Return the cells that are known so far, ordered by seed, so that a half-finished grid can be compared.

    If learning rates are searched, an arm has only the runs that try them until the rate is chosen.
    """
    if not grid.rates:
        return [make_cell(grid, arm, seed) for seed in grid.seeds for arm in grid.arms]
    trials = {arm: [make_cell(grid, arm, grid.seeds[0], rate, True) for rate in grid.rates] for arm in grid.arms}
    chosen = {arm: chosen_rate(cells) for arm, cells in trials.items()}
    made = [make_cell(grid, arm, seed, rate) for seed in grid.seeds for arm, rate in chosen.items() if rate is not None]
    # The trial with the chosen rate is also the arm's run with the first seed.
    return [
        *(cell for cells in trials.values() for cell in cells),
        *(cell for cell in made if cell.seed != grid.seeds[0]),
    ]


def chosen_rate(trials: list[Cell]) -> float | None:
    """Return the rate whose run has the best validation score, the first of equals.

    None until all trials are done, or if all of them failed.
    """
    states = [state_of(cell) for cell in trials]
    done = [cell for cell, state in zip(trials, states, strict=True) if state.name == "done"]
    if not done or not all(state.settled for state in states):
        return None
    return max(done, key=lambda cell: validation_score(cell.run)).rate


def compared_cells(grid: Grid) -> list[Cell]:
    """Return the cells whose scores are compared: all but the trials of rates that were not chosen."""
    if not grid.rates:
        return cells_of(grid)
    cells = cells_of(grid)
    trials = {arm: [cell for cell in cells if cell.tried and cell.arm == arm] for arm in grid.arms}
    chosen = {arm: chosen_rate(found) for arm, found in trials.items()}
    return [cell for cell in cells if cell.rate == chosen[cell.arm]]


def validation_score(run: RunFolder) -> float:
    """Return the validation accuracy of a finished run's model.

    Raises:
        UserError: The summary does not contain it.
    """
    summary = run.read_json("summary.json")
    for name in ("kept_val_top1", "best_val_top1"):
        if isinstance(summary.get(name), int | float):
            return float(summary[name])
    raise UserError(f"{str(run.path)!r} has no validation score to choose a learning rate by.")


def make_cell(grid: Grid, arm: Arm, seed: int, rate: float | None = None, tried: bool = False) -> Cell:
    """Return the cell of an arm, a seed and a learning rate; equal settings give the same folder."""
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
