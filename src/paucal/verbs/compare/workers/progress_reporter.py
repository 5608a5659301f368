"""Progress messages of a grid: each run as it ends, and when all will be done."""

import time

from paucal.runner.clock import duration
from paucal.runner.console import Console
from paucal.types import UserError
from paucal.verbs.compare.cells.cell import Cell, State, cells_of
from paucal.verbs.compare.cells.grid import Grid
from paucal.verbs.compare.workers.clock import Progress, progress_of
from paucal.wording import percent

# The score that is said of a run that has ended, and the words before it, by the verb that made it.
HEADLINES = {"train": ("test_top1", ""), "detect": ("test_ap", "AP "), "segment": ("test_mean_iou", "mean IoU ")}
MAX_SILENCE = 600.0  # seconds after which the progress is printed even if no run has ended


class ProgressReporter:
    """Prints changes of a grid's progress.

    Args:
        console: Console for the messages.
        workers: Workers of this call.
    """

    def __init__(self, console: Console, workers: int) -> None:
        self._console, self._workers = console, max(1, workers)
        self._known: dict[Cell, State] | None = None
        self._last_message = time.monotonic()

    def look(self, grid: Grid, *, busy: bool = False) -> Progress:
        """Print the runs that have ended since the last call; `busy` while this call's own workers run."""
        progress = progress_of(grid, cells_of(grid), self._workers, busy=busy)
        before, self._known = self._known, dict(progress.states)
        settled = sum(state.settled for state in progress.states.values())
        place = f"{settled} of {len(progress.states)}"
        if before is not None:
            for cell, state in progress.states.items():
                if state.settled and not before.get(cell, State("pending")).settled:
                    self._say(f"{place}: {_ended(cell, state)}", progress)
        if before is not None and time.monotonic() - self._last_message > MAX_SILENCE:
            self._say(f"{place} ended, {progress.count('running')} running", progress)
        return progress

    def _say(self, text: str, progress: Progress) -> None:
        self._last_message = time.monotonic()
        self._console.say("; ".join(part for part in (text, progress.words()) if part))


def _ended(cell: Cell, state: State) -> str:
    if state.name == "failed":
        return f"{cell.name} failed: {state.error}"
    try:
        summary = cell.run.read_json("summary.json")
        name, words = HEADLINES[cell.verb]
        return f"{cell.name}: {words}{percent(float(summary[name]))} in {duration(float(summary['seconds']))}"
    except (UserError, KeyError, TypeError, ValueError):
        return f"{cell.name}: done"
