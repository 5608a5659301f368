"""Check weights by loading them, and store them by content."""

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
from paucal.backbones.names import create_model, require_name, timm_config
from paucal.backbones.weights.inputs import ImageInput, input_of_file, input_of_timm
from paucal.backbones.weights.load_report import LoadReport
from paucal.backbones.weights.start import StartWeights, read_complete_state
from paucal.models.preprocessing import Preprocessing
from paucal.models.weights.store import AddedWeights, file_digest, require_words, weights_folder, write_card
from paucal.runs.weights import save_weights
from paucal.types import UserError, height_and_width

VIEWS = 4  # crops of each sample photograph that outputs are compared on
USUAL_SIDE = 224  # pixels, for models without an image size in timm


@dataclass(frozen=True)
class CheckedWeights:
    """Weights that were loaded into their model, and what is known about them."""

    state: Mapping[str, Tensor]
    name: str
    licence: str
    source: str
    input: ImageInput
    report: LoadReport
    licence_text: str = ""

    @property
    def classes(self) -> int:
        """Number of outputs of the classifier; 0 without one."""
        names = classifier_modules(build_empty(self.name, {}))
        return next((len(value) for name, value in self.state.items() if is_inside(name, names)), 0)

    def card(self, digest: str, size: int) -> AddedWeights:
        """Return the card for the tensors in a file of this SHA-256 and size in bytes."""
        fed = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self.input).items()}
        return AddedWeights(self.name, self.licence, self.source, digest, size, self.classes, fed, self.licence_text)


def checked_licence(name: str, licence: str) -> str:
    """Return a licence, as it is to be stored."""
    require_name(name)
    try:
        licence = require_words(licence, "licence")
    except ValueError as problem:
        raise UserError(f"--licence: {problem}, such as Apache-2.0.") from None
    config = timm_config(name)
    timm_licence = config.license if config is not None and "." in name else None
    if timm_licence and timm_licence.lower() != "unknown" and timm_licence.lower() != licence.lower():
        raise UserError(
            f"the licence of {name} is given as {licence!r}, but timm states {timm_licence!r}: give that with "
            "--licence, or an archive with it."
        )
    return licence


def check_weights(
    weights: StartWeights, name: str, licence: str, licence_text: str = "", fed: ImageInput | None = None
) -> CheckedWeights:
    """Load weights into their model and apply it once.

    Args:
        weights: Weights of exactly this model.
        name: timm name of the model.
        licence: Name of their licence.
        licence_text: Text of the licence; "" if unknown.
        fed: Preprocessing of images; None for the file's own, or else timm's.
    """
    licence = checked_licence(name, licence)
    state, report = read_complete_state(build_empty(name, {}), weights)
    if fed is None:
        fed = input_of_file(report.program, name) if "." not in name else input_of_timm(name)
    Preprocessing.as_tested((1, 1), fed)  # raises an error for values out of range
    checked_weights = CheckedWeights(state, name, licence, weights.source, fed, report, licence_text)
    if not torch.isfinite(outputs(checked_weights, checked_weights.state)).all():
        raise UserError(f"{weights.source} gives outputs that are not finite numbers: choose another file.")
    return checked_weights


@torch.inference_mode()
def outputs(weights: CheckedWeights, state: Mapping[str, Tensor]) -> Tensor:
    """Return (N, K) outputs for crops of two photographs: logits, or features where there is no classifier."""
    with torch.random.fork_rng(devices=[]):
        model = create_model(weights.name, num_classes=weights.classes).eval()
    model.load_state_dict({key: value.float() if value.is_floating_point() else value for key, value in state.items()})
    config: Any = timm_config(weights.name)
    size = height_and_width(USUAL_SIDE if config is None else config.input_size[1:])
    transform = Preprocessing.as_tested(size, weights.input).transform()
    views = []
    for photo in map(Image.fromarray, load_sample_images().images):
        for left in np.linspace(0, photo.width - photo.height, VIEWS).astype(int).tolist():
            views.append(transform(photo.crop((left, 0, left + photo.height, photo.height)))[0])
    return model(torch.stack(views)).flatten(1)


def add_checked(weights: CheckedWeights) -> AddedWeights:
    """Store weights in the user's cache folder, named by their content."""
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
    """Return weights with floating-point tensors of 16 bits."""
    state = {
        name: value.half() if value.dtype in (torch.float32, torch.float64, torch.bfloat16) else value
        for name, value in weights.state.items()
    }
    return replace(weights, state=state)
