"""Train any objective with Lightning's Trainer, with advice for errors of memory, compilation and checkpoints."""

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

from paucal.cores import count_usable_cores, threads_restored
from paucal.distributed import broadcast_tensors
from paucal.memory import is_out_of_memory
from paucal.objectives.base import Objective
from paucal.training.averaging import MovingAverage
from paucal.training.keeper import AtomicCheckpoints, ObjectiveHooks, RunHooks, RunKeeper, checkpoint_changes
from paucal.training.length_correction import RunClock
from paucal.training.meters import SkippedStepCheck
from paucal.training.module import TrainingModule
from paucal.training.plan import Hardware, Optimization, Plan
from paucal.training.sharding import BufferBroadcast, ShardedStrategy, UnshardedCopy
from paucal.training.stopping import ProcessGroupTimeout, StopSignal, interruptible
from paucal.types import UserError
from paucal.wording import shorten

# Regular expressions that match Lightning's warnings about intended behaviour of paucal
SILENCED_WARNINGS = (
    r".*does not have many workers.*",
    r".*GPU available but not used.*",
    r".*MPS available but not used.*",
    r".*Checkpoint directory .* exists and is not empty.*",
    r".*module\(s\) in eval mode at the start of training.*",  # for example, a teacher network that is not trained
    r".*LeafSpec.*",  # deprecation warning about a torch function that Lightning calls
)
# Packages of torch.compile: an exception whose type is defined in one of these is a compiler error
COMPILER_MODULES = ("torch._dynamo", "torch._inductor", "torch._functorch", "triton")
MAX_REASON_CHARACTERS = 200  # maximum length of an error's text within a message


@dataclass(frozen=True)
class Outcome:
    """The result of `fit`."""

    finished: bool  # whether all steps are completed; False if the run was stopped earlier
    step: int  # number of optimizer steps completed so far
    rows: Sequence[dict[str, float]]  # metrics of each epoch
    best: dict[str, float]  # metrics of the best epoch
    seconds: float  # training time so far in seconds, including the time before the run was resumed
    plan: Plan | None = None  # plan of the run with all corrections; None if nothing was trained
    # Whether a signal or the time limit also requested a stop when `RunHooks.on_epoch` stopped the run
    interrupted: bool = False

    def epochs_done(self, planned: int | None) -> float | None:
        """Return the completed epochs if the number of steps was corrected, else the planned number of epochs."""
        if self.plan is None or not self.plan.changes:
            return planned
        passes = self.step / self.plan.steps_per_epoch
        return int(passes) if passes.is_integer() else round(passes, 2)

    @property
    def remarks(self) -> list[str]:
        """A note if the number of steps was corrected during the run, as a list; otherwise an empty list."""
        totals = {change.total_steps for change in self.plan.changes} if self.plan is not None else set()
        if self.plan is None or totals <= {self.plan.total_steps}:
            return []
        return [
            f"a step took more or less time than planned: the run made {self.step} steps instead of "
            f"{self.plan.total_steps}"
        ]


def fit(
    objective: Objective,
    make_loader: Callable[[], DataLoader],
    optimization: Optimization,
    plan: Plan,
    hooks: RunHooks,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Train an objective, or resume training from the run's newest checkpoint if one exists.

    `make_loader` is called after the process group is initialised. Its loader yields `Batch`es, beginning with the
    run's next forward pass (see `checkpoint_step`), and has the length of `Plan.most_steps` optimizer steps.
    """
    compiled = plan.hardware.compile_backend is not None
    for module in objective.compilable() if compiled else ():
        # A run has few batch sizes, and code compiled for dynamic sizes is slower and fails more often.
        module.compile(backend=plan.hardware.compile_backend, dynamic=False)
    if plan.time is not None:
        plan = replace(plan, changes=checkpoint_changes(hooks.run.last))
    stop = StopSignal(plan.deadline, slow_start=compiled)
    average = None
    if optimization.average_decay:
        average = MovingAverage(objective.deployable(), optimization.average_decay)
    get_model = objective.deployable if average is None else lambda: average.module
    is_sharded = plan.hardware.strategy == "fsdp"
    evaluation_model = UnshardedCopy(get_model).updated if is_sharded else lambda: _equal_buffers(get_model())
    skipped_step_check = SkippedStepCheck()
    clock = None if plan.time is None else RunClock(plan, hooks.on_change)
    keeper = RunKeeper(hooks, evaluation_model, stop, skipped_step_check, clock, plan.changes)
    required_callbacks: list[Callback] = [
        ObjectiveHooks(),
        *([BufferBroadcast()] if is_sharded else []),
        *([average] if average else []),
        *([ProcessGroupTimeout(plan.hardware.hang_seconds)] if plan.hardware.hang_seconds is not None else []),
        skipped_step_check,
        keeper,
        stop,
    ]
    module, newest_checkpoint = TrainingModule(objective, optimization, plan, make_loader), hooks.run.last
    with (
        _silenced_lightning(),
        threads_restored(),
        interruptible(),
        advise_on_memory_errors(plan),
        advise_on_compile_errors(plan),
        advise_on_weight_mismatch(newest_checkpoint),
    ):
        if plan.threads is not None and plan.hardware.accelerator == "cpu":
            # The number of threads determines the order of sums, and so their rounding.
            torch.set_num_threads(min(plan.threads, count_usable_cores()))
        trainer = build_trainer(plan, hooks.run.path, [*required_callbacks, *callbacks])
        trainer.fit(module, ckpt_path=newest_checkpoint if newest_checkpoint.exists() else None)
    finished = keeper.step >= module.plan.corrected_total_steps
    return Outcome(finished, keeper.step, keeper.rows, keeper.best, keeper.seconds, module.plan, keeper.interrupted)


def build_trainer(plan: Plan, folder: Path, callbacks: Sequence[Callback]) -> Trainer:
    """Return a Lightning Trainer without Lightning's own logger, checkpoints and progress bar."""
    in_slurm = SLURMEnvironment.detect() and not TorchElasticEnvironment.detect()
    hardware: Hardware = plan.hardware
    return Trainer(
        accelerator=hardware.accelerator,
        devices=hardware.devices,
        num_nodes=hardware.nodes,
        strategy=ShardedStrategy(hardware.processes) if hardware.strategy == "fsdp" else hardware.strategy,
        precision=hardware.precision,  # type: ignore[arg-type]
        max_epochs=1,
        max_steps=plan.corrected_total_steps,
        accumulate_grad_batches=plan.accumulate,
        callbacks=list(callbacks),
        # With auto_requeue, Lightning would save its own checkpoint at SIGUSR1 and requeue the job.
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
def _equal_buffers(module: nn.Module) -> Iterator[nn.Module]:
    """Copy the first process's buffers to all processes, and yield the module.

    With DDP, batch norm statistics may differ between processes within a step, and checkpoints contain the statistics
    of the first process. Without this copy, a resumed run would get different scores than an uninterrupted run.
    """
    broadcast_tensors(module.buffers())
    yield module


@contextmanager
def _silenced_lightning() -> Iterator[None]:
    """Silence Lightning's tips and the warnings in `SILENCED_WARNINGS`; other warnings are still shown."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    with warnings.catch_warnings():
        for message in SILENCED_WARNINGS:
            warnings.filterwarnings("ignore", message)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextmanager
def advise_on_memory_errors(plan: Plan) -> Iterator[None]:
    """Raise a UserError with advice in place of an out-of-memory error."""
    try:
        yield
    except (RuntimeError, MemoryError) as problem:
        if not is_out_of_memory(problem):
            raise
        precision = "" if plan.hardware.precision != "32-true" else ", use --precision bf16-mixed"
        raise UserError(
            f"the memory of the device ({plan.hardware.accelerator}) is too small: use half the --batch-size "
            f"with --accumulate {2 * plan.accumulate} (the same effective batch), or use --batch-size auto, or "
            f"lower --img-size{precision}. Files that the run has already saved remain in the run folder."
        ) from problem


def is_compiler_error(problem: BaseException | None) -> bool:
    """Return whether an exception, or one of its causes, comes from `torch.compile`."""
    seen_ids: set[int] = set()
    while problem is not None and id(problem) not in seen_ids:
        if any(base.__module__.startswith(COMPILER_MODULES) for base in type(problem).__mro__):
            return True
        seen_ids.add(id(problem))
        problem = problem.__cause__ or problem.__context__
    return False


@contextmanager
def advise_on_compile_errors(plan: Plan) -> Iterator[None]:
    """Raise a UserError that advises the user to remove --compile if the compilation failed."""
    try:
        yield
    except Exception as problem:
        if plan.hardware.compile_backend is None or is_out_of_memory(problem) or not is_compiler_error(problem):
            raise
        inner = getattr(problem, "inner_exception", problem)
        lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
        # Lines after the first are advice for torch's developers.
        text = shorten(lines[0], MAX_REASON_CHARACTERS) if lines else "no message"
        raise UserError(
            f"--compile failed with {type(inner).__name__} ({text.rstrip('.:')}): the error is in torch's compiler, "
            "not in your data; remove --compile."
        ) from problem


@contextmanager
def advise_on_weight_mismatch(path: Path) -> Iterator[None]:
    """Raise a UserError with advice if a checkpoint contains the weights of another model."""
    try:
        yield
    except RuntimeError as problem:
        if "loading state_dict" not in str(problem):
            raise
        reason = str(problem).split("\n")[1].strip() if "\n" in str(problem) else str(problem)
        raise UserError(
            f"{str(path)!r} contains the weights of another model ({reason[:200]}): resume the run that this "
            "checkpoint belongs to, or train again."
        ) from problem
