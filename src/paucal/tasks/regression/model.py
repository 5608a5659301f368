"""The trained model of a regression, without imports that would slow down `paucal predict`."""

import os

import torch

from paucal.models.regression import RegressionCard
from paucal.models.trained import TrainedModel, load_saved
from paucal.runs import RunFolder


def load_regressor(run: str | os.PathLike[str] | RunFolder, device: torch.device | str = "cpu") -> TrainedModel:
    """Load the model of a run with `--target`; `probabilities` returns (N, 1) predicted values in the target's unit."""
    return TrainedModel(*load_saved(run, RegressionCard, device))


def card_of(model: TrainedModel) -> RegressionCard:
    """Return the stored description (`RegressionCard`) of a regression model."""
    assert isinstance(model.card, RegressionCard)
    return model.card
