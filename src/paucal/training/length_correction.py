"""Keeps a run within its time budget by changing its number of steps if a step takes more or less time than planned.

Checkpoints store the corrections, so a resumed run makes the same steps at the same learning rates as a run that was
never stopped.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from lightning.pytorch import Trainer

from paucal.cores import choose_threads
from paucal.training.module import TrainingModule
from paucal.training.plan import Plan, PlanChange, TimePlan
from paucal.training.stopping import POLL_STEPS
from paucal.types import Batch

# Fraction of the time budget kept in reserve, since the duration of the work after the last step varies. Auto-tuning
# needs a larger reserve, which has to cover plots and the report page; here `TimePlan.closing` includes that work.
CORRECTION_RESERVE = 0.03
# The number of steps is corrected if the expected end differs from the deadline by more than this fraction of the time
# budget and by more than this fraction of the remaining time.
BUDGET_TOLERANCE, REMAINING_TOLERANCE = 0.03, 0.15
# Minimum seconds, steps and fraction of the time budget between two checks of the step time
MIN_CHECK_SECONDS, MIN_CHECK_STEPS, MIN_CHECK_FRACTION = 1.0, 2, 0.01
MIN_NEW_WEIGHT = 0.15  # minimum weight of the latest measurement in the moving average of the step time
MIN_LAST_EPOCH = 0.1  # minimum length of an incomplete last epoch, in epochs; a shorter last epoch is left out
# Number of extra steps that find the fastest number of threads, and maximum fraction of the remaining time that these
# steps may take
THREAD_TEST_STEPS, THREAD_TEST_FRACTION = 6, 0.02

OnChange = Callable[[Plan, float], None]


class RunClock:
    """Measures the duration of steps, and corrects the number of steps of the run."""

    def __init__(self, plan: Plan, on_change: OnChange | None = None) -> None:
        assert plan.time is not None
        self._time: TimePlan = plan.time
        self._on_change = on_change
        self._deadline = math.inf
        self._step_seconds: float | None = None  # moving average of the seconds per step
        self._n_checks = 0  # number of measurements in the moving average
        self._evaluation_seconds: float | None = None
        self._new_steps, self._new_seconds = 0, 0.0  # number and duration of the steps since the last check
        self._step_end: float | None = None
        self._next_thread_test = math.inf  # threads are not tested while more seconds than this remain

    def start(self, trained_seconds: float) -> None:
        """Start the clock; `trained_seconds` is the duration of training before the run was resumed."""
        budget = self._time.budget
        # A resumed run measures the step time anew, since the load of the machine may have changed.
        if not trained_seconds:
            self._step_seconds, self._n_checks = self._time.step, 1
        self._deadline = time.monotonic() + (1 - CORRECTION_RESERVE) * budget - self._time.spent - trained_seconds

    def skip_pause(self, evaluation_seconds: float | None = None) -> None:
        """Exclude the time since the last step, which was spent on a validation or a checkpoint, from the step time."""
        if evaluation_seconds is not None:
            self._evaluation_seconds = evaluation_seconds
        self._step_end = time.monotonic()

    def correct(self, trainer: Trainer, module: TrainingModule, batch: Batch) -> bool:
        """Time a step, and change the planned number of steps if the run would end too early or too late.

        Return whether the plan was changed; every process returns the same value.
        """
        now, plan, step = time.monotonic(), module.plan, trainer.global_step
        if self._step_end is not None:  # the first step is not timed, since it is slower than later steps
            self._new_steps, self._new_seconds = self._new_steps + 1, self._new_seconds + now - self._step_end
        self._step_end = now
        if step >= plan.corrected_total_steps or (trainer.world_size > 1 and step % POLL_STEPS):
            return False
        change = self._find_change(trainer, module, batch) if trainer.is_global_zero else None
        change = trainer.strategy.broadcast(change)
        if change is None:
            return False
        module.plan = replace(plan, changes=(*plan.changes, change))
        trainer.fit_loop.epoch_loop.max_steps = change.total_steps
        if trainer.world_size == 1 and module.device.type == "cpu":
            torch.set_num_threads(change.threads)
        if self._on_change is not None and trainer.is_global_zero:
            self._on_change(module.plan, self._step_seconds or self._time.step)
        if change.threads != plan.threads:
            self._n_checks = 0
        return True

    def _find_change(self, trainer: Trainer, module: TrainingModule, batch: Batch) -> PlanChange | None:
        """Return a correction if a check is due and the run would end too early or too late; else None."""
        min_seconds = max(MIN_CHECK_SECONDS, MIN_CHECK_FRACTION * self._time.budget)
        if self._new_steps < MIN_CHECK_STEPS or self._new_seconds < min_seconds:
            return None
        new_step_seconds = self._new_seconds / self._new_steps
        self._n_checks += 1
        weight = max(MIN_NEW_WEIGHT, 1 / self._n_checks)
        self._step_seconds = weight * new_step_seconds + (1 - weight) * (self._step_seconds or 0.0)
        self._new_steps, self._new_seconds = 0, 0.0
        plan, step, seconds_left = module.plan, trainer.global_step, self._deadline - time.monotonic()
        # Durations that have not been measured during training are planned values, multiplied by the ratio of the
        # current to the planned step time.
        ratio = self._step_seconds / max(self._time.step, 1e-9)
        evaluation = self._time.evaluation * ratio if self._evaluation_seconds is None else self._evaluation_seconds
        closing = self._time.closing * ratio
        n_evaluations = (
            math.ceil(plan.corrected_total_steps / plan.steps_per_epoch) - (step - 1) // plan.steps_per_epoch
        )
        steps_seconds = (plan.corrected_total_steps - step) * self._step_seconds
        needed_seconds = steps_seconds + n_evaluations * evaluation + closing
        tolerance = max(BUDGET_TOLERANCE * self._time.budget, REMAINING_TOLERANCE * seconds_left)
        if abs(needed_seconds - seconds_left) <= tolerance:
            return None
        # The total number of steps with which the run ends in time; at least `step`.
        mean_step_seconds = self._step_seconds + evaluation / plan.steps_per_epoch
        steps_left = (seconds_left - closing - evaluation) / mean_step_seconds
        total_steps = min(step + max(0, int(steps_left)), self._time.most_steps)
        last_epoch_steps = total_steps % plan.steps_per_epoch
        if last_epoch_steps < MIN_LAST_EPOCH * plan.steps_per_epoch and total_steps - last_epoch_steps > step:
            total_steps -= last_epoch_steps
        total_steps = max(total_steps, step)
        if total_steps == plan.corrected_total_steps:
            return None
        current_threads = plan.threads or torch.get_num_threads()
        threads = self._fastest_thread_count(trainer, module, batch, seconds_left) or current_threads
        # If the number of threads changes, keep the number of steps until the new step time has been measured.
        return PlanChange(step, total_steps if threads == current_threads else plan.corrected_total_steps, threads)

    def _fastest_thread_count(
        self, trainer: Trainer, module: TrainingModule, batch: Batch, seconds_left: float
    ) -> int | None:
        """Return the number of CPU threads with which a step is fastest; None if this is not tested now."""
        cannot_measure = trainer.world_size > 1 or module.device.type != "cpu"
        takes_too_long = THREAD_TEST_STEPS * (self._step_seconds or 0.0) > THREAD_TEST_FRACTION * seconds_left
        if cannot_measure or takes_too_long or seconds_left > self._next_thread_test:
            return None
        self._next_thread_test = seconds_left - 0.1 * self._time.budget
        objective = module.objective
        buffers = [(buffer, buffer.clone()) for buffer in objective.buffers()]

        def run_extra_step() -> None:
            with trainer.precision_plugin.forward_context():
                terms = objective(batch, module.progress())
            terms.total.backward()

        with torch.random.fork_rng(devices=[]):
            threads = choose_threads(run_extra_step)
        objective.zero_grad(set_to_none=True)
        for buffer, saved in buffers:
            buffer.copy_(saved)
        return threads
