"""The plan of a training run, computed from its settings: steps, time budget, optimizer values and hardware."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from paucal.data.views.augmentation import Mixing

OptimizerName = Literal["adamw", "sgd", "lars"]


@dataclass(frozen=True)
class Optimization:
    """The optimizer and its hyperparameters."""

    schedule: Callable[[float], float]  # returns the learning rate from the number of completed steps
    weight_decay: float  # weight decay of the parameter groups that are decayed
    clip: float | None  # global L2 norm to which gradients are clipped; None or 0 disables clipping
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    # Maximum decay of the moving average of the weights; None or 0 disables the average
    average_decay: float | None = None
    optimizer: OptimizerName = "adamw"
    momentum: float = 0.9  # momentum of SGD and LARS


@dataclass(frozen=True)
class Hardware:
    """Hardware and precision, as Lightning names them."""

    accelerator: str = "cpu"  # "cpu", "cuda", "mps" or "auto"
    devices: int = 1
    nodes: int = 1
    # "auto" for one process, "ddp" for a copy of the model on each process, "fsdp" for a shard on each process
    strategy: str = "auto"
    precision: str = "32-true"
    compile_backend: str | None = None  # backend of `torch.compile` for the backbones; None disables compilation
    hang_seconds: float | None = None  # timeout in seconds for waiting for another process; None means torch's default

    @property
    def processes(self) -> int:
        """Number of processes that train together."""
        return self.devices * self.nodes


@dataclass(frozen=True)
class TimePlan:
    """The time budget of a run, and the measurements from which its length was planned."""

    budget: float  # seconds for the whole run, from the start of the command until the last file is written
    spent: float  # seconds of the budget that had passed when the length was planned
    closing: float  # expected seconds from the last step until the last file is written
    step: float  # measured seconds of an optimizer step
    evaluation: float  # measured seconds of one validation
    most_steps: int  # maximum number of optimizer steps, however much time is left
    threads: int  # number of CPU threads during the measurements


@dataclass(frozen=True)
class PlanChange:
    """A correction of a run's length during training."""

    step: int  # number of optimizer steps completed before the correction
    total_steps: int  # new number of optimizer steps of the whole run
    threads: int  # new number of CPU threads


@dataclass(frozen=True)
class Plan:
    """The length, the seed and the hardware of a run."""

    total_steps: int  # optimizer steps of the whole run, before any correction
    steps_per_epoch: int
    accumulate: int = 1
    seed: int = 0
    mixing: Mixing | None = None  # Mixup and CutMix; None disables both
    n_classes: int = 0  # number of classes, which mixing needs
    save_every: int = 500  # maximum number of optimizer steps between two checkpoints
    save_seconds: float = 15.0  # minimum age of the newest checkpoint for saving another one at the end of an epoch
    deadline: float | None = None  # `time.monotonic()` after which the run is stopped and saved; None means no limit
    hardware: Hardware = field(default_factory=Hardware)
    time: TimePlan | None = None  # time budget that limits the number of steps; None if the number of steps is fixed
    changes: tuple[PlanChange, ...] = ()  # corrections of the run's length so far, oldest first

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
