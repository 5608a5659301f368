"""Keep a run within its time: if steps are slower or faster than planned, its length is corrected.

A correction is part of the checkpoint of its step, so a resumed run makes the same steps at the same learning rates as
one that was never stopped.
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
from paucal.training.stopping import POLL_EVERY
from paucal.types import Batch

MARGIN = 0.03  # share of the time in reserve, since the work after the last step varies
TOLERANCE, EARLY = 0.03, 0.15  # tolerated error of the expected end, as shares of the whole and the remaining time
# Minimum time between two checks: in seconds, in steps, and as a share of the whole time
MIN_SECONDS, MIN_STEPS, SHARE = 1.0, 2, 0.01
NEWEST = 0.15  # smallest weight of the latest check in the moving average of the pace
SHORT_EPOCH = 0.1  # share of an epoch that gets no validation of its own
SPARE_STEPS, SPARE_SHARE = 6, 0.02  # steps to find the best number of threads; maximum share of the remaining time

OnChange = Callable[[Plan, float], None]


class RunClock:
    """Measures the steps of a run and corrects its length."""

    def __init__(self, plan: Plan, on_change: OnChange | None = None) -> None:
        assert plan.time is not None
        self._time: TimePlan = plan.time
        self._on_change = on_change
        self._deadline = math.inf
        self._pace: float | None = None
        self._checks = 0  # number of checks in the mean pace
        self._evaluation: float | None = None
        self._steps, self._seconds = 0, 0.0
        self._tick: float | None = None
        self._next_threads = math.inf

    def start(self, trained: float) -> None:
        """Start the clock; `trained` are the seconds of training before a run was resumed."""
        budget = self._time.budget
        if not trained:  # the load may have changed since the run was stopped
            self._pace, self._checks = self._time.step, 1
        self._deadline = time.monotonic() + (1 - MARGIN) * budget - self._time.spent - trained

    def pause(self, evaluation: float | None = None) -> None:
        """Exclude the time since the last step, which was spent on a validation or a saved state."""
        self._evaluation = self._evaluation if evaluation is None else evaluation
        self._tick = time.monotonic()

    def correct(self, trainer: Trainer, module: TrainingModule, batch: Batch) -> bool:
        """Count a step, and correct the module's plan if it would not end in time.

        Returns:
            Whether the plan has changed; every process gets the same answer.
        """
        now, plan, step = time.monotonic(), module.plan, trainer.global_step
        if self._tick is not None:  # the first step is slower
            self._steps, self._seconds = self._steps + 1, self._seconds + now - self._tick
        self._tick = now
        if step >= plan.last_step or (trainer.world_size > 1 and step % POLL_EVERY):
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
            self._on_change(module.plan, self._pace or self._time.step)
        if change.threads != plan.threads:
            self._checks = 0
        return True

    def _find_change(self, trainer: Trainer, module: TrainingModule, batch: Batch) -> PlanChange | None:
        if self._steps < MIN_STEPS or self._seconds < max(MIN_SECONDS, SHARE * self._time.budget):
            return None
        newest = self._seconds / self._steps
        self._checks += 1
        weight = max(NEWEST, 1 / self._checks)
        self._pace = weight * newest + (1 - weight) * (self._pace or 0.0)
        self._steps, self._seconds = 0, 0.0
        plan, step, left = module.plan, trainer.global_step, self._deadline - time.monotonic()
        if abs(self._seconds_left(plan, step) - left) <= max(TOLERANCE * self._time.budget, EARLY * left):
            return None
        total = self._fitting_length(plan, step, left)
        if total == plan.last_step:
            return None
        current_threads = plan.threads or torch.get_num_threads()
        threads = self._fastest_threads(trainer, module, batch, left) or current_threads
        # After a change of threads, the next checks measure the steps again.
        return PlanChange(step, total if threads == current_threads else plan.last_step, threads)

    def _current_costs(self) -> tuple[float, float, float]:
        """Return the seconds of a step, of a validation and of the work after the last step, at the current pace."""
        pace = self._pace or self._time.step
        slower = pace / max(self._time.step, 1e-9)
        evaluation = self._time.evaluation * slower if self._evaluation is None else self._evaluation
        return pace, evaluation, self._time.closing * slower

    def _seconds_left(self, plan: Plan, step: int) -> float:
        pace, evaluation, closing = self._current_costs()
        evaluations = math.ceil(plan.last_step / plan.steps_per_epoch) - (step - 1) // plan.steps_per_epoch
        return (plan.last_step - step) * pace + evaluations * evaluation + closing

    def _fitting_length(self, plan: Plan, step: int, left: float) -> int:
        """Return the total steps with which the run ends in time; at least the steps already made."""
        pace, evaluation, closing = self._current_costs()
        steps_left = (left - closing - evaluation) / (pace + evaluation / plan.steps_per_epoch)
        total = min(step + max(0, int(steps_left)), self._time.most_steps)
        surplus = total % plan.steps_per_epoch
        if surplus < SHORT_EPOCH * plan.steps_per_epoch and total - surplus > step:
            return total - surplus
        return max(total, step)

    def _fastest_threads(self, trainer: Trainer, module: TrainingModule, batch: Batch, left: float) -> int | None:
        """Return the number of threads with which a step is fastest; None if measuring would take too long."""
        cannot_measure = trainer.world_size > 1 or module.device.type != "cpu"
        if cannot_measure or SPARE_STEPS * (self._pace or 0.0) > SPARE_SHARE * left or left > self._next_threads:
            return None
        self._next_threads = left - 0.1 * self._time.budget
        objective = module.objective
        buffers = [(buffer, buffer.clone()) for buffer in objective.buffers()]

        def spare_step() -> None:
            with trainer.precision_plugin.forward_context():
                terms = objective(batch, module.progress())
            terms.total.backward()

        with torch.random.fork_rng(devices=[]):
            threads = choose_threads(spare_step)
        objective.zero_grad(set_to_none=True)
        for buffer, saved in buffers:
            buffer.copy_(saved)
        return threads
