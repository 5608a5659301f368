"""The card of a model that predicts a number, and how such a model is loaded."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.spec import BackboneSpec
from paucal.models.card import ModelCard
from paucal.models.preprocessing import is_number
from paucal.models.saved import load_saved
from paucal.models.tasks import REGRESSION
from paucal.models.trained import TrainedModel
from paucal.objectives.base import Objective
from paucal.runs import RunFolder
from paucal.types import Batch, LossTerms, Progress, UserError

LEVEL = 0.9  # share of images whose number an interval is made to hold


@dataclass(frozen=True)
class RegressionCard(ModelCard):
    """The `model.json` of a network whose only output is a number in the unit of its target.

    `classes` has the name of the target alone.

    Attributes:
        half_width: Half the width of 90 % prediction intervals; infinite if there were too few images for one.
        mean: Mean of the target over the training images.

    Raises:
        UserError: A value is out of range.
    """

    task: ClassVar[str] = REGRESSION
    formats: ClassVar[tuple[int, ...]] = (1,)

    half_width: float = math.inf
    mean: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_number(self.mean) and (self.half_width == math.inf or is_number(self.half_width))):
            raise UserError("a model card has a mean or half_width that is no number: restore it.")

    @property
    def target(self) -> str:
        """Name of the column that is predicted."""
        return self.classes[0]

    def shares(self, logits: Tensor) -> Tensor:
        """Return the (N, 1) predicted numbers, which are the network's outputs."""
        return logits.float()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        half = None if self.half_width == math.inf else self.half_width
        return {**super().to_dict(), "task": self.task, "half_width": half, "mean": self.mean}

    @classmethod
    def _own_values(cls, stored: Mapping[str, Any], spec: BackboneSpec) -> tuple[int, dict[str, Any]]:
        half = stored["half_width"]
        return spec.num_classes, {
            "half_width": math.inf if half is None else half,
            "mean": stored["mean"],
            "reads_stages": stored.get("reads_stages", False) is True,
        }


class FrozenNetwork(Objective):
    """A network that is not trained; the regression is put into its classifier of one output.

    Args:
        backbone: Backbone with one output.
    """

    def __init__(self, backbone: FeatureBackbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, batch: Batch, progress: Progress) -> LossTerms:
        """There is no loss: the network is not trained."""
        raise NotImplementedError("a regression on frozen features trains no network")

    def deployable(self) -> nn.Module:
        """Return the timm model."""
        return self.backbone.model

    def backbones(self) -> list[FeatureBackbone]:
        """Return the backbone."""
        return [self.backbone]


def load_regressor(run: str | os.PathLike[str] | RunFolder, device: torch.device | str = "cpu") -> TrainedModel:
    """Load the model of a run with `--target`; its `probabilities` are (N, 1) numbers in the unit of the target.

    Raises:
        UserError: There is no such run, or its model is for another task.
    """
    return TrainedModel(*load_saved(run, RegressionCard, device))


def card_of(model: TrainedModel) -> RegressionCard:
    """Return the card of a model that predicts numbers."""
    assert isinstance(model.card, RegressionCard)
    return model.card
