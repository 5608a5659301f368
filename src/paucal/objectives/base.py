"""The contract between a training method and the trainer.

The trainer knows an objective through this file only, so a new method needs no edit in `training/`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.forward_hooks import block_names
from paucal.types import Batch, DataRequest, FeatureRequest, Features, GroupScales, LossTerms, Progress


class Objective(nn.Module, ABC):
    """One training method, which owns its networks, heads, teachers and state.

    Everything an objective must remember between steps is a parameter or a buffer, so that a checkpoint of its
    state dict is complete. Randomness in `forward` comes from the global generator of the device, which the
    trainer seeds before every forward pass, or from generators keyed by `progress`.
    """

    data_request: DataRequest = DataRequest()
    decays_tables: bool = False  # whether weight decay applies to tokens and tables, see `training.optimizers`

    @abstractmethod
    def forward(self, batch: Batch, progress: Progress) -> LossTerms:
        """Return the named, unweighted losses of a batch and their weights."""

    @abstractmethod
    def deployable(self) -> nn.Module:
        """Return the module that is saved as the trained model and that the moving average follows."""

    @abstractmethod
    def backbones(self) -> Sequence[FeatureBackbone]:
        """Return the backbones that the run trains or averages, the deployed one first.

        These can be loaded with initial weights, are described to the user, compiled, and sharded over processes. A
        fixed network that only teaches, such as a guide, is not among them.
        """

    def compilable(self) -> Iterable[nn.Module]:
        """Return the modules that `torch.compile` may compile in place."""
        return self.backbones()

    def shardable(self) -> Iterable[nn.Module]:
        """Return the modules whose weights may be gathered one at a time if they are sharded over processes.

        They must be called as modules, none is inside another, and nothing outside them may use their weights.
        """
        models = [backbone.model for backbone in self.backbones()]
        return [model.get_submodule(name) for model in models for name in block_names(model)]

    def parameter_group(self, name: str) -> str:
        """Return the label of the group that the parameter of that name belongs to."""
        return "main"

    def group_scales(self, progress: Progress) -> GroupScales:
        """Return factors on learning rate and weight decay per group label; labels left out keep 1."""
        return {}

    def before_step(self, progress: Progress) -> None:
        """Act between the backward pass and the optimizer step: freeze layers, clip by the method's own rule."""

    def after_step(self, progress: Progress) -> None:
        """Act after a real optimizer step; `progress.step` counts that step. Update teachers and centres."""

    def chance_levels(self) -> dict[str, float]:
        """Return, per loss, the value of predictions that ignore the images; losses may be left out."""
        return {}

    def diagnostics(self) -> dict[str, Tensor]:
        """Return scalars about the objective's health; they stay on the device until they are logged."""
        return {}


class Term(nn.Module, ABC):
    """An extra loss on the features of one supervised forward pass."""

    request: FeatureRequest = FeatureRequest()

    def compilable(self) -> Iterable[nn.Module]:
        """Return the modules that `torch.compile` may compile in place."""
        return []

    @abstractmethod
    def forward(self, features: Features, batch: Batch, progress: Progress) -> Tensor:
        """Return the unweighted loss, a scalar."""

    def chance_level(self) -> float | None:
        """Return the loss of the best predictions that ignore the images; None if unknown."""
        return None

    @abstractmethod
    def weight(self, progress: Progress) -> float:
        """Return the weight of the loss at this point of the run."""
