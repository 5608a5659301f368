"""Lightning callbacks that show the progress of training: a progress bar of steps and a forecast of the end time."""

import time
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, Trainer
from rich.progress import Progress

from paucal.runner.clock import MIN_FORECAST_SECONDS, MIN_TIMING_SECONDS, end_time_text
from paucal.wording import format_duration

REFRESH_STEPS = 10  # steps between updates of the bar; updates are rare, since each update waits for the device
WARMUP_STEPS, TIMED_STEPS = 2, 5  # number of untimed and then of timed steps before the forecast


class TrainingBar(Callback):
    """Shows `bar`, a progress bar that is not started yet, with the steps and the mean loss of the current epoch."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Show the bar at the current step."""
        if trainer.is_global_zero and not self._bar.disable:
            task = self._bar.add_task("training", total=pl_module.plan.corrected_total_steps, status="")
            self._bar.update(task, completed=trainer.global_step)
            self._bar.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Update the step and the loss that the bar shows."""
        if not self._bar.task_ids or trainer.global_step % REFRESH_STEPS:
            return
        epoch = trainer.global_step // pl_module.plan.steps_per_epoch
        loss = pl_module.meters.newest_mean("train_loss")
        status = f"epoch {epoch}" + ("" if loss != loss else f", loss {loss:.3f}")
        (task,) = self._bar.task_ids
        total_steps = pl_module.plan.corrected_total_steps
        self._bar.update(task, completed=trainer.global_step, total=total_steps, status=status)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Close the bar."""
        self._bar.stop()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Close the bar, so that the error message is readable."""
        self.on_train_end(trainer, pl_module)


class TrainingForecast(Callback):
    """Prints one forecast of the training time for the remaining steps, if that time is more than a minute."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._timing_start: tuple[int, float] | None = None
        self._announced = False

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Time a few steps, then print the forecast once."""
        if self._announced or not trainer.is_global_zero:
            return
        if self._timing_start is None:
            if trainer.global_step >= WARMUP_STEPS:
                self._timing_start = (trainer.global_step, time.monotonic())
            return
        steps, seconds = trainer.global_step - self._timing_start[0], time.monotonic() - self._timing_start[1]
        if steps < TIMED_STEPS and (steps < 1 or seconds < MIN_TIMING_SECONDS):
            return
        self._announced = True
        seconds_left = (pl_module.plan.corrected_total_steps - trainer.global_step) * seconds / steps
        if seconds_left > MIN_FORECAST_SECONDS:
            end_time = end_time_text(seconds_left)
            self._say(f"time: about {format_duration(seconds_left)} of training from now, until {end_time}")
