"""What is said of a grid while workers are at it: each run as it ends, and when all will have."""

import time

from paucal.types import UserError
from paucal.verbs.comparing.cells.cell import Cell, State, cells_of
from paucal.verbs.comparing.cells.grid import Grid
from paucal.verbs.comparing.workers.clock import Progress, progress_of
from paucal.verbs.run.forecast import duration
from paucal.verbs.run.voice import Voice
from paucal.wording import percent

# The score that is said of a run that has ended, and the words before it, by the verb that made it.
HEADLINES = {"train": ("test_top1", ""), "detect": ("test_ap", "AP "), "segment": ("test_mean_iou", "mean IoU ")}
QUIET = 600.0  # seconds after which it is said how far everything is, though no run has ended


class Teller:
    """Looks at a grid and says what is new.

    Args:
        voice: says it.
        workers: of this call.
    """

    def __init__(self, voice: Voice, workers: int) -> None:
        self._voice, self._workers = voice, max(1, workers)
        self._known: dict[Cell, State] | None = None
        self._spoke = time.monotonic()

    def look(self, grid: Grid, *, busy: bool = False) -> Progress:
        """Look, and say which runs have ended since the last look; `busy` while this call's own workers are at it."""
        progress = progress_of(grid, cells_of(grid), self._workers, busy=busy)
        before, self._known = self._known, dict(progress.states)
        settled = sum(state.settled for state in progress.states.values())
        place = f"{settled} of {len(progress.states)}"
        if before is not None:
            for cell, state in progress.states.items():
                if state.settled and not before.get(cell, State("pending")).settled:
                    self._say(f"{place}: {_ended(cell, state)}", progress)
        if before is not None and time.monotonic() - self._spoke > QUIET:
            self._say(f"{place} ended, {progress.count('running')} at work", progress)
        return progress

    def _say(self, text: str, progress: Progress) -> None:
        self._spoke = time.monotonic()
        self._voice.say("; ".join(part for part in (text, progress.words()) if part))


def _ended(cell: Cell, state: State) -> str:
    if state.name == "failed":
        return f"{cell.name} failed: {state.error}"
    try:
        summary = cell.run.read_json("summary.json")
        name, words = HEADLINES[cell.verb]
        return f"{cell.name}: {words}{percent(float(summary[name]))} in {duration(float(summary['seconds']))}"
    except (UserError, KeyError, TypeError, ValueError):
        return f"{cell.name}: done"
