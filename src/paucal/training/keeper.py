"""Callbacks after a step: hooks of the objective, validation, metrics and checkpoints."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import nn

from paucal.runs import RunFolder
from paucal.training.averaging import KeptEpochs
from paucal.training.checkpoints import checkpoint_best, recount_passes
from paucal.training.clock import OnChange, RunClock
from paucal.training.meters import FiniteWatch
from paucal.training.module import TrainingModule
from paucal.training.plan import Plan, PlanChange
from paucal.training.stopping import StopSignal
from paucal.types import UserError

Validate = Callable[[nn.Module, torch.device], Mapping[str, float]]
Evaluated = Callable[[], AbstractContextManager[nn.Module]]
OnEpoch = Callable[[int, int, Mapping[str, float]], bool | None]


@dataclass(frozen=True)
class Watch:
    """The validation of a run during training.

    Attributes:
        validate: Function that returns a model's scores on the validation images; called on every process.
        score: Name of the score to maximise; None if the newest state always counts as the best.
        loss: Name of the value that breaks ties, lower is better.
        floor: Score of the run's present model, which only a better epoch replaces; None without one.
        keep: Number of best epochs whose weights are kept for averaging; requires a score and a loss.
    """

    validate: Validate
    score: str | None = None
    loss: str = ""
    floor: float | None = None
    keep: int = 0


@dataclass(frozen=True)
class Records:
    """The files of a run and the functions to call.

    Attributes:
        run: Run folder for checkpoints and metrics.
        save_model: Function that saves the deployable part of a new best state.
        watch: Validation; None keeps the newest state as the best, without its own file.
        on_epoch: Function called on the first process with (epoch, epochs, row of metrics); it may return True to save
            and stop the run.
        on_start: Function called on the first process with the scores of the initial weights; None to not score them.
        on_change: Function called on the first process with (plan, seconds of a step) after a correction of the length.
    """

    run: RunFolder
    save_model: Callable[[nn.Module], None]
    watch: Watch | None = None
    on_epoch: OnEpoch | None = None
    on_start: Callable[[Mapping[str, float]], None] | None = None
    on_change: OnChange | None = None

    @property
    def kept(self) -> KeptEpochs | None:
        """The weights of the best epochs; None if they are not kept."""
        return None if self.watch is None else kept_epochs(self.run, self.watch)


def kept_epochs(run: RunFolder, watch: Watch) -> KeptEpochs | None:
    """Return the files of a run's best epochs; None if it keeps none."""
    if watch.score is None or watch.keep < 2:  # the best state is kept anyway
        return None
    return KeptEpochs(run.last.parent, watch.keep, watch.score, watch.loss)


class AfterStep(Callback):
    """Calls the objective's hooks after every optimizer step."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Call the objective's hooks."""
        if completed_step(pl_module, batch_idx):
            pl_module.objective.after_step(pl_module.progress(batch_idx))
            pl_module.meters.add_diagnostics(pl_module.objective.diagnostics())


class RunKeeper(Callback):
    """Writes the run folder: a row of metrics per epoch, the newest state, the best one and its weights."""

    def __init__(
        self,
        records: Records,
        evaluated: Evaluated,
        stop: StopSignal,
        health: FiniteWatch,
        clock: RunClock | None = None,
        changes: Sequence[PlanChange] = (),
    ) -> None:
        self.records = records
        self.evaluated = evaluated
        self.stop = stop
        self.health = health
        self.clock = clock
        self.changes = tuple(changes)
        self.rows: list[dict[str, float]] = []
        self.step = 0
        self.best: dict[str, float] = {}
        self.seconds = 0.0
        self.interrupted = False
        self._meters: dict[str, Any] = {}
        self._asked_to_stop = False
        self._last_save = self._last_tick = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Restore the metrics of a resumed run; score the initial weights of a new one."""
        self._last_save = self._last_tick = time.monotonic()
        if self._meters:
            pl_module.meters.load_state_dict(self._meters, pl_module.device)
        # The run may have been killed between writing the files of its best epoch and the checkpoint.
        if self._selects_by_score and self.records.run.best.exists():
            step, best = checkpoint_best(self.records.run.best)
            self.best = best if step > self.step else self.best
        if trainer.is_global_zero:
            # Epochs after the checkpoint are lost.
            if self.rows:
                self.records.run.write_rows(self.rows)
            else:
                self.records.run.metrics.unlink(missing_ok=True)
        if self.step == 0 and self.records.on_start is not None and self.records.watch is not None:
            # The validation images are divided among the processes, which have joined only now.
            with self.evaluated() as model:
                scores = self.records.watch.validate(model, pl_module.device)
            if trainer.is_global_zero:
                self.records.on_start(scores)
        if self.clock is not None:
            self.clock.start(self.seconds)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record, validate, save and stop when due."""
        if not completed_step(pl_module, batch_idx):
            return
        self.step = trainer.global_step
        length_changed = self.clock is not None and self.clock.correct(trainer, pl_module, batch)
        plan, begin = pl_module.plan, time.monotonic()
        self.changes = plan.changes
        finished = self.step >= plan.last_step
        evaluates = self.step % plan.steps_per_epoch == 0 or finished
        if evaluates:
            with self.evaluated() as model:
                self._finish_epoch(trainer, pl_module, model)
        stopping = self.stop.requested(trainer) or self._asked_to_stop
        # Save a checkpoint after a correction: resuming from an older one would repeat the correction differently.
        if stopping or finished or length_changed or self.health.hopeless or self._save_is_due(trainer, plan):
            self._save_checkpoint(trainer, pl_module)
        if self.clock is not None:
            self.clock.pause(time.monotonic() - begin if evaluates else None)
        if self.health.hopeless and not stopping:  # a stopping run may be rolled back
            raise UserError(self.health.hopeless)
        if self._asked_to_stop:  # the run may go on with another stage, unless a signal came in the meantime
            self.interrupted = self.stop.requested(trainer, at_once=True)
        trainer.should_stop = trainer.should_stop or stopping

    def _save_is_due(self, trainer: Trainer, plan: Plan) -> bool:
        if self.step % plan.save_every == 0:
            return True
        waited = time.monotonic() - self._last_save > plan.save_seconds
        return self.step % plan.steps_per_epoch == 0 and trainer.strategy.broadcast(waited)

    def _finish_epoch(self, trainer: Trainer, module: TrainingModule, model: nn.Module) -> None:
        row: dict[str, float] = {"epoch": round(self.step / module.plan.steps_per_epoch, 2), "step": self.step}
        row |= module.meters.read()
        module.meters.reset()
        if self.records.watch is not None:
            row |= self.records.watch.validate(model, module.device)
        self._count_seconds()
        row["seconds"] = self.seconds
        self.rows.append(row)
        if trainer.is_global_zero:
            self.records.run.write_rows(self.rows)
            if (kept_epochs := self.records.kept) is not None:
                kept_epochs.after_epoch(self.rows, model)
        stop_requested = False
        if self.records.on_epoch is not None and trainer.is_global_zero:
            # The last epoch may be incomplete.
            plan = module.plan
            epoch, epochs = (math.ceil(steps / plan.steps_per_epoch) for steps in (self.step, plan.last_step))
            stop_requested = bool(self.records.on_epoch(epoch, epochs, row))
        self._asked_to_stop = trainer.strategy.broadcast(stop_requested)
        if self._improves(row):
            self.best = row
            if trainer.is_global_zero:
                self.records.save_model(model)
            if self._selects_by_score:  # otherwise the newest state counts as the best
                # Saved after the model, since this file proves to a resumed run that the model exists.
                trainer.save_checkpoint(self.records.run.best, weights_only=False)

    @property
    def _selects_by_score(self) -> bool:
        return self.records.watch is not None and self.records.watch.score is not None

    def _improves(self, row: dict[str, float]) -> bool:
        watch = self.records.watch
        if watch is None or watch.score is None:
            return True
        if not self.best:
            return watch.floor is None or row[watch.score] > watch.floor
        return (row[watch.score], -row[watch.loss]) > (self.best[watch.score], -self.best[watch.loss])

    def _save_checkpoint(self, trainer: Trainer, module: TrainingModule) -> None:
        self._meters = module.meters.state_dict()
        self._count_seconds()
        trainer.save_checkpoint(self.records.run.last, weights_only=False)
        self._last_save = time.monotonic()

    def _count_seconds(self) -> None:
        now = time.monotonic()
        self.seconds += now - self._last_tick
        self._last_tick = now

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint stores."""
        names = ("rows", "step", "best", "seconds")
        changes = [list(astuple(change)) for change in self.changes]
        return {name: getattr(self, name) for name in names} | {"meters": self._meters, "changes": changes}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Continue at the forward pass of the next step, also with another number of passes per step."""
        recount_passes(checkpoint, pl_module.plan.accumulate)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        for name in ("rows", "step", "best", "seconds"):
            setattr(self, name, state_dict[name])
        self._meters = state_dict["meters"]


def completed_step(module: TrainingModule, batch_idx: int) -> bool:
    """Return whether forward pass `batch_idx` completed an optimizer step."""
    return (batch_idx + 1) % module.plan.accumulate == 0
