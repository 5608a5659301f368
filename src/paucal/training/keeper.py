"""Callbacks that run after each step: hooks of the objective, validation, metrics and checkpoints.

Checkpoints are written atomically and contain no executable code.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.plugins import CheckpointIO
from torch import nn

from paucal.runs import RunFolder
from paucal.runs.weights import load_checkpoint
from paucal.training.averaging import KeptEpochs
from paucal.training.length_correction import OnChange, RunClock
from paucal.training.meters import SkippedStepCheck
from paucal.training.module import TrainingModule
from paucal.training.plan import Plan, PlanChange
from paucal.training.stopping import StopSignal
from paucal.types import UserError
from paucal.writing import write_atomically

Validate = Callable[[nn.Module, torch.device], Mapping[str, float]]
EvaluationModel = Callable[[], AbstractContextManager[nn.Module]]
OnEpoch = Callable[[int, int, Mapping[str, float]], bool | None]


class AtomicCheckpoints(CheckpointIO):
    """Writes checkpoints atomically (flushed temporary file, then renamed), and reads only tensors and plain values."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path, storage_options: Any = None) -> None:
        """Write a checkpoint."""
        write_atomically(Path(path), lambda file: torch.save(checkpoint, file))

    def load_checkpoint(self, path, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint into main memory; Lightning moves it to the device."""
        return load_checkpoint(Path(path))

    def remove_checkpoint(self, path) -> None:
        """Remove a checkpoint."""
        Path(path).unlink(missing_ok=True)


def checkpoint_step(path: Path) -> int:
    """Return the number of optimizer steps that were completed when a checkpoint was saved."""
    with _keeper_state(path) as state:
        return int(state["step"])


def checkpoint_rows(path: Path) -> list[dict[str, float]]:
    """Return the metrics of each epoch before a checkpoint; an empty list if the file does not exist.

    `metrics.csv` may have more rows: a row is added after every epoch, and a killed run repeats the epochs since its
    newest checkpoint.
    """
    if not path.exists():
        return []
    with _keeper_state(path) as state:
        return [dict(row) for row in state["rows"]]


def checkpoint_changes(path: Path) -> tuple[PlanChange, ...]:
    """Return the corrections of the run's length that a checkpoint stores; an empty tuple if there is no file."""
    if not path.exists():
        return ()
    with _keeper_state(path) as state:
        return tuple(PlanChange(*map(int, change)) for change in state.get("changes", []))


@contextmanager
def _keeper_state(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the state of `RunKeeper` in a checkpoint; raise a UserError if another version of paucal wrote it."""
    try:
        yield load_checkpoint(path)["callbacks"]["RunKeeper"]
    except (KeyError, TypeError, ValueError) as problem:
        raise UserError(f"{str(path)!r} is not a checkpoint of this version of paucal: train again.") from problem


@dataclass(frozen=True)
class Validation:
    """How a run is validated during training, and how its best epoch is chosen."""

    validate: Validate  # returns a model's metrics on the validation images; called on every process
    score: str | None = None  # name of the metric to maximise; None if the newest epoch always counts as the best
    loss: str = ""  # name of the metric that breaks ties; lower is better
    # Score of the model already in the run folder, which only an epoch with a higher score replaces; None if the folder
    # has no model
    floor: float | None = None
    keep: int = 0  # number of best epochs whose weights are kept for averaging; requires `score` and `loss`


@dataclass(frozen=True)
class RunHooks:
    """The folder of a run and the functions that are called during training."""

    run: RunFolder  # run folder for checkpoints and metrics
    # Saves the deployable model, called after each epoch that is the best so far
    save_model: Callable[[nn.Module], None]
    # Validation and choice of the best epoch; if None, the newest epoch counts as the best
    validation: Validation | None = None
    # The functions below are called on the first process.
    # Takes (epoch, number of epochs, metrics of the epoch); may return True to save a checkpoint and stop the run
    on_epoch: OnEpoch | None = None
    # Takes the metrics of the initial weights; if None, these weights are not validated
    on_start: Callable[[Mapping[str, float]], None] | None = None
    on_change: OnChange | None = None  # takes (plan, seconds per step) after the number of steps was corrected


def kept_epochs(run: RunFolder, validation: Validation | None) -> KeptEpochs | None:
    """Return the files with the weights of a run's best epochs; None if only the best epoch's model is kept."""
    if validation is None or validation.score is None or validation.keep < 2:
        return None
    return KeptEpochs(run.last.parent, validation.keep, validation.score, validation.loss)


class ObjectiveHooks(Callback):
    """Calls the objective's `after_step` and `diagnostics` after every optimizer step."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Call `after_step` and `diagnostics` if the forward pass completed an optimizer step."""
        if completed_step(pl_module, batch_idx):
            pl_module.objective.after_step(pl_module.progress(batch_idx))
            pl_module.meters.add_diagnostics(pl_module.objective.diagnostics())


class RunKeeper(Callback):
    """Writes the run folder: a row of metrics per epoch, the newest and the best checkpoint, and the best model.

    This callback also validates after each epoch, and stops the run on request. `evaluation_model` returns a context
    manager that yields the model to validate and save; `changes` are earlier corrections of a resumed run's length.
    """

    def __init__(
        self,
        hooks: RunHooks,
        evaluation_model: EvaluationModel,
        stop: StopSignal,
        skipped_step_check: SkippedStepCheck,
        clock: RunClock | None = None,
        changes: Sequence[PlanChange] = (),
    ) -> None:
        self.hooks = hooks
        self.evaluation_model = evaluation_model
        self.stop = stop
        self.skipped_step_check = skipped_step_check
        self.clock = clock
        self.changes = tuple(changes)
        self.rows: list[dict[str, float]] = []
        self.step = 0
        self.best: dict[str, float] = {}
        self.seconds = 0.0
        self.interrupted = False
        self._meters_state: dict[str, Any] = {}
        self._on_epoch_requested_stop = False
        self._last_save = self._counted_until = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Restore the metrics of a resumed run; validate the initial weights of a new run."""
        self._last_save = self._counted_until = time.monotonic()
        if self._meters_state:
            pl_module.meters.load_state_dict(self._meters_state, pl_module.device)
        # The run may have been killed after it saved its best epoch and before it saved the newest checkpoint.
        if self._selects_by_score and self.hooks.run.best.exists():
            with _keeper_state(self.hooks.run.best) as state:
                self.best = dict(state["best"]) if int(state["step"]) > self.step else self.best
        if trainer.is_global_zero:
            # Remove the rows of epochs after the checkpoint, which are trained again.
            if self.rows:
                self.hooks.run.write_rows(self.rows)
            else:
                self.hooks.run.metrics.unlink(missing_ok=True)
        if self.step == 0 and self.hooks.on_start is not None and self.hooks.validation is not None:
            # This cannot be done before `fit`, since the processes divide the validation images among themselves and
            # need the process group, which `fit` initialises.
            with self.evaluation_model() as model:
                metrics = self.hooks.validation.validate(model, pl_module.device)
            if trainer.is_global_zero:
                self.hooks.on_start(metrics)
        if self.clock is not None:
            self.clock.start(self.seconds)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Validate at the end of an epoch, save a checkpoint when that is due, and stop the run if requested."""
        if not completed_step(pl_module, batch_idx):
            return
        self.step = trainer.global_step
        length_changed = self.clock is not None and self.clock.correct(trainer, pl_module, batch)
        plan, start_time = pl_module.plan, time.monotonic()
        self.changes = plan.changes
        finished = self.step >= plan.corrected_total_steps
        evaluates = self.step % plan.steps_per_epoch == 0 or finished
        if evaluates:
            with self.evaluation_model() as model:
                self._finish_epoch(trainer, pl_module, model)
        stopping = self.stop.requested(trainer) or self._on_epoch_requested_stop
        failure = self.skipped_step_check.stop_message
        # Save a checkpoint after a correction: a run resumed from an older checkpoint would make another correction.
        if stopping or finished or length_changed or failure or self._save_is_due(trainer, plan):
            self._meters_state = pl_module.meters.state_dict()
            self._count_seconds()
            trainer.save_checkpoint(self.hooks.run.last, weights_only=False)
            self._last_save = time.monotonic()
        if self.clock is not None:
            self.clock.skip_pause(time.monotonic() - start_time if evaluates else None)
        if failure and not stopping:  # the caller may roll back a stopping run
            raise UserError(failure)
        if self._on_epoch_requested_stop:  # the caller may start another stage, but not after a signal
            self.interrupted = self.stop.requested(trainer, at_once=True)
        trainer.should_stop = trainer.should_stop or stopping

    def _save_is_due(self, trainer: Trainer, plan: Plan) -> bool:
        if self.step % plan.save_every == 0:
            return True
        is_old = time.monotonic() - self._last_save > plan.save_seconds
        return self.step % plan.steps_per_epoch == 0 and trainer.strategy.broadcast(is_old)

    def _finish_epoch(self, trainer: Trainer, module: TrainingModule, model: nn.Module) -> None:
        row: dict[str, float] = {"epoch": round(self.step / module.plan.steps_per_epoch, 2), "step": self.step}
        row |= module.meters.read()
        module.meters.reset()
        if self.hooks.validation is not None:
            row |= self.hooks.validation.validate(model, module.device)
        self._count_seconds()
        row["seconds"] = self.seconds
        self.rows.append(row)
        if trainer.is_global_zero:
            self.hooks.run.write_rows(self.rows)
            if (best_epochs := kept_epochs(self.hooks.run, self.hooks.validation)) is not None:
                best_epochs.after_epoch(self.rows, model)
        stop_requested = False
        if self.hooks.on_epoch is not None and trainer.is_global_zero:
            # The numbers are rounded up, since the last epoch may be incomplete.
            steps = (self.step, module.plan.corrected_total_steps)
            epoch, epochs = (math.ceil(step / module.plan.steps_per_epoch) for step in steps)
            stop_requested = bool(self.hooks.on_epoch(epoch, epochs, row))
        self._on_epoch_requested_stop = trainer.strategy.broadcast(stop_requested)
        if self._improves(row):
            self.best = row
            if trainer.is_global_zero:
                self.hooks.save_model(model)
            if self._selects_by_score:  # otherwise the newest checkpoint is the best checkpoint
                # Save the model first: if this checkpoint exists, a resumed run expects that the model exists, too.
                trainer.save_checkpoint(self.hooks.run.best, weights_only=False)

    @property
    def _selects_by_score(self) -> bool:
        return self.hooks.validation is not None and self.hooks.validation.score is not None

    def _improves(self, row: dict[str, float]) -> bool:
        """Return whether an epoch with these metrics is the best so far."""
        validation = self.hooks.validation
        if validation is None or validation.score is None:
            return True
        if not self.best:
            return validation.floor is None or row[validation.score] > validation.floor
        ranks = [(metrics[validation.score], -metrics[validation.loss]) for metrics in (row, self.best)]
        return ranks[0] > ranks[1]

    def _count_seconds(self) -> None:
        now = time.monotonic()
        self.seconds += now - self._counted_until
        self._counted_until = now

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        names = ("rows", "step", "best", "seconds")
        changes = [list(astuple(change)) for change in self.changes]
        return {name: getattr(self, name) for name in names} | {"meters": self._meters_state, "changes": changes}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Make Lightning continue at the first forward pass of the next step.

        Lightning's stored count of passes is wrong if the number of processes, and so `accumulate`, has changed.
        """
        counts = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        added = checkpoint["global_step"] * pl_module.plan.accumulate - counts["current"]["ready"]
        for period in ("total", "current"):
            counts[period] = {name: count + added for name, count in counts[period].items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        for name in ("rows", "step", "best", "seconds"):
            setattr(self, name, state_dict[name])
        self._meters_state = state_dict["meters"]


def completed_step(module: TrainingModule, batch_idx: int) -> bool:
    """Return whether forward pass `batch_idx` completed an optimizer step."""
    return (batch_idx + 1) % module.plan.accumulate == 0
