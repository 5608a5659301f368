"""Adds weights to this machine: checks the weights by loading them into their model, and stores them by SHA-256."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor

from paucal.backbones.empty_models import build_empty
from paucal.backbones.layers import classifier_modules, is_inside
from paucal.backbones.names import create_model, require_model_name, timm_config
from paucal.backbones.weights.inputs import WeightsPreprocessing, checkpoint_preprocessing, timm_preprocessing
from paucal.backbones.weights.load_report import LoadReport
from paucal.backbones.weights.start import StartWeights, read_complete_state
from paucal.models.preprocessing import Preprocessing
from paucal.models.weights.store import AddedWeights, file_digest, require_short_text, weights_folder, write_card
from paucal.runs.weights import save_weights
from paucal.types import UserError, height_and_width

CROPS_PER_PHOTO = 4  # number of crops of each sample photograph
DEFAULT_SIDE = 224  # side in pixels of the input of models whose image size timm does not know


@dataclass(frozen=True)
class CheckedWeights:
    """Weights that were loaded into their model without problems."""

    state: Mapping[str, Tensor]
    name: str  # timm name of the model
    licence: str  # name
    source: str  # origin of the weights, for messages
    input: WeightsPreprocessing  # preprocessing that the weights need
    report: LoadReport
    licence_text: str = ""  # text of the licence; "" if unknown

    @property
    def classes(self) -> int:
        """Number of outputs of the classifier; 0 if the model has no classifier."""
        names = classifier_modules(build_empty(self.name, {}))
        return next((len(value) for name, value in self.state.items() if is_inside(name, names)), 0)

    def card(self, digest: str, size: int) -> AddedWeights:
        """Return the card of the weights, given the SHA-256 `digest` and the `size` in bytes of the tensor file."""
        fields = asdict(self.input).items()
        input_values = {key: list(value) if isinstance(value, tuple) else value for key, value in fields}
        return AddedWeights(
            self.name, self.licence, self.source, digest, size, self.classes, input_values, self.licence_text
        )


def check_licence(name: str, licence: str) -> str:
    """Return a licence without surrounding space; raise a UserError if timm states another licence for the weights."""
    require_model_name(name)
    try:
        licence = require_short_text(licence, "licence")
    except ValueError as problem:
        raise UserError(f"--licence: {problem}, such as Apache-2.0.") from None
    config = timm_config(name)
    timm_licence = config.license if config is not None and "." in name else None
    if timm_licence and timm_licence.lower() != "unknown" and timm_licence.lower() != licence.lower():
        raise UserError(
            f"the licence of {name} is given as {licence!r}, but timm states {timm_licence!r}: give --licence "
            f"{timm_licence!r}, or use a weights archive whose metadata state this licence."
        )
    return licence


def check_weights(
    weights: StartWeights,
    name: str,
    licence: str,
    licence_text: str = "",
    image_input: WeightsPreprocessing | None = None,
) -> CheckedWeights:
    """Check weights by loading them into their model and running the model once.

    Args:
        weights: Weights for all parameters of the model.
        name: timm name of the model.
        licence: Name of the licence.
        licence_text: Text of the licence; "" if unknown.
        image_input: Preprocessing that the weights need. None means timm's preprocessing if the name has a tag, else
            the preprocessing of the program that wrote the file.
    """
    licence = check_licence(name, licence)
    state, report = read_complete_state(build_empty(name, {}), weights)
    if image_input is None:
        image_input = checkpoint_preprocessing(report.program, name) if "." not in name else timm_preprocessing(name)
    Preprocessing.from_image_input((1, 1), image_input)  # raises an error for values out of range
    checked_weights = CheckedWeights(state, name, licence, weights.source, image_input, report, licence_text)
    if not torch.isfinite(compute_outputs(checked_weights, checked_weights.state)).all():
        raise UserError(f"the model outputs NaN or infinite values with {weights.source}: choose another file.")
    return checked_weights


@torch.inference_mode()
def compute_outputs(weights: CheckedWeights, state: Mapping[str, Tensor]) -> Tensor:
    """Return the model's (N, K) outputs with a state dict for crops of two sample photographs.

    The outputs are logits, or features if the model has no classifier. `weights` gives the model and the preprocessing.
    """
    with torch.random.fork_rng(devices=[]):
        model = create_model(weights.name, num_classes=weights.classes).eval()
    model.load_state_dict({key: value.float() if value.is_floating_point() else value for key, value in state.items()})
    config: Any = timm_config(weights.name)
    size = height_and_width(DEFAULT_SIDE if config is None else config.input_size[1:])
    transform = Preprocessing.from_image_input(size, weights.input).transform()
    crops = []
    for photo in map(Image.fromarray, load_sample_images().images):
        for left in np.linspace(0, photo.width - photo.height, CROPS_PER_PHOTO).astype(int).tolist():
            crops.append(transform(photo.crop((left, 0, left + photo.height, photo.height)))[0])
    return model(torch.stack(crops)).flatten(1)


def add_checked(weights: CheckedWeights) -> AddedWeights:
    """Store weights with their card in the user's cache folder; the file of tensors is named by its SHA-256."""
    folder = weights_folder()
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".adding.{os.getpid()}.safetensors"
    try:
        save_weights(temporary, dict(weights.state))
        card = weights.card(file_digest(temporary), temporary.stat().st_size)
        temporary.replace(card.content)
    finally:
        temporary.unlink(missing_ok=True)
    write_card(card)
    return card


def to_half_precision(weights: CheckedWeights) -> CheckedWeights:
    """Return weights with all floating-point tensors converted to float16."""
    state = {
        name: value.half() if value.dtype in (torch.float32, torch.float64, torch.bfloat16) else value
        for name, value in weights.state.items()
    }
    return replace(weights, state=state)
