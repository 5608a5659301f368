"""Loading a run's saved model of any task: read `model.json`, build the network from it and load its weights."""

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


def read_card(run: RunFolder, kind: type[C] = ModelCard) -> C:
    """Read the card of the model that a run has saved.

    Args:
        run: Folder of the run.
        kind: Class of the card; by default that of a model with one network: a classifier, a backbone alone, or one
            that predicts numbers.
    """
    if run.last.exists() and not run.card.exists():
        raise UserError(f"{str(run.path)!r} was stopped before it saved a model: resume it with --resume first.")
    return card_of_stored(run.read_json(run.card.name), kind)


def card_of_stored(stored: Mapping[str, Any], kind: type[C] = ModelCard) -> C:
    """Read a card from the content of a `model.json`; see `read_card`."""
    card_kind: Any = RegressionCard if kind is ModelCard and stored.get("task") == REGRESSION else kind
    return card_kind.from_dict(stored)


def stored_card(run: RunFolder | None, kind: type[C] = ModelCard) -> C | None:
    """Read the card of a resumed run; None for a new run, or if no card is stored yet."""
    return None if run is None or not run.card.is_file() else read_card(run, kind)


def load_saved(
    run: str | os.PathLike[str] | RunFolder, kind: type[C], device: torch.device | str = "cpu"
) -> tuple[nn.Module, C, torch.device]:
    """Load the best model of a run, in evaluation mode.

    Returns:
        The network, its card, and the device as torch names it.
    """
    folder = run if isinstance(run, RunFolder) else open_model_folder(path_text(run, "the run"))
    target = usable_device(device)
    card = read_card(folder, kind)
    module = card.build()
    try:
        module.load_state_dict(read_weights(folder.weights))
    except RuntimeError as problem:
        reason = str(problem).split("\n")[1].strip() if "\n" in str(problem) else str(problem)
        raise UserError(
            f"{str(folder.weights)!r} does not fit its model.json ({reason[:200]}): restore both, or train again."
        ) from problem
    return module.eval().to(target), card, target
