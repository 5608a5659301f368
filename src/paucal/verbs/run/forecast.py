"""When long work will end: told once its beginning has shown how long a part of it takes."""

import time
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, Trainer

WARMUP, SHOWN = 2, 5  # steps that are not counted, and steps that are
PATIENCE = 3.0  # seconds of counted steps after which fewer do
WORTH_SAYING = 60.0  # seconds


class Forecast(Callback):
    """Says how long training will take, where that is over a minute.

    Validation and what is written at the end come on top; they are small beside training.

    Args:
        say: prints a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._first: tuple[int, float] | None = None
        self._told = False

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count steps, and speak once there are enough."""
        if self._told or not trainer.is_global_zero:
            return
        if self._first is None:
            if trainer.global_step >= WARMUP:
                self._first = (trainer.global_step, time.monotonic())
            return
        steps, seconds = trainer.global_step - self._first[0], time.monotonic() - self._first[1]
        if steps < SHOWN and (steps < 1 or seconds < PATIENCE):
            return
        self._told = True
        left = (pl_module.plan.last_step - trainer.global_step) * seconds / steps
        if left > WORTH_SAYING:
            self._say(f"time: about {duration(left)} of training from now, until {finish(left)}")


class Expectation:
    """Says how long countable work will take, once it is clear that it takes over a minute.

    Args:
        title: of the work.
        say: prints a line.
    """

    def __init__(self, title: str, say: Callable[[str], None]) -> None:
        self._title, self._say = title, say
        self._first: tuple[int, float] | None = None
        self._told = False

    def __call__(self, done: int, total: int) -> None:
        """Look at the clock; what came before the first call, such as the start of processes, is no measure."""
        now = time.monotonic()
        if self._first is None:
            self._first = (done, now)
        counted, seconds = done - self._first[0], now - self._first[1]
        if self._told or seconds < PATIENCE or counted < 1:
            return
        left = (total - done) * seconds / counted
        if left > WORTH_SAYING:
            self._told = True
            self._say(f"time: {self._title} takes about {duration(left)} from now, until {finish(left)}")


def duration(seconds: float) -> str:
    """Return a time for people.

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
    """Return the time of day after so many seconds, with the day where it is another one."""
    now, then = time.localtime(), time.localtime(time.time() + seconds)
    same = (now.tm_year, now.tm_yday) == (then.tm_year, then.tm_yday)
    return time.strftime("%H:%M" if same else "%H:%M on %A", then)
