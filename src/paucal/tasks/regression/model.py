"""The network of a regression, and the function that loads a trained regression."""

import os

import torch
from torch import nn

from paucal.backbones.features import FeatureBackbone
from paucal.models.regression import RegressionCard
from paucal.models.saved import load_saved
from paucal.models.trained import TrainedModel
from paucal.objectives.base import Objective
from paucal.runs import RunFolder
from paucal.types import Batch, LossTerms, Progress


class FrozenNetwork(Objective):
    """A frozen network whose one-output linear classifier receives the weights of the fitted regression."""

    def __init__(self, backbone: FeatureBackbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, batch: Batch, progress: Progress) -> LossTerms:
        """Raise an error: the network is not trained."""
        raise NotImplementedError("a regression on frozen features trains no network")

    def deployable(self) -> nn.Module:
        """Return the timm model."""
        return self.backbone.model

    def backbones(self) -> list[FeatureBackbone]:
        """Return the only backbone, in a list."""
        return [self.backbone]


def load_regressor(run: str | os.PathLike[str] | RunFolder, device: torch.device | str = "cpu") -> TrainedModel:
    """Load the model of a run with `--target`; `probabilities` returns (N, 1) predicted values in the target's unit.

    Raises:
        UserError: The run does not exist, or its model is for another task.
    """
    return TrainedModel(*load_saved(run, RegressionCard, device))


def card_of(model: TrainedModel) -> RegressionCard:
    """Return the stored description (`RegressionCard`) of a regression model."""
    assert isinstance(model.card, RegressionCard)
    return model.card
