"""Training any objective with Lightning's Trainer."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Callback as LightningCallback
from torch.utils.data import DataLoader

from paucal.objectives.base import Objective
from paucal.training.average import MovingAverage
from paucal.training.checkpoints import AtomicCheckpoints, fitting_state
from paucal.training.compiling import compile_advice
from paucal.training.health import FiniteWatch
from paucal.training.keeper import AfterStep, Records, RunKeeper
from paucal.training.memory import memory_advice
from paucal.training.module import TrainingModule
from paucal.training.plan import Hardware, Optimization, Plan
from paucal.training.sharded_strategy import ShardedStrategy
from paucal.training.sharding import EqualBuffers, WholeCopy
from paucal.training.stopping import StopSignal, interruptible

ADVICE = (
    r".*does not have many workers.*",  # the recipe has chosen their number
    r".*GPU available but not used.*",
    r".*MPS available but not used.*",
    r".*Checkpoint directory .* exists and is not empty.*",
    r".*module\(s\) in eval mode at the start of training.*",  # a guide that never learns
    r".*LeafSpec.*",  # Lightning's own use of an older torch interface
)


@dataclass(frozen=True)
class Outcome:
    """How a call of `fit` ended.

    Attributes:
        finished: whether all steps were made (False after a request to stop).
        step: optimizer steps made so far.
        rows: the metrics of every epoch so far.
        best: the row of the best epoch.
        seconds: time spent in training, over all resumptions.
    """

    finished: bool
    step: int
    rows: Sequence[dict[str, float]]
    best: dict[str, float]
    seconds: float


def fit(
    objective: Objective,
    make_loader: Callable[[], DataLoader],
    optimization: Optimization,
    plan: Plan,
    records: Records,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Train an objective, going on from the run's newest state where there is one.

    Args:
        objective: what to train.
        make_loader: called once the processes are joined, so that it knows their number. Its loader yields
            `Batch`es from the forward pass at which the run stands (see `checkpoint_position`) and has the
            length of the whole run in forward passes.
        optimization: the optimizer and its schedule.
        plan: length, randomness and hardware.
        records: what is kept, and who is told.
        callbacks: more Lightning callbacks, such as a progress display.

    Raises:
        UserError: the loss was not finite for many steps in a row, the saved state does not fit, the memory does
            not suffice, or the model cannot be compiled.
    """
    compiled = plan.hardware.compile_backend is not None
    for module in objective.compilable() if compiled else ():
        # A run has few sizes of batches, and code for any size is slower and fails more often.
        module.compile(backend=plan.hardware.compile_backend, dynamic=False)
    stop = StopSignal(plan.deadline, slow_start=compiled)
    average = None
    if optimization.average_decay is not None:
        average = MovingAverage(objective.deployable(), optimization.average_decay)
    judged = objective.deployable if average is None else lambda: average.module
    cut = plan.hardware.strategy == "fsdp"
    evaluated = WholeCopy(judged).filled if cut else lambda: nullcontext(judged())
    health = FiniteWatch()
    keeper = RunKeeper(records, evaluated, stop, health)
    kept: list[LightningCallback] = [
        AfterStep(),
        *([EqualBuffers()] if cut else []),
        *([average] if average else []),
        health,
        keeper,
        stop,
    ]
    with _without_advice(), interruptible(), memory_advice(plan), compile_advice(plan), fitting_state(records.run.last):
        trainer = build_trainer(plan, records.run.path, [*kept, *callbacks])
        trainer.fit(
            TrainingModule(objective, optimization, plan, make_loader),
            ckpt_path=records.run.last if records.run.last.exists() else None,
        )
    return Outcome(keeper.step >= plan.total_steps, keeper.step, keeper.rows, keeper.best, keeper.seconds)


def build_trainer(plan: Plan, folder: Path, callbacks: Sequence[Callback]) -> Trainer:
    """Return a Lightning Trainer that only trains: records, states and display are callbacks of ours.

    Args:
        plan: Length, randomness and hardware.
        folder: Run folder. In a job of SLURM Lightning starts from any hpc_ckpt_*.ckpt that lies there.
        callbacks: All callbacks.
    """
    in_slurm = SLURMEnvironment.detect() and not TorchElasticEnvironment.detect()
    hardware: Hardware = plan.hardware
    return Trainer(
        accelerator=hardware.accelerator,
        devices=hardware.devices,
        num_nodes=hardware.nodes,
        strategy=ShardedStrategy(hardware.processes) if hardware.strategy == "fsdp" else hardware.strategy,
        precision=hardware.precision,  # type: ignore[arg-type]
        max_epochs=1,
        max_steps=plan.total_steps,
        accumulate_grad_batches=plan.accumulate,
        callbacks=list(callbacks),
        # Lightning itself would save beside the run at SIGUSR1, and requeue the job.
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
def _without_advice() -> Iterator[None]:
    """Silence Lightning's advice on things that are deliberate here; its warnings of other kinds stay."""
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
