"""Stopping a run from outside: the step ends, the state is saved, nothing is lost."""

import os
import signal
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, Trainer

POLL_EVERY = 10  # steps between two questions to the other processes whether one of them was told to stop


class StopSignal(Callback):
    """Turns SIGINT and SIGTERM into a request; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.received = False
        self._previous: dict[int, signal._HANDLER] = {}

    def requested(self, trainer: Trainer) -> bool:
        """Return whether any process was told to stop; every process must ask at the same steps."""
        if trainer.world_size == 1:
            return self.received
        if trainer.global_step % POLL_EVERY:
            return False
        return trainer.strategy.reduce_boolean_decision(self.received, all=False)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Take the signals over from Lightning, which would raise in the middle of a step."""
        # Under SLURM, SIGTERM stays with Lightning, whose handler requeues the job.
        signals = (signal.SIGINT,) if os.environ.get("SLURM_JOB_ID") else (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            self._previous[number] = signal.signal(number, self._receive)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Give the signals back."""
        self._restore()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Give the signals back."""
        self._restore()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = True

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
