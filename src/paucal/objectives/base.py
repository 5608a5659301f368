"""The interface between a training method and the trainer.

The trainer uses an objective through this interface only, so a new method needs no change in `training/`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.forward_hooks import block_names
from paucal.types import Batch, DataRequest, FeatureRequest, Features, GroupScales, LossTerms, Progress


class Objective(nn.Module, ABC):
    """A training method as a module: it has the method's networks, heads, teachers and state, and computes its losses.

    All state that must survive from one step to the next is a parameter or a buffer, so that the state dict has all
    that a checkpoint needs. `forward` takes random numbers from the device's global generator, which the trainer seeds
    before every forward pass, or from generators that are seeded from `progress`.
    """

    data_request: DataRequest = DataRequest()
    decays_tables: bool = False  # whether weight decay also applies to tokens and tables, see `training.optimizers`

    @abstractmethod
    def forward(self, batch: Batch, progress: Progress) -> LossTerms:
        """Return the unweighted losses of a batch by name, and their weights."""

    @abstractmethod
    def deployable(self) -> nn.Module:
        """Return the module that is saved as the trained model; the moving average is of its weights."""

    @abstractmethod
    def backbones(self) -> Sequence[FeatureBackbone]:
        """Return the backbones that the run trains or that average trained ones, the deployed backbone first.

        Initial weights are loaded into these; they are described to the user, compiled, and sharded over processes. A
        frozen network, such as a guide, is not one of them.
        """

    def compilable(self) -> Iterable[nn.Module]:
        """Return the modules that `torch.compile` may compile in place."""
        return self.backbones()

    def shardable(self) -> Iterable[nn.Module]:
        """Return the modules whose weights may be gathered one module at a time if they are sharded over processes.

        They must be used by calling the module, none may be inside another, and no other code may use their weights.
        """
        models = [backbone.model for backbone in self.backbones()]
        return [model.get_submodule(name) for model in models for name in block_names(model)]

    def parameter_group(self, name: str) -> str:
        """Return the label of the group of the parameter with this name; see `group_scales`."""
        return "main"

    def group_scales(self, progress: Progress) -> GroupScales:
        """Return the factors of the learning rate and the weight decay of each group; 1 for labels that are missing."""
        return {}

    def before_step(self, progress: Progress) -> None:
        """Change gradients between the backward pass and the optimizer step, for example to freeze or to clip."""

    def after_step(self, progress: Progress) -> None:
        """Update state such as teachers and centres after an optimizer step, which `progress.step` already counts."""

    def chance_levels(self) -> dict[str, float]:
        """Return by name the value that each loss has for predictions that ignore the images; some may be missing."""
        return {}

    def diagnostics(self) -> dict[str, Tensor]:
        """Return metrics that help to detect failures such as collapse, as scalars on the device."""
        return {}


class Term(nn.Module, ABC):
    """An extra loss, such as DrLoc, on the features of a supervised method's forward pass.

    `request` says which features `forward` gets.
    """

    request: FeatureRequest = FeatureRequest()

    def compilable(self) -> Iterable[nn.Module]:
        """Return the modules that `torch.compile` may compile in place."""
        return []

    @abstractmethod
    def forward(self, features: Features, batch: Batch, progress: Progress) -> Tensor:
        """Return the unweighted loss, a scalar."""

    def chance_level(self) -> float | None:
        """Return the loss of the best predictions that ignore the images; None if it is unknown."""
        return None

    @abstractmethod
    def weight(self, progress: Progress) -> float:
        """Return the weight of the loss at this step."""
