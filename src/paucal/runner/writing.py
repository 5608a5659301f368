"""Exclusive writing to a run folder; a replaced run is kept until the new one has saved a state."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from paucal.runner.console import Console
from paucal.runs import RunFolder, create_run
from paucal.runs.folder import is_taken
from paucal.runs.lock import RunLock
from paucal.runs.replacing import aside_of, discard, lies_aside, put_back, require_replaceable, set_aside, sweep


class Writing:
    """Exclusive access of the first process to a run folder, as a context manager.

    Args:
        console: Console for messages about a replaced run.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._run: RunFolder | None = None
        self._lock: RunLock | None = None
        self._replaced = False

    def begin(self, output: str | None, overwrite: bool) -> RunFolder:
        """Create the folder of a new run, and set aside the run that it replaces.

        Raises:
            UserError: The folder holds something that may not be replaced, or another process writes there.
        """
        if output is not None and overwrite and is_taken(Path(output)):
            self._set_aside(Path(output))
        run = create_run(None if output is None else Path(output))
        self._hold(run)
        return run

    def go_on(self, run: RunFolder) -> None:
        """Lock the folder of an existing run.

        Raises:
            UserError: Another process writes there.
        """
        self._hold(run)
        sweep(run.path)
        if lies_aside(run.path):  # the run was killed before it saved a state or removed the replaced run
            self._replaced = True
            if run.last.exists():
                self.keep()

    def keep(self) -> None:
        """Remove the replaced run, because this one has saved a state."""
        if self._replaced and self._run is not None:
            self._replaced = False
            discard(self._run.path)

    def callbacks(self) -> Sequence[Callback]:
        """Return the Lightning callbacks that check the lock during training."""
        return [RunLockCallback(self)]

    @property
    def waits(self) -> bool:
        """Whether a replaced run is kept until this one has saved a state."""
        return self._replaced

    @property
    def has_state(self) -> bool:
        """Whether the run has saved a state to resume from."""
        return self._run is not None and self._run.last.exists()

    def check(self) -> None:
        """Raise a UserError if another process has taken over the folder."""
        if self._lock is not None:
            self._lock.check()

    def __enter__(self) -> "Writing":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost = self._lock is not None and self._lock.lost
        if self._lock is not None:
            self._lock.release()
        if not self._replaced or self._run is None or lost:
            return
        if problem is None:
            self.keep()
            return
        if self._lock is None and self._run.path.exists():  # another process was faster
            self.console.say(f"the old run is in {aside_of(self._run.path)}")
            return
        put_back(self._run.path)
        self.console.say(f"restored the old run in {self._run.path}: the new one ended before it saved a valid state")

    def _set_aside(self, path: Path) -> None:
        require_replaceable(path)
        # From here on no other process can replace or resume it.
        lock = RunLock(path)
        lock.acquire()
        try:
            aside = set_aside(path)
            self._run, self._replaced = RunFolder(path), True
            lock.folder, lock.path = aside, aside / lock.path.name
        finally:
            lock.release()
        self.console.say(f"the old run is kept in {aside} until the new one has saved its first state")

    def _hold(self, run: RunFolder) -> None:
        lock = RunLock(run.path)
        lock.acquire()
        self._run, self._lock = run, lock


class RunLockCallback(Callback):
    """Stops a run whose lock is lost, and removes the replaced run once there is a valid state."""

    def __init__(self, writing: Writing) -> None:
        self.writing = writing

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Check that this process still holds the lock."""
        self.writing.check()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Remove the replaced run once this one has a valid state."""
        if self.writing.waits and self.writing.has_state and is_valid_state(trainer, pl_module):
            self.writing.keep()


def is_valid_state(trainer: Trainer, module: Any) -> bool:
    """Return whether the weights are finite and at most half of the steps were skipped."""
    if 2 * float(module.meters.skipped) > trainer.global_step:
        return False
    # Sharded weights are checked locally: the other processes do not take part.
    pieces = (p.to_local() if hasattr(p, "to_local") else p for p in module.parameters())
    return all(bool(torch.isfinite(piece.detach()).all()) for piece in pieces)
