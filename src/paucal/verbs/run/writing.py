"""Writing a run: alone, and with what it replaces kept until it has saved a state of its own."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from paucal.runs import RunFolder, create_run
from paucal.runs.folder import is_taken
from paucal.runs.lock import RunLock
from paucal.runs.replacing import aside_of, discard, lies_aside, put_back, require_replaceable, set_aside, sweep
from paucal.verbs.run.voice import Voice


class Writing:
    """The time in which the first process of a run writes into its folder; a context.

    Args:
        voice: says where a replaced run lies.
    """

    def __init__(self, voice: Voice) -> None:
        self.voice = voice
        self._run: RunFolder | None = None
        self._lock: RunLock | None = None
        self._replaced = False

    def begin(self, output: str | None, overwrite: bool) -> RunFolder:
        """Make the folder of a new run, moving aside what it replaces.

        Raises:
            UserError: something lies there that may not be replaced, or another process writes there.
        """
        if output is not None and overwrite and is_taken(Path(output)):
            self._set_aside(Path(output))
        run = create_run(None if output is None else Path(output))
        self._hold(run)
        return run

    def go_on(self, run: RunFolder) -> None:
        """Take over the folder of a run that exists.

        Raises:
            UserError: another process writes there.
        """
        self._hold(run)
        sweep(run.path)
        if lies_aside(run.path):  # it was killed before it had saved a state, or while removing what it replaced
            self._replaced = True
            if run.last.exists():
                self.keep()

    def keep(self) -> None:
        """Remove what the run replaces, because it has a state of its own."""
        if self._replaced and self._run is not None:
            self._replaced = False
            discard(self._run.path)

    def callbacks(self) -> Sequence[Callback]:
        """Return Lightning callbacks that watch over the folder during training."""
        return [Custodian(self)]

    @property
    def waits(self) -> bool:
        """Whether a replaced run waits for the first state of this one."""
        return self._replaced

    @property
    def has_state(self) -> bool:
        """Whether the run has saved a state from which it could go on."""
        return self._run is not None and self._run.last.exists()

    def check(self) -> None:
        """Refuse to go on where another process has taken over; raises a UserError."""
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
        if self._lock is None and self._run.path.exists():  # another process was quicker
            self.voice.say(f"the old run lies in {aside_of(self._run.path)}")
            return
        put_back(self._run.path)
        self.voice.say(f"{self._run.path} holds the old run again: the new one has ended before it saved a sound state")

    def _set_aside(self, path: Path) -> None:
        require_replaceable(path)
        # From here on nobody else can replace it, nor go on with it.
        lock = RunLock(path)
        lock.acquire()
        try:
            aside = set_aside(path)
            self._run, self._replaced = RunFolder(path), True
            lock.folder, lock.path = aside, aside / lock.path.name
        finally:
            lock.release()
        self.voice.say(f"the old run is kept in {aside} until the new one has saved its first state")

    def _hold(self, run: RunFolder) -> None:
        lock = RunLock(run.path)
        lock.acquire()
        self._run, self._lock = run, lock


class Custodian(Callback):
    """Ends a run that another process has taken over, and lets go of the replaced one once there is a sound state."""

    def __init__(self, writing: Writing) -> None:
        self.writing = writing

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Look whether the folder is still this process's."""
        self.writing.check()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Let go of the replaced run."""
        if self.writing.waits and self.writing.has_state and is_sound(trainer, pl_module):
            self.writing.keep()


def is_sound(trainer: Trainer, module: Any) -> bool:
    """Return whether a run's state is worth more than none: finite weights, and less than half of its steps skipped."""
    if 2 * float(module.meters.skipped) > trainer.global_step:
        return False
    # Pieces of weights that are shared out are looked at where they are: the other processes do not take part.
    pieces = (p.to_local() if hasattr(p, "to_local") else p for p in module.parameters())
    return all(bool(torch.isfinite(piece.detach()).all()) for piece in pieces)
