"""The plan of a training run, computed from its settings: steps, time budget, optimizer values and hardware."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from paucal.data.views.augmentation import Mixing

OptimizerName = Literal["adamw", "sgd", "lars"]


@dataclass(frozen=True)
class Optimization:
    """The optimizer and its hyperparameters.

    Attributes:
        schedule: Function that returns the learning rate from the number of completed steps.
        weight_decay: Weight decay of the parameter groups that are decayed.
        clip: Global L2 norm to which gradients are clipped; None or 0 disables clipping.
        betas: Betas of AdamW.
        eps: Epsilon of AdamW.
        average_decay: Maximum decay of the moving average of the weights; None or 0 disables the average.
        optimizer: "adamw", "sgd" or "lars".
        momentum: Momentum of SGD and LARS.
    """

    schedule: Callable[[float], float]
    weight_decay: float
    clip: float | None
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    average_decay: float | None = None
    optimizer: OptimizerName = "adamw"
    momentum: float = 0.9


@dataclass(frozen=True)
class Hardware:
    """Hardware and precision, as Lightning names them.

    Attributes:
        accelerator: "cpu", "cuda", "mps" or "auto".
        devices: Devices per node.
        nodes: Number of nodes (machines).
        strategy: "auto" for one process, "ddp" for a copy of the model on each process, "fsdp" for a shard on each
            process.
        precision: "32-true", "bf16-mixed" or "16-mixed".
        compile_backend: Backend of `torch.compile` for the backbones; None disables compilation.
        hang_seconds: Timeout in seconds for waiting for another process; None means torch's default.
    """

    accelerator: str = "cpu"
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    compile_backend: str | None = None
    hang_seconds: float | None = None

    @property
    def processes(self) -> int:
        """Number of processes that train together."""
        return self.devices * self.nodes


@dataclass(frozen=True)
class TimePlan:
    """The time budget of a run, and the measurements from which its length was planned.

    Attributes:
        budget: Seconds for the whole run, from the start of the command until the last file is written.
        spent: Seconds of the budget that had passed when the length was planned.
        closing: Expected seconds from the last step until the last file is written.
        step: Measured seconds of an optimizer step.
        evaluation: Measured seconds of one validation.
        most_steps: Maximum number of optimizer steps, however much time is left.
        threads: Number of CPU threads during the measurements.
    """

    budget: float
    spent: float
    closing: float
    step: float
    evaluation: float
    most_steps: int
    threads: int


@dataclass(frozen=True)
class PlanChange:
    """A correction of a run's length during training.

    Attributes:
        step: Number of optimizer steps completed before the correction.
        total_steps: New number of optimizer steps of the whole run.
        threads: New number of CPU threads.
    """

    step: int
    total_steps: int
    threads: int


@dataclass(frozen=True)
class Plan:
    """The length, the seed and the hardware of a run.

    Attributes:
        total_steps: Optimizer steps of the whole run, before any correction.
        steps_per_epoch: Optimizer steps per epoch.
        accumulate: Forward passes per optimizer step.
        seed: Seed for all random numbers.
        mixing: Mixup and CutMix; None disables both.
        n_classes: Number of classes, which mixing needs.
        save_every: Maximum number of optimizer steps between two checkpoints.
        save_seconds: Minimum seconds since the newest checkpoint for saving another at the end of an epoch.
        deadline: `time.monotonic()` after which the run is stopped and saved; None means no limit.
        hardware: Hardware and precision.
        time: Time budget that limits the number of steps; None if the number of steps is fixed.
        changes: Corrections of the run's length so far, oldest first.
    """

    total_steps: int
    steps_per_epoch: int
    accumulate: int = 1
    seed: int = 0
    mixing: Mixing | None = None
    n_classes: int = 0
    save_every: int = 500
    save_seconds: float = 15.0
    deadline: float | None = None
    hardware: Hardware = field(default_factory=Hardware)
    time: TimePlan | None = None
    changes: tuple[PlanChange, ...] = ()

    @property
    def corrected_total_steps(self) -> int:
        """The number of optimizer steps of the whole run, after all corrections so far."""
        return self.changes[-1].total_steps if self.changes else self.total_steps

    @property
    def most_steps(self) -> int:
        """The largest number of optimizer steps to which the length of the run may still be corrected."""
        return max(self.corrected_total_steps, self.total_steps if self.time is None else self.time.most_steps)

    @property
    def threads(self) -> int | None:
        """The number of CPU threads for the run; None means torch's default."""
        return self.changes[-1].threads if self.changes else self.time and self.time.threads

    def position(self, step: int) -> float:
        """Return the step of the original plan whose learning rate and other scheduled values apply at `step`.

        A correction stretches or compresses the rest of the original plan to fit the remaining steps, so that every
        schedule continues without a jump and ends at the last step.

        Example:
            >>> plan = Plan(total_steps=100, steps_per_epoch=10, changes=(PlanChange(40, 70, threads=1),))
            >>> [plan.position(step) for step in (0, 40, 41, 55, 70)]
            [0.0, 40.0, 42.0, 70.0, 100.0]
        """
        begin, position, end = 0, 0.0, self.total_steps
        for change in self.changes:
            if step <= change.step:
                break
            position += (change.step - begin) * (self.total_steps - position) / max(end - begin, 1)
            begin, end = change.step, change.total_steps
        return position + (step - begin) * (self.total_steps - position) / max(end - begin, 1)
