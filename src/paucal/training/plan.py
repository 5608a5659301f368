"""What the trainer is told: plain numbers, resolved beforehand by the recipe."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from paucal.data.views.mixing import Mixing

OptimizerName = Literal["adamw", "sgd", "lars"]


@dataclass(frozen=True)
class Optimization:
    """The optimizer and what surrounds it.

    Attributes:
        schedule: learning rate of the step that follows so many completed ones.
        weight_decay: for the decayed groups.
        betas: of AdamW.
        eps: of AdamW.
        clip: global L2 norm above which gradients are scaled down; None for no clipping.
        average_decay: ceiling of the moving average's decay; None for no average.
        optimizer: "adamw", "sgd" or "lars".
        momentum: of SGD and LARS.
    """

    schedule: Callable[[float], float]
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float | None = 5.0
    average_decay: float | None = None
    optimizer: OptimizerName = "adamw"
    momentum: float = 0.9


@dataclass(frozen=True)
class Hardware:
    """Where and how precisely to compute; the words are Lightning's.

    Attributes:
        accelerator: "cpu", "cuda", "mps" or "auto".
        devices: devices per node.
        nodes: machines.
        strategy: "auto" for one process, "ddp" where each of several keeps the whole model, "fsdp" where each keeps a
            piece of it.
        precision: "32-true", "bf16-mixed" or "16-mixed".
        compile_backend: backend of `torch.compile` for the backbones; None to leave them as they are.
    """

    accelerator: str = "cpu"
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    compile_backend: str | None = None

    @property
    def processes(self) -> int:
        """Processes that train together."""
        return self.devices * self.nodes


@dataclass(frozen=True)
class Plan:
    """The length and the randomness of a run.

    Attributes:
        total_steps: optimizer steps.
        steps_per_epoch: optimizer steps per pass over the training images.
        accumulate: forward passes per optimizer step.
        seed: of everything.
        mixing: mixup and cutmix; None for none.
        n_classes: needed for mixing.
        save_every: optimizer steps between saved states within an epoch, at most.
        save_seconds: the end of an epoch saves a state if the newest one is older than this.
        deadline: value of `time.monotonic()` after which the run is stopped and saved; None for no limit.
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
