"""Trained models: loading the model of a run for any task, and classifiers and regression models with preprocessing."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from paucal.data.arguments import list_images, path_text
from paucal.data.channels.decoding import convert_image
from paucal.models.card import ModelCard
from paucal.models.regression import RegressionCard
from paucal.models.tasks import REGRESSION
from paucal.runs import RunFolder, open_model_folder
from paucal.runs.weights import read_weights, save_weights
from paucal.types import UserError

C = TypeVar("C", bound=ModelCard)
# Devices that models run on. Torch accepts further devices, such as "meta", which computes no values.
DEVICES = ("cpu", "cuda", "mps")


def read_card(run: RunFolder, card_class: type[C] = ModelCard) -> C:
    """Read the card of a run's model; without a `card_class`, a regression model gives a `RegressionCard`."""
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


def usable_device(device: torch.device | str) -> torch.device:
    """Return the torch device, with its index if it has one; raise a UserError if the device cannot be used."""
    with suppress(RuntimeError, AssertionError, NotImplementedError):  # torch's errors for missing devices
        usable = torch.empty(0, device=device).device
        if usable.type in DEVICES:
            return usable
    raise UserError(f"the device {str(device)!r} cannot be used on this machine: try cpu.")


class MirrorAveraged(nn.Module):
    """Averages the logits of a network for an image and for its mirror image, in twice the time."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, K) logits of (B, C, H, W) images."""
        return (self.module(images) + self.module(torch.flip(images, (-1,)))) / 2


class LowerPrecision(nn.Module):
    """Runs a network under autocast with a lower precision such as `torch.bfloat16`, and returns float32 logits."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.dtype = module, dtype

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, K) logits of (B, C, H, W) images."""
        with torch.autocast(images.device.type, dtype=self.dtype):
            return self.module(images).float()


@dataclass(frozen=True)
class TrainedModel:
    """A trained model for classification or regression, with its preprocessing and class names.

    Attributes:
        module: The timm model, in evaluation mode.
        card: Architecture, classes and preprocessing of the model.
        device: Device of the model.
    """

    module: nn.Module
    card: ModelCard
    device: torch.device

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the probabilities."""
        return self.card.classes

    def require_classifier(self) -> "TrainedModel":
        """Return the model unchanged.

        Raises:
            UserError: the model is a pre-trained backbone without a classifier, or a regression model.
        """
        if isinstance(self.card, RegressionCard):
            raise UserError(
                f"this model predicts a number ({self.card.target!r}), but a classifier is needed here: give a run of "
                "'paucal train' without --target."
            )
        if not self.classes:
            raise UserError(
                f"the model {self.card.backbone.name} has no classifier, as it was pre-trained without labels: "
                "fine-tune it with 'paucal train --init', or evaluate its features with 'paucal eval --protocol knn'."
            )
        return self

    def mirrored(self) -> "TrainedModel":
        """Return a model that averages the logits for an image and its mirror image, in twice the time."""
        return replace(self, module=MirrorAveraged(self.module))

    def at_precision(self, dtype: torch.dtype | None) -> "TrainedModel":
        """Return a model that runs under autocast with this dtype; for None, the model unchanged.

        Raises:
            UserError: the model is a regression model, whose predictions would be rounded to two or three digits.
        """
        if dtype is None:
            return self
        if isinstance(self.card, RegressionCard):
            raise UserError(
                "--precision: 16 bits would round predicted numbers to two or three digits; remove --precision."
            )
        return replace(self, module=LowerPrecision(self.module, dtype))

    @torch.inference_mode()
    def probabilities(self, images: Sequence[Image.Image | np.ndarray]) -> Tensor:
        """Classify PIL images, or (H, W) or (H, W, C) arrays with the model's number of channels.

        Returns (N, K) float32 probabilities on the CPU. Rows sum to 1, except for a multi-label model, which has an
        independent probability for each class. A model that predicts a number returns (N, 1) outputs, see
        `RegressionCard.read`. Images are rotated by their EXIF tag and read like the training images, see
        `decode_image`.

        Raises:
            UserError: the model has no classifier, or `images` contains something other than images.
            ValueError: there is no image, or an image has pixels of unknown range or another number of channels.
        """
        if not isinstance(self.card, RegressionCard):
            self.require_classifier()
        return self.card.probabilities(self.module(self.prepared(images))).cpu()

    def prepared(self, images: Sequence[Image.Image | np.ndarray]) -> Tensor:
        """Return the model's (N, C, H, W) input for images on its device; see `probabilities`.

        Raises:
            UserError: `images` contains something other than images.
            ValueError: there is no image, or an image has pixels of unknown range or another number of channels.
        """
        image_list = list_images(images)
        if not image_list:
            raise ValueError("there are no images to classify")
        transform, options = self.card.preprocessing.transform(), self.card.preprocessing.decode_options
        return torch.stack([transform(convert_image(image, options))[0] for image in image_list]).to(self.device)

    def classify(self, images: Iterable[Image.Image], batch_size: int = 64) -> Iterator[Tensor]:
        """Yield (K,) probabilities for each image; images are read and classified in batches."""
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, expected at least 1")
        iterator = iter(images)
        while batch := list(islice(iterator, batch_size)):
            yield from self.probabilities(batch)


def save_trained(run: RunFolder, module: nn.Module, card: ModelCard) -> None:
    """Save a model in a run folder, as `model.safetensors` and `model.json`."""
    save_weights(run.weights, module.state_dict())
    run.write_json(run.card.name, card.to_dict())


def load_trained(run: str | os.PathLike[str] | RunFolder, device: torch.device | str = "cpu") -> TrainedModel:
    """Load the model that a run has saved."""
    return TrainedModel(*load_saved(run, ModelCard, device))
