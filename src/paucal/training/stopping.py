"""Stops a run after a signal or at its time limit: the current step is completed and a checkpoint saved."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, Trainer

from paucal.signals import stop_signals

POLL_STEPS = 10  # number of steps after which the processes exchange their stop requests again


class StopSignal(Callback):
    """Turns a signal or the end of the time limit into a request to stop; a second SIGINT interrupts at once.

    Args:
        deadline: `time.monotonic()` after which to stop; None means no limit.
        slow_start: Whether the first step takes minutes because code is compiled. A run on one process then stops at
            the first signal without completing that step, since there is nothing new to save.
    """

    def __init__(self, deadline: float | None = None, slow_start: bool = False) -> None:
        self.received = False
        self.deadline = deadline
        self.slow_start = slow_start
        self._signals = (signal.SIGINT, *stop_signals())
        # If the calling program handles or ignores SIGTERM, its handler is restored after Lightning has replaced it.
        previous_handler, self._callers_handlers = signal.getsignal(signal.SIGTERM), {}
        if signal.SIGTERM not in self._signals and previous_handler is not None:
            self._callers_handlers[signal.SIGTERM] = previous_handler
        self._previous: dict[int, signal._HANDLER] = {}

    def requested(self, trainer: Trainer, at_once: bool = False) -> bool:
        """Return whether any process has to stop; every process must call this method at the same steps.

        Several processes exchange their requests only at every `POLL_STEPS`-th step, or if `at_once` is True; at all
        other steps the result is False.
        """
        if trainer.world_size == 1:
            return self._must_stop()
        if trainer.global_step % POLL_STEPS and not at_once:
            return False
        return trainer.strategy.reduce_boolean_decision(self._must_stop(), all=False)

    def _must_stop(self) -> bool:
        return self.received or (self.deadline is not None and time.monotonic() >= self.deadline)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Install the signal handlers in place of Lightning's, which would interrupt a step.

        Raises:
            KeyboardInterrupt: Lightning caught a SIGTERM before the first step.
        """
        if trainer.received_sigterm:
            raise KeyboardInterrupt
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may install handlers
        self.slow_start = self.slow_start and trainer.world_size == 1
        for number, handler in {**self._callers_handlers, **dict.fromkeys(self._signals, self._receive_signal)}.items():
            self._previous[number] = signal.signal(number, handler)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Any, optimizer: Any) -> None:
        """From now on, complete the current step after a signal, since the code is compiled."""
        self.slow_start = False

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Restore the previous signal handlers."""
        self._restore_handlers()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Restore the previous signal handlers."""
        self._restore_handlers()

    def _receive_signal(self, number: int, frame: FrameType | None) -> None:
        if self.slow_start or (self.received and number == signal.SIGINT):
            raise KeyboardInterrupt
        self.received = True

    def _restore_handlers(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt where Lightning, after a second SIGINT, exits with status 1 and ignores SIGINT."""
    previous_handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as end:
        if not isinstance(end.__context__, KeyboardInterrupt):
            raise
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, previous_handler)
        raise KeyboardInterrupt from None
