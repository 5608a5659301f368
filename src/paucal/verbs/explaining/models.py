"""The model that is explained, from what a person names it by."""

from pathlib import Path

import timm
import torch

from paucal.backbones.names import nearest_names
from paucal.backbones.spec import BackboneSpec
from paucal.backbones.weights.inputs import input_of_timm
from paucal.backbones.weights.start import start_from
from paucal.models.card import ModelCard
from paucal.models.devices import usable_device
from paucal.models.preprocessing import Preprocessing
from paucal.models.trained import TrainedModel, load_trained
from paucal.types import UserError
from paucal.verbs.run.start_weights import read_timm


def open_model(name: str, device: str) -> TrainedModel:
    """Open a run, or a timm model with its published weights.

    Raises:
        UserError: there is nothing of that name, or its weights cannot be had.
    """
    if Path(name).expanduser().exists():
        return load_trained(name, device)
    if not timm.is_model(name):
        near = ", ".join(nearest_names(name))
        raise UserError(
            f"{name!r} is neither a run folder nor a timm model{f' (near: {near})' if near else ''}: give a run, such "
            "as runs/1."
        )
    weights, config = read_timm(name, init=False), timm.get_pretrained_cfg(name)
    assert config is not None
    spec = BackboneSpec(name, config.num_classes, image_size=(config.input_size[1], config.input_size[2]))
    with torch.random.fork_rng(devices=[]):
        model = spec.build().model
    start_from(model, weights, weights.classes, head="keep")
    fed = input_of_timm(name)
    classes = weights.classes or tuple(f"class {number}" for number in range(config.num_classes))
    card = ModelCard(
        spec, classes, Preprocessing(spec.image_size, fed.crop_ratio, fed.interpolation, fed.mean, fed.std)
    )
    target = usable_device(device)
    return TrainedModel(model.eval().to(target), card, target)
