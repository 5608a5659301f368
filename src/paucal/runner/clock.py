"""Record when a command and a run started, and forecast when work will end."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from paucal.wording import format_duration

MIN_TIMING_SECONDS = 3.0  # minimum duration of the measurement before a forecast
MIN_FORECAST_SECONDS = 60.0  # minimum remaining time for which a forecast is printed
_command_start: ContextVar[float | None] = ContextVar("command", default=None)
_run_start: ContextVar[float | None] = ContextVar("start", default=None)


def begin_command() -> None:
    """Record that a command starts now; call this function before slow imports."""
    _command_start.set(time.monotonic())


def command_start() -> float | None:
    """Return the `time.monotonic()` at which the command started; None if paucal was called from Python."""
    return _command_start.get()


@contextmanager
def count_time_from(start: float | None) -> Iterator[None]:
    """Within the block, measure the run's duration from `start`, a value of `time.monotonic()`; None means now."""
    token = _run_start.set(time.monotonic() if start is None else start)
    try:
        yield
    finally:
        _run_start.reset(token)


def start_time() -> float:
    """Return the `time.monotonic()` from which the run's duration is measured; outside a run, the current value."""
    start = _run_start.get()
    return time.monotonic() if start is None else start


def precise_duration(seconds: float) -> str:
    """Return a duration as text, with one decimal below ten seconds."""
    return f"{seconds:.1f} s" if seconds < 10 else format_duration(seconds)


def end_time_text(seconds: float) -> str:
    """Return the time of day `seconds` from now as text, with the weekday if that is not today."""
    now, end_time = time.localtime(), time.localtime(time.time() + seconds)
    is_same_day = (now.tm_year, now.tm_yday) == (end_time.tm_year, end_time.tm_yday)
    return time.strftime("%H:%M" if is_same_day else "%H:%M on %A", end_time)


class WorkForecast:
    """Prints one forecast of the time for the remaining work, if that time is more than a minute."""

    def __init__(self, title: str, say: Callable[[str], None]) -> None:
        self._title, self._say = title, say
        # Number of finished items and `time.monotonic()` at the first call
        self._timing_start: tuple[int, float] | None = None
        self._announced = False

    def __call__(self, done: int, total: int) -> None:
        """Update the numbers of finished and of all items; the time before the first call is not measured."""
        now = time.monotonic()
        if self._timing_start is None:
            self._timing_start = (done, now)
        counted, seconds = done - self._timing_start[0], now - self._timing_start[1]
        if self._announced or seconds < MIN_TIMING_SECONDS or counted < 1:
            return
        seconds_left = (total - done) * seconds / counted
        if seconds_left > MIN_FORECAST_SECONDS:
            self._announced = True
            end_time = end_time_text(seconds_left)
            self._say(f"time: {self._title} takes about {format_duration(seconds_left)} from now, until {end_time}")
