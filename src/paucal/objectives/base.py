"""The interface between a training method and the trainer.

The trainer uses an objective only through this interface, so a new method needs no change in `training/`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.probe import block_names
from paucal.distributed import all_reduce_mean
from paucal.types import Batch, DataRequest, FeatureRequest, Features, GroupScales, LossTerms, Progress

HEALTH_INTERVAL_STEPS = 10  # number of steps between two measurements of the health metrics


class Objective(nn.Module, ABC):
    """A training method as a module that contains the method's networks, heads and teachers, and computes its losses.

    All state that must persist from one step to the next is a parameter or a buffer, so that the state dict contains
    everything that a checkpoint needs. `forward` draws random numbers from the device's global generator, which the
    trainer seeds before every forward pass, or from generators that are seeded from `progress`.
    """

    data_request: DataRequest = DataRequest()
    # Whether weight decay also applies to class tokens and position tables, see `training.module.parameter_groups`.
    decays_tables: bool = False

    def __init__(self) -> None:
        super().__init__()
        self._health: dict[str, Tensor] = {}

    @abstractmethod
    def forward(self, batch: Batch, progress: Progress) -> LossTerms:
        """Return the unweighted losses of a batch, and the weight of each loss, by name."""

    @abstractmethod
    def deployable(self) -> nn.Module:
        """Return the module that is saved as the trained model, whose weights enter the moving average."""

    @abstractmethod
    def backbones(self) -> Sequence[FeatureBackbone]:
        """Return the backbones that the run trains and their moving averages, with the deployed backbone first.

        Initial weights are loaded into these backbones. The backbones are also described to the user, compiled, and
        sharded over processes. Frozen networks, such as a guide, are left out.
        """

    def compilable(self) -> Iterable[nn.Module]:
        """Return the modules that `torch.compile` may compile in place."""
        return self.backbones()

    def shardable(self) -> Iterable[nn.Module]:
        """Return the modules whose weights may be gathered one module at a time if they are sharded over processes.

        Each module must be used by calling it. No module may contain another, and no other code may use the weights.
        """
        models = [backbone.model for backbone in self.backbones()]
        return [model.get_submodule(name) for model in models for name in block_names(model)]

    def parameter_group(self, name: str) -> str:
        """Return the label of the parameter group that the parameter `name` belongs to; see `group_scales`."""
        return "main"

    def group_scales(self, progress: Progress) -> GroupScales:
        """Return factors for the learning rate and weight decay by parameter group; the default factor is 1."""
        return {}

    def before_step(self, progress: Progress) -> None:
        """Change gradients between backward pass and optimizer step, for example to freeze parameters or to clip."""

    def after_step(self, progress: Progress) -> None:
        """Update state such as teachers and centres after an optimizer step; `progress.step` includes this step."""

    def chance_levels(self) -> dict[str, float]:
        """Return the loss of predictions that ignore the images, by name of the loss; unknown losses are left out."""
        return {}

    def measures_health(self, progress: Progress) -> bool:
        """Return whether `record_health` should be called in this forward pass."""
        return self.training and progress.step % min(HEALTH_INTERVAL_STEPS, progress.steps_per_epoch) == 0

    def record_health(self, metrics: dict[str, Tensor]) -> None:
        """Store scalar metrics, averaged over all processes, for `diagnostics`."""
        self._health = dict(zip(metrics, all_reduce_mean(torch.stack(list(metrics.values()))), strict=True))

    def diagnostics(self) -> dict[str, Tensor]:
        """Return the latest metrics that help to detect failures such as collapse, as scalar tensors on the device.

        The result is empty if there was no new measurement since the last call.
        """
        health, self._health = self._health, {}
        return health


class Term(nn.Module, ABC):
    """An extra loss, such as DrLoc, on the features that a supervised method computes in its forward pass.

    The attribute `request` specifies the features that are passed to `forward`.
    """

    request: FeatureRequest = FeatureRequest()

    def compilable(self) -> Iterable[nn.Module]:
        """Return the modules that `torch.compile` may compile in place."""
        return []

    @abstractmethod
    def forward(self, features: Features, batch: Batch, progress: Progress) -> Tensor:
        """Return the unweighted loss, a scalar tensor."""

    def chance_level(self) -> float | None:
        """Return the loss of the best predictions that ignore the images; None if this loss is unknown."""
        return None

    @abstractmethod
    def weight(self, progress: Progress) -> float:
        """Return the weight of the loss at this step."""


def seed_of_step(seed: int, micro_step: int) -> int:
    """Return the seed of a torch generator for one forward pass of a run, from 0 to 2**63 - 1.

    The generator then depends only on the run's seed and the pass, not on numbers drawn before. Consecutive seeds and
    passes give unrelated random numbers (SplitMix64; Steele et al., OOPSLA 2014).
    """
    mask, state = 2**64 - 1, 0
    for value in (seed, micro_step):
        state = (state + value + 0x9E3779B97F4A7C15) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state >> 1
