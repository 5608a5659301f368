"""Loads the model of a run, for any task: reads `model.json`, builds the network and loads the weights."""

import os
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from paucal.data.arguments import path_text
from paucal.models.card import ModelCard
from paucal.models.devices import usable_device
from paucal.models.regression import RegressionCard
from paucal.models.tasks import REGRESSION
from paucal.runs import RunFolder, open_model_folder
from paucal.runs.weights import read_weights
from paucal.types import UserError

C = TypeVar("C", bound=ModelCard)


def read_card(run: RunFolder, card_class: type[C] = ModelCard) -> C:
    """Read the card of a run's model; as `ModelCard`, the card of a regression model is a `RegressionCard`."""
    if run.last.exists() and not run.card.exists():
        raise UserError(f"{str(run.path)!r} was stopped before it saved a model: resume the run with --resume first.")
    return card_from_dict(run.read_json(run.card.name), card_class)


def card_from_dict(stored: Mapping[str, Any], card_class: type[C] = ModelCard) -> C:
    """Build a card from the content of a `model.json`; see `read_card`."""
    is_regression = card_class is ModelCard and stored.get("task") == REGRESSION
    class_to_build: Any = RegressionCard if is_regression else card_class
    return class_to_build.from_dict(stored)


def stored_card(run: RunFolder | None, card_class: type[C] = ModelCard) -> C | None:
    """Read the card of a run's model; None if `run` is None or has not saved a model yet."""
    return None if run is None or not run.card.is_file() else read_card(run, card_class)


def load_saved(
    run: str | os.PathLike[str] | RunFolder, card_class: type[C], device: torch.device | str = "cpu"
) -> tuple[nn.Module, C, torch.device]:
    """Load the network that a run has saved, in evaluation mode; return the network, its card, and its device."""
    folder = run if isinstance(run, RunFolder) else open_model_folder(path_text(run, "the run"))
    torch_device = usable_device(device)
    card = read_card(folder, card_class)
    module = card.build()
    try:
        module.load_state_dict(read_weights(folder.weights))
    except RuntimeError as problem:
        reason = str(problem).split("\n")[1].strip() if "\n" in str(problem) else str(problem)
        raise UserError(
            f"{str(folder.weights)!r} does not fit its model.json ({reason[:200]}): restore both files, or train again."
        ) from problem
    return module.eval().to(torch_device), card, torch_device
