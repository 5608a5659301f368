"""The start of a run's time: that of its command, before torch is loaded and images are read."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_command: ContextVar[float | None] = ContextVar("command", default=None)
_start: ContextVar[float | None] = ContextVar("start", default=None)


def begin_command() -> None:
    """Remember that a command starts now; the command line calls this before it loads anything heavy."""
    _command.set(time.monotonic())


def command_start() -> float | None:
    """Return `time.monotonic()` of the command's start; None in a Python program."""
    return _command.get()


@contextmanager
def count_time_from(start: float | None) -> Iterator[None]:
    """Count the time of a run inside the block from a value of `time.monotonic()`; None for now."""
    token = _start.set(time.monotonic() if start is None else start)
    try:
        yield
    finally:
        _start.reset(token)


def start_time() -> float:
    """Return `time.monotonic()` of the start of the run's time; now, outside of a run."""
    start = _start.get()
    return time.monotonic() if start is None else start
