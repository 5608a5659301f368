"""Detect images that differ from a run's training images, with a detector that is fitted once and stored in the run."""

import hashlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from paucal.data.images import evenly_spaced
from paucal.data.loader import make_eval_loader
from paucal.data.splits.split_csv import read_split
from paucal.evaluation.familiarity import FamiliarityDetector, fit_familiarity
from paucal.evaluation.predictions import predict_in_order
from paucal.models.features import ClassifierInputExtractor, linear_classifier
from paucal.models.trained import TrainedModel
from paucal.reading import require_regular
from paucal.runner.console import Console
from paucal.runner.images import open_again
from paucal.runs import RunFolder
from paucal.types import UserError
from paucal.writing import write_atomically

FILE_NAME = "familiar.safetensors"  # name of the file in the run folder that stores the detector
MAX_TRAIN_IMAGES, MAX_HELD_OUT_IMAGES = 2000, 500  # if the run has more images, evenly spaced images are used
MAX_BYTES = 256 << 20  # maximum size of a stored detector; larger files are not read
BATCH_SIZE = 32


def load_familiarity(run: RunFolder, model: TrainedModel, console: Console) -> FamiliarityDetector | None:
    """Return a detector of images that differ from the run's training images, stored in the run or fitted now.

    If no detector can be fitted, a note with the reason is printed and None is returned.
    """
    if linear_classifier(model.module) is None:
        console.say("note: this model has no linear classifier, so images are not compared with the training images")
        return None
    key = _weights_key(run)
    stored_detector = _read_stored(run.path / FILE_NAME, key)
    if stored_detector is not None:
        return stored_detector
    try:
        familiarity = _fit_to_run(run, model, console)
    except (UserError, OSError) as problem:
        console.say(f"note: images cannot be compared with the training images: {problem}")
        return None
    if familiarity is not None:
        tensors = {"features": familiarity.features.contiguous(), "limit": torch.tensor([familiarity.limit])}
        content = safetensors.torch.save(tensors, metadata={"weights": key})
        with suppress(OSError):  # the folder may not be writable
            write_atomically(run.path / FILE_NAME, lambda file: file.write(content))
    return familiarity


def features_of(reader: ClassifierInputExtractor, model: TrainedModel, batch: Tensor) -> Tensor:
    """Return the (B, D) float32 features of preprocessed images at the classifier's input, on the CPU."""
    with torch.inference_mode():
        return reader(batch.to(model.device)).float().cpu()


def _fit_to_run(run: RunFolder, model: TrainedModel, console: Console) -> FamiliarityDetector | None:
    with console.progress("reading images") as advance:
        images = open_again(run, advance, decode_options=model.card.preprocessing.decode_options)
    split = read_split(run.split, images)
    train, held_out = split.indices("train"), np.concatenate([split.indices("val"), split.indices("test")])
    train = train[evenly_spaced(len(train), MAX_TRAIN_IMAGES)]
    held_out = held_out[evenly_spaced(len(held_out), MAX_HELD_OUT_IMAGES)]
    if not len(train) or not len(held_out):
        console.say("note: the run has no held-out images, so images are not compared with the training images")
        return None
    rows, inputs = np.concatenate([train, held_out]), ClassifierInputExtractor(model.module)
    try:
        with console.progress("comparing with the training images") as advance:
            loader = make_eval_loader(images, rows, model.card.preprocessing.transform(), BATCH_SIZE)
            features = predict_in_order(inputs, loader, rows, model.device, advance)
    finally:
        inputs.close()
    return fit_familiarity(features[: len(train)], features[len(train) :])


def _weights_key(run: RunFolder) -> str:
    """Return a hash of the run's weights, which shows whether stored features were computed with these weights."""
    with run.weights.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_stored(path: Path, key: str) -> FamiliarityDetector | None:
    """Return the stored detector; None if the file is missing, damaged, or for a model with other weights."""
    try:
        if require_regular(path).stat().st_size > MAX_BYTES:
            return None
        with safetensors.safe_open(path, "pt") as file:
            if (file.metadata() or {}).get("weights") != key:
                return None
            features, limit = file.get_tensor("features"), file.get_tensor("limit")
    except (OSError, SafetensorError, UserError):
        return None
    if features.ndim != 2 or not len(features) or limit.numel() != 1:
        return None
    return FamiliarityDetector(features.float(), float(limit))
