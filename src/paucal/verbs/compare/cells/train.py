"""Compute a cell: start its run, or resume it where another worker stopped."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from lightning.pytorch import Callback

from paucal.runner.console import Console, LiveBar, SilentConsole
from paucal.runner.life import Stopped, begin, resume
from paucal.runner.run_folder import typed_settings
from paucal.runs.lock import BEAT, SILENCE, is_locked, require_unlocked
from paucal.verbs.compare.cells.cell import Cell, state_of
from paucal.verbs.compare.cells.evaluation import evaluate_cell
from paucal.verbs.compare.cells.grid import EVAL
from paucal.verbs.compare.cells.jobs import job_of
from paucal.verbs.compare.cells.start import start_of, start_settings
from paucal.verbs.compare.cells.work import PAUSE, compute_next, work


class CellConsole(SilentConsole):
    """Prints only the progress bar of training, on a terminal; the run's log has everything."""

    def __init__(self, outer: Console) -> None:
        super().__init__()
        self._outer = outer

    def callbacks(self) -> Sequence[Callback]:
        """Return the progress bar on the console of the comparison."""
        return [LiveBar(self._outer)]


def train_cell(cell: Cell, threads: int, console: Console | None = None) -> bool:
    """Train and evaluate a cell as its verb and settings say; a `Compute`.

    Raises:
        UserError: The data or a setting is invalid, or another process trains this run.
    """
    torch.set_num_threads(threads)
    quiet = SilentConsole() if console is None else CellConsole(console)
    if not cell.run.finished and not _start_settled(cell, threads):
        return False
    if cell.verb != EVAL and not cell.run.finished and not _trained(cell, quiet):
        return False
    if cell.judged:
        evaluate_cell(cell, quiet)
    return True


def _start_settled(cell: Cell, threads: int) -> bool:
    """Wait for the cell that this one starts from, or compute it; return False if a signal stopped that.

    Starts are settled before the cells that need them. But while a worker is busy, the grid may grow by a seed whose
    start another call has not trained yet.
    """
    start = start_of(cell)
    while start is not None and not state_of(start).settled:
        outcome = compute_next([start], train_cell, threads)
        if outcome is False:
            return False
        if outcome is None:
            time.sleep(PAUSE)
    return True


def _trained(cell: Cell, quiet: Console) -> bool:
    """Train a run to its end; return False if a signal stopped it."""
    run, job = cell.run, job_of(cell.verb)
    _wait_for_silence(run.path)
    if run.last.exists():
        return not isinstance(resume(job, run.path, quiet), Stopped)
    if run.path.exists():  # the worker died before it saved a state: start again
        require_unlocked(run.path)
        shutil.rmtree(run.path)
    given = {**cell.given, **start_settings(start_of(cell))}
    settings = typed_settings({**given, "output": str(run.path)}, job.kind)
    return not isinstance(begin(job, settings, dict.fromkeys({**given, "output": ""}, "given"), quiet), Stopped)


def _wait_for_silence(run: Path) -> None:
    """Wait until the lock of a dead worker on another machine counts as abandoned."""
    end = time.monotonic() + SILENCE + 2 * BEAT
    while is_locked(run) and time.monotonic() < end:
        time.sleep(1.0)


def work_silently(folder: str, led: bool = False) -> bool:
    """Work at a grid without printing, as workers that are started elsewhere do; see `work`."""
    return work(Path(folder), train_cell, led=led)
