"""Trained models for classification and regression, with their preprocessing and class names."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from paucal.data.arguments import list_images
from paucal.data.channels.decoding import convert_image
from paucal.models.card import ModelCard
from paucal.models.regression import RegressionCard
from paucal.models.saved import load_saved
from paucal.runs import RunFolder
from paucal.runs.weights import save_weights
from paucal.types import UserError


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


def unwrap(module: nn.Module) -> nn.Module:
    """Return the network inside wrappers for mirroring and precision."""
    while isinstance(module, MirrorAveraged | LowerPrecision):
        module = module.module
    return module


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
        transform, reading = self.card.preprocessing.transform(), self.card.preprocessing.decode_options
        return torch.stack([transform(convert_image(image, reading))[0] for image in image_list]).to(self.device)

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
    """Load the model that a run has saved.

    Raises:
        UserError: the run does not exist, has not saved a model yet, or has files that do not belong together; or the
            device cannot be used.

    Example:
        >>> model = load_trained("runs/1")  # doctest: +SKIP
        >>> model.probabilities([Image.open("photo.jpg")])  # doctest: +SKIP
        tensor([[0.0312, 0.9688]])
    """
    return TrainedModel(*load_saved(run, ModelCard, device))
