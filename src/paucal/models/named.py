"""Finds and opens a model by name: a run, a weights file, or a timm model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, overload

import timm
import torch

from paucal.backbones.names import nearest_model_names, timm_config
from paucal.backbones.weights.adapt import position_grid
from paucal.backbones.weights.start import StartWeights, start_from
from paucal.models.devices import usable_device
from paucal.models.published import published_card, read_timm
from paucal.models.trained import TrainedModel, load_trained
from paucal.runs import RunFolder, open_model_folder
from paucal.types import UserError, height_and_width


@overload
def find_named(name: str, setting: str = "") -> RunFolder | str: ...


@overload
def find_named(name: str, setting: str = "", *, files: Literal[True]) -> RunFolder | Path | str: ...


def find_named(name: str, setting: str = "", *, files: bool = False) -> RunFolder | Path | str:
    """Find out what the name of a model refers to; an existing path takes precedence over a timm model.

    Args:
        name: A run folder, a folder of runs (for the newest run), or the name of a timm model.
        setting: Flag with which the user gave the name, such as "--teacher", for error messages; "" for none.
        files: Whether the name may also be the path of a weights file.

    Returns:
        The run, the path of the weights file, or the name of the timm model.
    """
    path = Path(name).expanduser()
    if files and path.is_file():
        return path
    if path.exists():
        return open_model_folder(path)
    if timm.is_model(name):
        timm_config(name)  # raises a UserError for an unknown tag
        return name
    near_text = ", ".join(nearest_model_names(name))
    raise UserError(
        f"{setting and f'{setting}: '}{name!r} is neither a run folder{', nor a weights file,' if files else ''} nor a "
        f"timm model{f' (similar: {near_text})' if near_text else ''}: give a run such as runs/1,"
        f"{' a weights file,' if files else ''} or a model that 'paucal models' lists."
    )


def find_run(name: str) -> RunFolder | None:
    """Return the run in the folder with this path; None if there is no such folder."""
    path = Path(name).expanduser()
    return open_model_folder(path) if path.is_dir() else None


def open_named(
    name: str, device: torch.device | str = "cpu", image_size: Sequence[int] | None = None, setting: str = ""
) -> TrainedModel:
    """Open the model of a run, or a timm model with its published weights; see `find_named` for `name` and `setting`.

    `image_size` is the side or (height, width) in pixels of the model's input; None for the model's default.
    """
    run_or_name, torch_device = find_named(name, setting), usable_device(device)
    if isinstance(run_or_name, RunFolder):
        trained = load_trained(run_or_name, device)
        card = trained.card
        if image_size is None or height_and_width(image_size) == card.backbone.image_size:
            return trained
        spec = replace(card.backbone, image_size=height_and_width(image_size), pretrained=False)
        card = replace(card, backbone=spec, preprocessing=replace(card.preprocessing, image_size=spec.image_size))
        state, grid = dict(trained.module.state_dict()), position_grid(trained.module)
        weights = StartWeights(state, str(run_or_name.path), spec.name, card.classes, grid)
    else:
        card, weights = published_card(run_or_name, image_size), read_timm(run_or_name, init=False)
    with torch.random.fork_rng(devices=[]):
        module = card.build()
    start_from(module, weights, weights.classes, head="keep")
    return TrainedModel(module.eval().to(torch_device), card, torch_device)
