"""How long a grid takes: measured for every arm before the start, and corrected by the first runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paucal.runner.clock import duration, finish
from paucal.runner.time_budget import seconds_of
from paucal.runs import RunFolder
from paucal.tasks.classification.assembly import TrainingSetup
from paucal.tasks.classification.auto_tune.tuning import seconds_per_image
from paucal.types import UserError
from paucal.verbs.compare.cells.cell import Cell, State, state_of
from paucal.verbs.compare.cells.grid import Grid
from paucal.wording import counted

OVERHEAD = 4.0  # seconds of a run beside training: opening images, pictures, the page


def seconds_of_run(made: TrainingSetup) -> float:
    """Return the expected seconds of a run on this machine, by timing a few steps or from its time budget."""
    settings, counts = made.settings, made.data.counts()
    if made.tune_record is not None and settings.epochs is None:
        return made.tune_record.budget or seconds_of(settings.time or "15m")
    epochs, each = settings.epochs or 0, seconds_per_image(made)
    return OVERHEAD + each * (epochs * (counts["train"] + counts["val"] / 3) + counts["test"] / 3)


@dataclass(frozen=True)
class Progress:
    """Progress of a grid.

    Attributes:
        states: States of the cells.
        left: Seconds until the grid is settled with the present workers; None if unknown.
        others: Workers of other calls.
    """

    states: Mapping[Cell, State]
    left: float | None
    others: int = 0

    def count(self, name: str) -> int:
        """Return how many cells are in a state."""
        return sum(state.name == name for state in self.states.values())

    def words(self) -> str:
        """Return the remaining time as part of a sentence; "" if it is unknown or zero."""
        if self.left is None or self.left < 1:
            return ""
        return f"about {duration(self.left)} left, until {finish(self.left)}"


def progress_of(grid: Grid, cells: Sequence[Cell], workers: int, *, busy: bool = False) -> Progress:
    """Return the states of all cells, and how long the open ones will take.

    Args:
        grid: Grid with the forecast of every arm.
        cells: Known cells.
        workers: Workers of this call.
        busy: Whether running cells may belong to this call's own workers; otherwise all belong to other calls.
    """
    states = {cell: state_of(cell) for cell in cells}
    running = sum(state.name == "running" for state in states.values())
    others = max(0, running - workers) if busy else running
    if any(arm.name not in grid.forecast for arm in grid.arms):
        return Progress(states, None, others)
    done = [cell for cell, state in states.items() if state.name == "done"]
    took = {cell: seconds for cell in done if (seconds := _seconds(cell.run)) is not None}
    slower = 1.0
    if took:
        slower = sum(took.values()) / max(1e-9, sum(grid.forecast[cell.arm.name] for cell in took))
    left = 0.0
    for cell, state in states.items():
        if not state.settled:
            done_share = _share_done(cell.run) if state.name in ("running", "stopped") else 0.0
            left += (1 - done_share) * grid.forecast[cell.arm.name] * slower
    for arm in _to_come(grid, cells):
        left += (len(grid.seeds) - 1) * grid.forecast[arm] * slower
    todo = sum(not state.settled for state in states.values())
    return Progress(states, left / max(1, min(workers + others, todo)), others)


def _to_come(grid: Grid, cells: Sequence[Cell]) -> list[str]:
    """Return the arms whose runs wait for the choice of a learning rate."""
    known = {cell.arm.name for cell in cells if not cell.tried}
    return [arm.name for arm in grid.arms if grid.rates and len(grid.seeds) > 1 and arm.name not in known]


def describe_work(progress: Progress, workers: int) -> str:
    """Return a line on the runs to compute, and when they will end."""
    todo = sum(not state.settled for state in progress.states.values())
    time_left = f", {progress.words()}" if progress.words() else ""
    beside = f" beside {progress.others} of other calls" if progress.others else ""
    return f"time: {counted(todo, 'run')} to compute with {counted(workers, 'worker')}{beside}{time_left}"


def _seconds(run: RunFolder) -> float | None:
    try:
        seconds = run.read_json("summary.json").get("seconds")
    except UserError:
        return None
    return float(seconds) + OVERHEAD if isinstance(seconds, int | float) else None


def _share_done(run: RunFolder) -> float:
    """Return the share of an unfinished run's epochs that is done."""
    try:
        epochs = run.settings.get("epochs")
        return min(1.0, len(run.read_rows()) / epochs) if isinstance(epochs, int) and epochs else 0.0
    except (UserError, OSError):  # the file is being written
        return 0.0
