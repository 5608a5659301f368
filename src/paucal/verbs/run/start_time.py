"""What the time of a run counts from: the beginning of its command, which loads torch and reads images first."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_command: ContextVar[float | None] = ContextVar("command", default=None)
_start: ContextVar[float | None] = ContextVar("start", default=None)


def begin_command() -> None:
    """Remember that a command begins now; the command line calls it before anything heavy is loaded."""
    _command.set(time.monotonic())


def command_start() -> float | None:
    """Return the value of `time.monotonic()` at which the command began; None in a program that calls functions."""
    return _command.get()


@contextmanager
def count_time_from(start: float | None) -> Iterator[None]:
    """Count the time of a run inside the block from a value of `time.monotonic()`; None for the present one."""
    token = _start.set(time.monotonic() if start is None else start)
    try:
        yield
    finally:
        _start.reset(token)


def start_time() -> float:
    """Return the value of `time.monotonic()` that the time of the run counts from; the present one outside of a run."""
    start = _start.get()
    return time.monotonic() if start is None else start
