"""Training any objective with Lightning's Trainer."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import Callback, Trainer
from torch import nn
from torch.utils.data import DataLoader

from paucal.cores import usable_cores
from paucal.distributed import take_from_first
from paucal.objectives.base import Objective
from paucal.training.averaging import MovingAverage
from paucal.training.checkpoints import AtomicCheckpoints, checkpoint_changes, fitting_state
from paucal.training.clock import RunClock
from paucal.training.failures import compile_advice, memory_advice
from paucal.training.hanging import HangLimit
from paucal.training.keeper import AfterStep, Records, RunKeeper
from paucal.training.meters import FiniteWatch
from paucal.training.module import TrainingModule
from paucal.training.plan import Hardware, Optimization, Plan
from paucal.training.sharding import EqualBuffers, ShardedStrategy, WholeCopy
from paucal.training.stopping import StopSignal, interruptible

ADVICE = (
    r".*does not have many workers.*",  # the number is deliberate
    r".*GPU available but not used.*",
    r".*MPS available but not used.*",
    r".*Checkpoint directory .* exists and is not empty.*",
    r".*module\(s\) in eval mode at the start of training.*",  # a guide network that is not trained
    r".*LeafSpec.*",  # Lightning's own use of an older torch interface
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call of `fit`.

    Attributes:
        finished: Whether all steps were made; False after a request to stop.
        step: Optimizer steps made so far.
        rows: Metrics of every epoch so far.
        best: Row of the best epoch.
        seconds: Seconds of training, over all calls.
        plan: Plan of the run with all corrections; None if nothing was trained.
        interrupted: Whether a signal or the time limit asked for a stop at the step where `Records.on_epoch` did.
    """

    finished: bool
    step: int
    rows: Sequence[dict[str, float]]
    best: dict[str, float]
    seconds: float
    plan: Plan | None = None
    interrupted: bool = False

    def passes(self, planned: int | None) -> float | None:
        """Return the number of epochs that were made, given the planned number."""
        if self.plan is None or not self.plan.changes:
            return planned
        passes = self.step / self.plan.steps_per_epoch
        return int(passes) if passes.is_integer() else round(passes, 2)

    @property
    def remarks(self) -> list[str]:
        """Sentences on corrections of the plan during the run."""
        lengths = [change.total_steps for change in self.plan.changes] if self.plan is not None else []
        if self.plan is None or not lengths or {*lengths} == {self.plan.total_steps}:
            return []
        return [f"steps took more or less time than planned: {self.step} were made instead of {self.plan.total_steps}"]


def fit(
    objective: Objective,
    make_loader: Callable[[], DataLoader],
    optimization: Optimization,
    plan: Plan,
    records: Records,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Train an objective, from the run's newest saved state if there is one.

    Args:
        objective: Objective to train.
        make_loader: Function that returns the loader, called once the processes have joined. The loader yields
            `Batch`es from the run's current forward pass on (see `checkpoint_step`), and its length is that of the
            whole run in forward passes, or of the longest run after corrections (`Plan.most_steps`).
        optimization: Optimizer and schedule.
        plan: Length, seed and hardware.
        records: Run folder, validation and callbacks.
        callbacks: Further Lightning callbacks, such as a progress bar.
    """
    compiled = plan.hardware.compile_backend is not None
    for module in objective.compilable() if compiled else ():
        # A run has few batch sizes, and code for dynamic sizes is slower and fails more often.
        module.compile(backend=plan.hardware.compile_backend, dynamic=False)
    if plan.time is not None:
        plan = replace(plan, changes=checkpoint_changes(records.run.last))
    stop = StopSignal(plan.deadline, slow_start=compiled)
    average = None
    if optimization.average_decay:
        average = MovingAverage(objective.deployable(), optimization.average_decay)
    get_model = objective.deployable if average is None else lambda: average.module
    cut = plan.hardware.strategy == "fsdp"
    evaluated = WholeCopy(get_model).filled if cut else lambda: _shared_buffers(get_model())
    health = FiniteWatch()
    clock = None if plan.time is None else RunClock(plan, records.on_change)
    keeper = RunKeeper(records, evaluated, stop, health, clock, plan.changes)
    own_callbacks: list[Callback] = [
        AfterStep(),
        *([EqualBuffers()] if cut else []),
        *([average] if average else []),
        *([HangLimit(plan.hardware.hang_seconds)] if plan.hardware.hang_seconds is not None else []),
        health,
        keeper,
        stop,
    ]
    module, last = TrainingModule(objective, optimization, plan, make_loader), records.run.last
    with (
        _without_advice(),
        _limited_threads(plan),
        interruptible(),
        memory_advice(plan),
        compile_advice(plan),
        fitting_state(last),
    ):
        trainer = build_trainer(plan, records.run.path, [*own_callbacks, *callbacks])
        trainer.fit(module, ckpt_path=last if last.exists() else None)
    finished = keeper.step >= module.plan.last_step
    return Outcome(finished, keeper.step, keeper.rows, keeper.best, keeper.seconds, module.plan, keeper.interrupted)


def build_trainer(plan: Plan, folder: Path, callbacks: Sequence[Callback]) -> Trainer:
    """Return a Lightning Trainer that only trains: metrics, checkpoints and progress are paucal's callbacks."""
    in_slurm = SLURMEnvironment.detect() and not TorchElasticEnvironment.detect()
    hardware: Hardware = plan.hardware
    return Trainer(
        accelerator=hardware.accelerator,
        devices=hardware.devices,
        num_nodes=hardware.nodes,
        strategy=ShardedStrategy(hardware.processes) if hardware.strategy == "fsdp" else hardware.strategy,
        precision=hardware.precision,  # type: ignore[arg-type]
        max_epochs=1,
        max_steps=plan.last_step,
        accumulate_grad_batches=plan.accumulate,
        callbacks=list(callbacks),
        # Otherwise Lightning would save another checkpoint at SIGUSR1 and requeue the job.
        plugins=[AtomicCheckpoints(), *([SLURMEnvironment(auto_requeue=False)] if in_slurm else [])],
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
    )


@contextmanager
def _shared_buffers(module: nn.Module) -> Iterator[nn.Module]:
    """Return a module with the first process's buffers on every process.

    DDP lets the batch norms of the processes differ within a step, and saves those of the first. Without this, scores
    after resuming would differ from those of an uninterrupted run.
    """
    take_from_first(module.buffers())
    yield module


@contextmanager
def _limited_threads(plan: Plan) -> Iterator[None]:
    """Let torch use the run's number of threads, which affects the last bits of sums."""
    previous = torch.get_num_threads()
    if plan.threads is not None and plan.hardware.accelerator == "cpu":
        torch.set_num_threads(min(plan.threads, usable_cores()))
    try:
        yield
    finally:
        torch.set_num_threads(previous)


@contextmanager
def _without_advice() -> Iterator[None]:
    """Silence Lightning's advice on deliberate choices; other warnings stay."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    with warnings.catch_warnings():
        for message in ADVICE:
            warnings.filterwarnings("ignore", message)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
