"""Adds weights to this machine: checks the weights by loading them into their model, and stores them by SHA-256.

An archive of weights, for other machines, is an uncompressed zip with tensors, card, licence and checksums.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors.torch
import torch
from PIL import Image
from safetensors import SafetensorError
from sklearn.datasets import load_sample_images
from torch import Tensor

from paucal.backbones.empty_models import build_empty
from paucal.backbones.layers import classifier_modules, is_inside
from paucal.backbones.names import create_model, require_model_name, timm_config
from paucal.backbones.weights.checkpoints import WeightsPreprocessing, checkpoint_preprocessing, timm_preprocessing
from paucal.backbones.weights.load_report import LoadReport
from paucal.backbones.weights.start import StartWeights, read_complete_state
from paucal.models.preprocessing import Preprocessing
from paucal.models.weights.store import (
    MAX_CARD_BYTES,
    MAX_LICENCE_BYTES,
    AddedWeights,
    file_digest,
    parse_card,
    require_short_text,
    weights_folder,
    write_card,
)
from paucal.reading import parse_json, require_regular
from paucal.runs.weights import MAX_WEIGHTS_BYTES, save_weights
from paucal.types import UserError, height_and_width

CROPS_PER_PHOTO = 4  # number of crops of each sample photograph
DEFAULT_SIDE = 224  # side in pixels of the input of models whose image size timm does not know
WEIGHTS_ENTRY, CARD_ENTRY, LICENCE_ENTRY = "weights.safetensors", "card.json", "LICENCE.txt"
ARCHIVE_SUFFIX = ".weights.zip"  # end of an archive's file name
_MAX_ENTRY_BYTES = {WEIGHTS_ENTRY: MAX_WEIGHTS_BYTES, CARD_ENTRY: MAX_CARD_BYTES, LICENCE_ENTRY: MAX_LICENCE_BYTES}
_ENTRY_DATE = (1980, 1, 1, 0, 0, 0)  # fixed, so that the same weights give the same archive


@dataclass(frozen=True)
class CheckedWeights:
    """Weights that were loaded into their model without problems."""

    state: Mapping[str, Tensor]
    name: str  # timm name of the model
    licence: str  # name of the licence
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
    """Check that weights cover all parameters of a model, by loading them into the model and running it once.

    If `image_input` is None, the weights need timm's preprocessing if the name has a tag, else the preprocessing of the
    program that wrote the file.
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
    """Load a state dict into the model, and return its (N, K) outputs for crops of two sample photographs.

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


def is_archive(path: Path) -> bool:
    """Return whether a file is an archive of weights; a damaged file is recognised by its suffix."""
    try:
        with zipfile.ZipFile(require_regular(path)) as archive:
            return {CARD_ENTRY, WEIGHTS_ENTRY} <= set(archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError):
        return path.name.endswith(ARCHIVE_SUFFIX)


def write_archive(file: BinaryIO, weights: CheckedWeights) -> None:
    """Write an archive of weights, which must have a licence text."""
    tensors = {name: value.contiguous().clone() for name, value in weights.state.items()}
    tensor_bytes = safetensors.torch.save(tensors, metadata={"format": "pt"})
    card = {**asdict(weights.card(hashlib.sha256(tensor_bytes).hexdigest(), len(tensor_bytes))), "licence_text": ""}
    licence_bytes = weights.licence_text.encode()
    card["licence_sha256"] = hashlib.sha256(licence_bytes).hexdigest()
    card_bytes = json.dumps(card, indent=1, ensure_ascii=False).encode()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in ((CARD_ENTRY, card_bytes), (LICENCE_ENTRY, licence_bytes), (WEIGHTS_ENTRY, tensor_bytes)):
            archive.writestr(zipfile.ZipInfo(name, _ENTRY_DATE), data)


def read_archive(path: Path) -> CheckedWeights:
    """Read an untrusted archive, and check its weights by loading them into their model."""
    try:
        with zipfile.ZipFile(require_regular(path)) as archive:
            contents = {}
            for name, max_bytes in _MAX_ENTRY_BYTES.items():
                entry = archive.getinfo(name)
                # Compressed entries are refused, since they could unpack to gigabytes.
                if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > min(max_bytes, path.stat().st_size):
                    raise UserError(
                        f"{str(path)!r} was not written by 'paucal weights pack', since its {name} is compressed or "
                        "too large: pack the weights again."
                    )
                contents[name] = archive.read(entry)
    except (zipfile.BadZipFile, KeyError, EOFError, OSError, NotImplementedError, RuntimeError) as problem:
        raise UserError(
            f"{str(path)!r} is damaged, truncated or not an archive of weights: copy the archive again."
        ) from problem
    try:
        card_values = parse_json(contents[CARD_ENTRY])
        licence_digest = card_values.pop("licence_sha256")
        card = parse_card(json.dumps(card_values))
        image_input = WeightsPreprocessing.from_dict(card.input)
        Preprocessing.from_image_input((1, 1), image_input)  # raises an error for values out of range
    except (ValueError, TypeError, AttributeError, KeyError) as problem:
        raise UserError(f"{str(path)!r} has an invalid card ({problem}): pack the weights again.") from problem
    digests = [hashlib.sha256(contents[name]).hexdigest() for name in (WEIGHTS_ENTRY, LICENCE_ENTRY)]
    if digests != [card.sha256, licence_digest]:
        raise UserError(
            f"{str(path)!r} is damaged: its content does not match the checksums in its card; copy the archive again."
        )
    try:
        tree, text = safetensors.torch.load(contents[WEIGHTS_ENTRY]), contents[LICENCE_ENTRY].decode()
    except (SafetensorError, UnicodeDecodeError, ValueError) as problem:
        raise UserError(
            f"the weights in {str(path)!r} are not a valid safetensors file ({problem}): pack the weights again."
        ) from problem
    return check_weights(StartWeights(tree, card.source), card.name, card.licence, text, image_input)
