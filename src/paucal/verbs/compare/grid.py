"""A grid of runs: every arm (training configuration) of a comparison with every seed.

A grid is stored in a folder that all workers share; later calls can extend the grid. A cell is one run of the grid
together with the evaluation of this run. The name of a cell's folder contains a hash of the cell's settings,
and the files in the folder tell whether the cell is pending, running, done or failed.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from paucal.methods.training import unused_settings_of
from paucal.methods.training_settings import TrainSettings
from paucal.runner.resuming import CHANGEABLE
from paucal.runs import RunFolder
from paucal.runs.folder import GRID_FILE, SCORES_FILE, is_grid_folder
from paucal.runs.lock import is_locked
from paucal.settings.options import flag, with_current_names, with_earlier_names
from paucal.tasks.table import TRAINING_TASKS, settings_of
from paucal.types import UserError
from paucal.verbs.compare.settings import Arm
from paucal.verbs.eval.settings import EvalSettings
from paucal.wording import shorten

FORMAT = 1  # version of the stored grid
EVAL = "eval"  # command of cells that only evaluate a trained model
# Settings class of each command whose runs can be cells.
SETTINGS_OF_VERB = {**{verb: settings_of(verb) for verb in TRAINING_TASKS}, EVAL: EvalSettings}
# Settings that do not change results. The images are identified by their fingerprint instead of their location.
WITHOUT_EFFECT = ("data", "data_root", *CHANGEABLE)
CELLS_FOLDER = "cells"
FAILURE_FILE = "failed.json"
EVALUATION_FOLDER = "judged"  # folder in a cell with the results of its evaluation
# Folder in the results of `paucal study` that contains one grid per training command. The runs of these grids train
# the initial weights of other runs in the study.
STARTS = "starts"
# Keys in a cell's settings that are not settings of the cell's command. The value of EVALUATION is a dict of settings
# of an additional evaluation. The value of START is the (command, name) of the arm that trains the initial weights. The
# value of MODEL is the model to evaluate if the cell trains nothing.
EVALUATION, START, MODEL = "judging", "start", "subject"
EXTRA_ENTRIES = (EVALUATION, START, MODEL)


@dataclass(frozen=True)
class Grid:
    """The runs of a comparison: every arm with every seed."""

    folder: Path
    fingerprint: str  # digest of the images and their labels
    shared: Mapping[str, Any]  # settings that all runs share
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    # Learning rates to try with the first seed; each arm keeps the rate with the best validation accuracy. Empty if
    # there is no search for learning rates.
    rates: tuple[float, ...] = ()
    threads: int = 1  # number of threads per worker; stored because the results can depend on it
    forecast: Mapping[str, float] = field(default_factory=dict)  # expected seconds of a run, by the name of the arm
    commands: tuple[str, ...] = ()  # shell commands that created or extended the grid, in order
    verb: str = "train"  # command that trains the runs; a key of `SETTINGS_OF_VERB`

    def settings_of(self, arm: Arm) -> dict[str, Any]:
        """Return the arm's own settings, and the shared settings except those of methods and losses it does not use."""
        values = {**self.shared, **arm.settings}
        if self.verb != "train":
            return values
        methods = {name: values[name] for name in ("method", "add") if name in values}
        unused = unused_settings_of(TrainSettings(**methods)) - set(arm.settings)
        return {name: value for name, value in values.items() if name not in unused}

    def write(self) -> None:
        """Write the grid to its folder."""
        arms = [{**vars(arm), "settings": dict(arm.settings)} for arm in self.arms]
        content = {name: value for name, value in vars(self).items() if name not in ("folder", "arms")}
        RunFolder(self.folder).write_json(GRID_FILE, {"format": FORMAT, **content, "arms": arms})


def read_grid(folder: Path) -> Grid:
    """Read the grid stored in a folder."""
    if not is_grid_folder(folder):
        raise UserError(f"{str(folder)!r} contains no comparison (no {GRID_FILE}): check the path.")
    record = RunFolder(folder).read_json(GRID_FILE)
    try:
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']!r}")
        verb = str(record.get("verb", "train"))
        if verb not in SETTINGS_OF_VERB:
            raise ValueError(f"the command is {verb!r}")
        grid = Grid(
            folder,
            str(record["fingerprint"]),
            with_current_names(record["shared"], SETTINGS_OF_VERB[verb]),
            tuple(_read_arm(value, SETTINGS_OF_VERB[verb]) for value in record["arms"]),
            tuple(map(int, record["seeds"])),
            tuple(map(float, record["rates"])),
            int(record["threads"]),
            {str(name): float(seconds) for name, seconds in record["forecast"].items()},
            tuple(map(str, record["commands"])),
            verb,
        )
        if not grid.arms or not grid.seeds or grid.threads < 1:
            raise ValueError("it has no arms, no seeds or no threads")
        return grid
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UserError(f"{str(folder / GRID_FILE)!r} is damaged ({problem}): restore the file.") from problem


def _read_arm(value: Mapping[str, Any], kind: type) -> Arm:
    settings = with_current_names(value["settings"], kind)
    terms = settings.get("add") or ()
    if not all(isinstance(method, str) for method in (settings.get("method", ""), *terms)):
        raise TypeError("the method of an arm must be text")
    model, share = (None if value[name] is None else str(value[name]) for name in ("model", "share"))
    return Arm(str(value["way"]), model, share, settings, str(value.get("against", "")))


def require_images(grid: Grid, fingerprint: str) -> None:
    """Raise a UserError if the fingerprint of the images differs from the fingerprint of a stored grid."""
    if grid.fingerprint != fingerprint:
        raise UserError(
            f"--output: the images or labels differ from those of {str(grid.folder)!r} (images were added, "
            "removed, changed or relabelled), and scores on different images cannot be compared: restore the images, "
            "or choose another folder."
        )


def merge_grids(old: Grid, new: Grid) -> Grid:
    """Return a stored grid extended by the arms and seeds of a new grid; refuse other images or settings."""
    require_images(old, new.fingerprint)
    if old.verb != new.verb:
        raise UserError(f"--output: {str(old.folder)!r} contains runs of 'paucal {old.verb}': choose another folder.")
    old_shared, new_shared = (
        {name: value for name, value in grid.shared.items() if name not in WITHOUT_EFFECT} for grid in (old, new)
    )
    _require_equal(old, old_shared, new_shared)
    _require_equal(old, {"lrs": old.rates or None}, {"lrs": new.rates or None})
    arms = {arm.name: arm for arm in old.arms}
    for arm in new.arms:
        _require_equal(old, arms.setdefault(arm.name, arm).settings, arm.settings)
    return replace(
        old,
        shared={**new.shared},
        arms=tuple(arms.values()),
        seeds=tuple(dict.fromkeys((*old.seeds, *new.seeds))),
        forecast={**old.forecast, **new.forecast},
        commands=tuple(dict.fromkeys((*old.commands, *new.commands))),
    )


def _require_equal(grid: Grid, old_settings: Mapping[str, Any], new_settings: Mapping[str, Any]) -> None:
    for name in sorted({*old_settings, *new_settings}):
        values = [settings.get(name) for settings in (old_settings, new_settings)]
        if values[0] != values[1]:
            values = [list(value) if isinstance(value, tuple) else value for value in values]
            texts = ["not given" if value is None else shorten(str(value), 60) for value in values]
            raise UserError(
                f"--output: {str(grid.folder)!r} contains a different comparison ({flag(name)} was {texts[0]}, now "
                f"{texts[1]}), and a comparison can only be extended by methods, models, arms, labels and seeds: "
                "choose another folder."
            )


@dataclass(frozen=True)
class Cell:
    """A run of a grid, with its evaluation."""

    folder: Path  # folder of the cell, which contains the run
    arm: Arm
    seed: int
    rate: float | None  # learning rate, if the grid searches for learning rates; otherwise None
    # Settings of the command, and further entries with the keys in `EXTRA_ENTRIES`.
    settings: Mapping[str, Any] = field(hash=False)
    is_trial: bool = False  # whether the run is a trial for choosing a learning rate
    verb: str = "train"

    @property
    def run(self) -> RunFolder:
        """The run folder."""
        return RunFolder(self.folder / "run")

    @property
    def is_evaluated(self) -> bool:
        """Whether the cell has an evaluation in addition to the evaluation at the end of its run."""
        return self.verb == EVAL or EVALUATION in self.settings

    @property
    def name(self) -> str:
        """Name of the cell for messages."""
        rate = "" if self.rate is None else f", learning rate {self.rate:g}"
        return f"{self.arm.name}, seed {self.seed}{rate}"


@dataclass(frozen=True)
class State:
    """Progress of a cell."""

    # "running" while the worker renews the lock of the cell, and "stopped" if the worker ended or died before the cell
    # was done; another worker then continues the cell.
    name: Literal["pending", "running", "stopped", "done", "failed"]
    error: str = ""  # error message of a failed cell

    @property
    def is_final(self) -> bool:
        """Whether the cell needs no more work."""
        return self.name in ("done", "failed")


def verb_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the command, without the entries of `EXTRA_ENTRIES`."""
    return {name: value for name, value in settings.items() if name not in EXTRA_ENTRIES}


def state_of(cell: Cell) -> State:
    """Return the state of a cell, read from its folder."""
    trained = cell.verb == EVAL or cell.run.finished
    if trained and (not cell.is_evaluated or (cell.folder / SCORES_FILE).is_file()):
        return State("done")
    if (cell.folder / FAILURE_FILE).is_file():
        try:
            record = RunFolder(cell.folder).read_json(FAILURE_FILE)
        except UserError as problem:
            return State("failed", str(problem))
        return State("failed", str(record.get("error", "no reason was recorded")))
    if is_locked(cell.folder):
        return State("running")
    return State("stopped" if cell.run.config.is_file() else "pending")


def make_cell(grid: Grid, arm: Arm, seed: int, rate: float | None = None, is_trial: bool = False) -> Cell:
    """Return the cell for an arm, a seed and a learning rate; cells with equal settings have the same folder."""
    settings = {**grid.settings_of(arm), **({} if rate is None else {"lr": rate}), "seed": seed}
    relevant = {name: value for name, value in settings.items() if name not in WITHOUT_EFFECT}
    content = {"images": grid.fingerprint, **with_earlier_names(relevant, SETTINGS_OF_VERB[grid.verb])}
    digest = hashlib.blake2b(json.dumps(content, sort_keys=True, default=str).encode(), digest_size=5).hexdigest()
    parts = [arm.way, arm.model or "", arm.share or "", "" if rate is None else f"lr{rate:g}", f"seed{seed}", digest]
    name = re.sub(r"[^A-Za-z0-9.+_-]+", "_", "-".join(part for part in parts if part))[-120:].lstrip(".-")
    return Cell(grid.folder / CELLS_FOLDER / name, arm, seed, rate, settings, is_trial, grid.verb)


def cells_of(grid: Grid) -> list[Cell]:
    """Return the cells, ordered by seed so that arms can be compared before all seeds are done.

    If learning rates are searched, an arm has cells for further seeds only after its rate has been chosen.
    """
    if not grid.rates:
        return [make_cell(grid, arm, seed) for seed in grid.seeds for arm in grid.arms]
    trials = {arm: [make_cell(grid, arm, grid.seeds[0], rate, True) for rate in grid.rates] for arm in grid.arms}
    rates = {arm: choose_learning_rate(cells) for arm, cells in trials.items()}
    # The trial with the chosen rate is also the arm's run with the first seed.
    others = [(arm, seed, rate) for seed in grid.seeds[1:] for arm, rate in rates.items() if rate is not None]
    return [*(cell for cells in trials.values() for cell in cells), *(make_cell(grid, *entry) for entry in others)]


def compared_cells(grid: Grid) -> list[Cell]:
    """Return the cells whose scores are compared; if learning rates are searched, those with the arm's chosen rate."""
    cells = cells_of(grid)
    if not grid.rates:
        return cells
    rates = {
        arm: choose_learning_rate([cell for cell in cells if cell.is_trial and cell.arm == arm]) for arm in grid.arms
    }
    return [cell for cell in cells if cell.rate == rates[cell.arm]]


def choose_learning_rate(trials: list[Cell]) -> float | None:
    """Return the rate of the first trial with the best validation score; None if any is unfinished or all failed."""
    states = [state_of(cell) for cell in trials]
    finished = [cell for cell, state in zip(trials, states, strict=True) if state.name == "done"]
    if not finished or not all(state.is_final for state in states):
        return None
    return max(finished, key=lambda cell: validation_score(cell.run)).rate


def validation_score(run: RunFolder) -> float:
    """Return the validation accuracy of the model that a finished run kept."""
    summary = run.read_json("summary.json")
    for name in ("kept_val_top1", "best_val_top1"):
        if isinstance(summary.get(name), int | float):
            return float(summary[name])
    raise UserError(f"{str(run.path)!r} has no validation score to choose a learning rate by.")


def initial_weights_cell(cell: Cell) -> Cell | None:
    """Return the cell of a grid in `STARTS` that trains the initial weights of `cell`; None if no cell trains them."""
    if START not in cell.settings:
        return None
    verb, name = cell.settings[START]
    grid = read_grid(cell.folder.parents[2] / STARTS / verb)
    arm = next((arm for arm in grid.arms if arm.name == name), None)
    if arm is None or cell.seed not in grid.seeds:
        text = f"there is no run of {name!r} with seed {cell.seed} to start from"
        raise UserError(f"{text}: repeat the study with --retry.")
    return make_cell(grid, arm, cell.seed)


def initial_weights_settings(source_cell: Cell | None) -> dict[str, str]:
    """Return the setting `init` of a cell that starts from the weights of `source_cell`; {} without such a cell."""
    if source_cell is None:
        return {}
    state = state_of(source_cell)
    if state.name != "done":
        reason = f"has failed ({state.error})" if state.name == "failed" else f"is {state.name}"
        text = f"this run starts from the run of {source_cell.name}, which {reason}"
        raise UserError(f"{text}: use --retry when that run is done.")
    return {"init": str(source_cell.run.path.resolve())}
