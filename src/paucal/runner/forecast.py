"""Messages that predict when long work will end, once a part of it has been timed."""

import time
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, Trainer

WARMUP_STEPS, TIMED_STEPS = 2, 5
MAX_TIMING = 3.0  # seconds after which fewer timed steps are enough
MIN_FORECAST = 60.0  # seconds; shorter work is not announced


class Forecast(Callback):
    """Prints how long training will take, if over a minute, without validation and the final report.

    Args:
        say: Function that prints a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._first: tuple[int, float] | None = None
        self._announced = False

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Time a few steps, then print the forecast once."""
        if self._announced or not trainer.is_global_zero:
            return
        if self._first is None:
            if trainer.global_step >= WARMUP_STEPS:
                self._first = (trainer.global_step, time.monotonic())
            return
        steps, seconds = trainer.global_step - self._first[0], time.monotonic() - self._first[1]
        if steps < TIMED_STEPS and (steps < 1 or seconds < MAX_TIMING):
            return
        self._announced = True
        left = (pl_module.plan.last_step - trainer.global_step) * seconds / steps
        if left > MIN_FORECAST:
            self._say(f"time: about {duration(left)} of training from now, until {finish(left)}")


class Expectation:
    """Prints how long countable work will take, if over a minute.

    Args:
        title: Name of the work.
        say: Function that prints a line.
    """

    def __init__(self, title: str, say: Callable[[str], None]) -> None:
        self._title, self._say = title, say
        self._first: tuple[int, float] | None = None
        self._announced = False

    def __call__(self, done: int, total: int) -> None:
        """Update the progress; the time before the first call, such as the start of processes, does not count."""
        now = time.monotonic()
        if self._first is None:
            self._first = (done, now)
        counted, seconds = done - self._first[0], now - self._first[1]
        if self._announced or seconds < MAX_TIMING or counted < 1:
            return
        left = (total - done) * seconds / counted
        if left > MIN_FORECAST:
            self._announced = True
            self._say(f"time: {self._title} takes about {duration(left)} from now, until {finish(left)}")


def duration(seconds: float) -> str:
    """Return a duration as text.

    Example:
        >>> [duration(seconds) for seconds in (8, 100, 1000, 9000)]
        ['8 s', '1 min 40 s', '17 min', '2 h 30 min']
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s".replace(" 0 s", "")
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min".replace(" 0 min", "")


def finish(seconds: float) -> str:
    """Return the time of day in so many seconds, with the weekday if it is another day."""
    now, then = time.localtime(), time.localtime(time.time() + seconds)
    same = (now.tm_year, now.tm_yday) == (then.tm_year, then.tm_yday)
    return time.strftime("%H:%M" if same else "%H:%M on %A", then)
