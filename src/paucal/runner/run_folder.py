"""Create, lock and replace the folder of a run."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from paucal.runner.console import Console
from paucal.runs import RunFolder, create_run
from paucal.runs.folder import is_nonempty
from paucal.runs.lock import RunLock
from paucal.runs.replacing import (
    aside_path,
    discard_replaced_run,
    has_set_aside_run,
    move_aside,
    remove_temporary_files,
    require_replaceable,
    restore_replaced_run,
)


class RunWriter:
    """Context manager that locks a run folder, and keeps a replaced run until the new run has saved a valid state."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._run: RunFolder | None = None
        self._lock: RunLock | None = None
        self._replaced = False

    def begin(self, output: str | None, overwrite: bool) -> RunFolder:
        """Create and lock the folder of a new run; an old run in this folder is first moved to another path."""
        if output is not None and overwrite and is_nonempty(Path(output)):
            self._move_old_run_aside(Path(output))
        run = create_run(None if output is None else Path(output))
        self._keep_lock(run)
        return run

    def lock_existing(self, run: RunFolder) -> None:
        """Lock the folder of an existing run."""
        self._keep_lock(run)
        remove_temporary_files(run.path)
        if has_set_aside_run(run.path):  # an earlier process was killed before it removed the replaced run
            self._replaced = True
            if run.last.exists():
                self.discard_replaced()

    def discard_replaced(self) -> None:
        """Remove the replaced run, because the new run has saved a state."""
        if self._replaced and self._run is not None:
            self._replaced = False
            discard_replaced_run(self._run.path)

    def callbacks(self) -> Sequence[Callback]:
        """Return the Lightning callbacks that check the lock during training."""
        return [RunLockCallback(self)]

    @property
    def keeps_replaced(self) -> bool:
        """Whether this run replaces an old run that has not been removed yet."""
        return self._replaced

    @property
    def has_state(self) -> bool:
        """Whether the run has saved a checkpoint from which it can be resumed."""
        return self._run is not None and self._run.last.exists()

    def check(self) -> None:
        """Raise a UserError if another process has taken over the folder."""
        if self._lock is not None:
            self._lock.check()

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost_lock = self._lock is not None and self._lock.lost
        if self._lock is not None:
            self._lock.release()
        if not self._replaced or self._run is None or lost_lock:
            return
        if problem is None:
            self.discard_replaced()
            return
        if self._lock is None and self._run.path.exists():  # another process locked the folder first
            self.console.say(f"the old run is in {aside_path(self._run.path)}")
            return
        restore_replaced_run(self._run.path)
        self.console.say(f"restored the old run in {self._run.path}: the new run ended before it saved a valid state")

    def _move_old_run_aside(self, path: Path) -> None:
        require_replaceable(path)
        # Lock the old run, so that no other process replaces or resumes that run meanwhile.
        lock = RunLock(path)
        lock.acquire()
        try:
            aside_folder = move_aside(path)
            self._run, self._replaced = RunFolder(path), True
            lock.folder, lock.path = aside_folder, aside_folder / lock.path.name
        finally:
            lock.release()
        self.console.say(f"the old run is kept in {aside_folder} until the new run has saved its first state")

    def _keep_lock(self, run: RunFolder) -> None:
        lock = RunLock(run.path)
        lock.acquire()
        self._run, self._lock = run, lock


class RunLockCallback(Callback):
    """Stops a run that has lost its lock, and removes the replaced run once this run has saved a valid state."""

    def __init__(self, writer: RunWriter) -> None:
        self.writer = writer

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Raise a UserError if another process has taken over the lock."""
        self.writer.check()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Remove the replaced run once this run has saved a valid state."""
        if self.writer.keeps_replaced and self.writer.has_state and is_valid_state(trainer, pl_module):
            self.writer.discard_replaced()


def is_valid_state(trainer: Trainer, module: Any) -> bool:
    """Return whether the weights are finite and at most half of the steps were skipped."""
    if 2 * float(module.meters.skipped) > trainer.global_step:
        return False
    # If the weights are sharded, only the local shard is checked, since other processes do not call this function.
    local_weights = (p.to_local() if hasattr(p, "to_local") else p for p in module.parameters())
    return all(bool(torch.isfinite(weights.detach()).all()) for weights in local_weights)
