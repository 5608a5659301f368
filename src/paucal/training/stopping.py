"""Stops a run after a signal or at its time limit, and limits how long a process waits for other processes."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, Trainer
from torch.distributed import distributed_c10d

from paucal.signals import stop_signals

POLL_STEPS = 10  # number of steps after which the processes exchange their stop requests again


class StopSignal(Callback):
    """Turns a signal or the end of the time limit into a request to stop; a second SIGINT interrupts at once.

    `deadline` is a value of `time.monotonic()`. `slow_start` says that the first step takes minutes because code is
    compiled. A signal during that step then interrupts it at once if the run has one process, since there is nothing
    new to save.
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
        """Install the signal handlers in place of Lightning's, which would interrupt a step."""
        if trainer.received_sigterm:  # Lightning caught a SIGTERM before the first step
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
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Restore the previous signal handlers."""
        self.on_train_end(trainer, pl_module)

    def _receive_signal(self, number: int, frame: FrameType | None) -> None:
        if self.slow_start or (self.received and number == signal.SIGINT):
            raise KeyboardInterrupt
        self.received = True


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


class ProcessGroupTimeout(Callback):
    """Limits the wait for other processes during training.

    After training, torch's default limit applies again, since the first process may then work for a long time while the
    other processes wait.
    """

    def __init__(self, seconds: float) -> None:
        self.limit = timedelta(seconds=seconds)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Set the limit."""
        _set_timeout(self.limit)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Restore torch's default limit."""
        if dist.is_initialized():
            # The default depends on the backend: it is shorter for NCCL.
            _set_timeout(distributed_c10d._get_default_timeout(dist.get_backend()))


def _set_timeout(limit: timedelta) -> None:
    if dist.is_initialized():
        # Before torch 2.15, `set_timeout` was a private function with another name.
        set_timeout = getattr(dist, "set_timeout", None) or distributed_c10d._set_pg_timeout
        set_timeout(limit)
