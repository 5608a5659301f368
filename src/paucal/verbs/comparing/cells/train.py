"""Computing a cell: a run, begun, or gone on with where another worker has left it."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from lightning.pytorch import Callback

from paucal.runs.lock import BEAT, SILENCE, is_locked, require_unlocked
from paucal.verbs.comparing.cells.beginning import begun_with, start_of
from paucal.verbs.comparing.cells.cell import Cell, state_of
from paucal.verbs.comparing.cells.grid import EVAL
from paucal.verbs.comparing.cells.jobs import job_of
from paucal.verbs.comparing.cells.judging import judge_cell
from paucal.verbs.comparing.cells.work import PAUSE, take_one, work
from paucal.verbs.run.life import Stopped, begin, resume
from paucal.verbs.run.resuming import typed_settings
from paucal.verbs.run.voice import LiveBar, Quiet, Voice


class OfCell(Quiet):
    """Prints nothing of a run but the bar of its training, on a terminal; the run's log has everything."""

    def __init__(self, outer: Voice) -> None:
        super().__init__()
        self._outer = outer

    def callbacks(self) -> Sequence[Callback]:
        """Show the bar where the comparison is shown."""
        return [LiveBar(self._outer)]


def train_cell(cell: Cell, threads: int, voice: Voice | None = None) -> bool:
    """Train a cell's run to its end, and judge it, where its verb trains and its settings ask for that; see `Compute`.

    Raises:
        UserError: the data or a setting does not do, or someone else trains this very run.
    """
    torch.set_num_threads(threads)
    quiet = Quiet() if voice is None else OfCell(voice)
    if not cell.run.finished and not _start_settled(cell, threads):
        return False
    if cell.verb != EVAL and not cell.run.finished and not _trained(cell, quiet):
        return False
    if cell.judged:
        judge_cell(cell, quiet)
    return True


def _start_settled(cell: Cell, threads: int) -> bool:
    """Wait for what a cell begins with, or compute it where nobody does; return False where a signal came between.

    Starts are settled before their rows are begun. But a grid may grow while a worker is at its rows, by a seed whose
    start another call is only about to train.
    """
    start = start_of(cell)
    while start is not None and not state_of(start).settled:
        outcome = take_one([start], train_cell, threads)
        if outcome is False:
            return False
        if outcome is None:
            time.sleep(PAUSE)
    return True


def _trained(cell: Cell, quiet: Voice) -> bool:
    """Bring a run to its end; return False where a signal came between."""
    run, job = cell.run, job_of(cell.verb)
    _wait_for_silence(run.path)
    if run.last.exists():
        return not isinstance(resume(job, run.path, quiet), Stopped)
    if run.path.exists():  # its worker died before a state was saved: nothing is lost by beginning anew
        require_unlocked(run.path)
        shutil.rmtree(run.path)
    given = {**cell.given, **begun_with(start_of(cell))}
    settings = typed_settings({**given, "output": str(run.path)}, job.kind)
    return not isinstance(begin(job, settings, dict.fromkeys({**given, "output": ""}, "given"), quiet), Stopped)


def _wait_for_silence(run: Path) -> None:
    """Wait until the lock that a worker of another machine has left counts as abandoned, as the cell's did before."""
    end = time.monotonic() + SILENCE + 2 * BEAT
    while is_locked(run) and time.monotonic() < end:
        time.sleep(1.0)


def work_quietly(folder: str, led: bool = False) -> bool:
    """Work at a grid without a word; what workers that are started elsewhere do. See `work`."""
    return work(Path(folder), train_cell, led=led)
