"""A segmentation model: its model card (stored in `model.json`), its network, and the prediction of masks."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from paucal.backbones.layout import Size
from paucal.backbones.spec import BackboneSpec
from paucal.data.channels.decoding import convert_image
from paucal.data.decode import DecodeOptions
from paucal.data.masks.coding import MaskCoding
from paucal.memory import read_available_memory
from paucal.models.card import CARD_FORMAT, ModelCard
from paucal.models.preprocessing import MAX_SIDE
from paucal.models.tasks import SEGMENTATION
from paucal.models.trained import load_saved
from paucal.runs import RunFolder
from paucal.tasks.segmentation.network import SegmentationNetwork, build_segmentation_network
from paucal.tasks.segmentation.windows import WindowOptions, pixel_probabilities, scale_to_fit
from paucal.types import UserError

MAX_WIDTH = 4096  # maximum number of channels of the head
PROBABILITY_COPIES = 5  # number of (K, H, W) tensors that are in memory at the same time for an image


@dataclass(frozen=True)
class HeadOptions:
    """The options of a segmentation head: its number of channels, and its dropout probability in training."""

    width: int
    dropout: float

    def __post_init__(self) -> None:
        if type(self.width) is not int or not 1 <= self.width <= MAX_WIDTH or not 0 <= float(self.dropout) < 1:
            raise UserError(
                f"model.json has a head of width {self.width!r} and dropout {self.dropout!r}, expected 1 to "
                f"{MAX_WIDTH} channels and a dropout from 0 to below 1: restore the file."
            )


@dataclass(frozen=True, kw_only=True)
class SegmentationCard(ModelCard):
    """The model card of a model that classifies every pixel; for the options of inference, see `WindowOptions`."""

    task: ClassVar[str] = SEGMENTATION
    formats: ClassVar[tuple[int, ...]] = (CARD_FORMAT,)

    head: HeadOptions
    coding: MaskCoding  # class of each value in the training masks; predicted masks have the same values
    overlap: float = 1 / 3
    whole: bool = False
    resize_to: Size | None = None

    def build(self, drop_path_rate: float | None = None) -> SegmentationNetwork:
        """Build the network with random weights, drawn from torch's global generator."""
        spec = replace(self.backbone, pretrained=False)
        return build_segmentation_network(spec, len(self.classes), self.head.width, self.head.dropout, drop_path_rate)

    def to_dict(self) -> dict[str, Any]:
        """Return the card as JSON values, as they are stored in `model.json`."""
        return {
            "task": self.task,
            "format": CARD_FORMAT,
            "backbone": self.backbone.to_dict(),
            "head": {"name": "upernet", "width": self.head.width, "dropout": self.head.dropout},
            "classes": list(self.classes),
            "masks": {"kind": self.coding.kind, "values": list(self.coding.values), "ignore": self.coding.ignore},
            "overlap": self.overlap,
            "whole": self.whole,
            "resize_to": None if self.resize_to is None else list(self.resize_to),
            "preprocessing": self.preprocessing.to_dict(),
        }

    @classmethod
    def _read_task_fields(cls, stored: Mapping[str, Any], spec: BackboneSpec) -> tuple[int, dict[str, Any]]:
        masks, overlap = stored["masks"], stored["overlap"]
        coding = MaskCoding(masks["kind"], tuple(masks["values"]), masks["ignore"])
        if not isinstance(overlap, float | int) or not 0 <= overlap <= 0.9:
            raise UserError(f"model.json has windows that overlap by {overlap!r}, expected 0 to 0.9: restore the file.")
        # An older `model.json` has neither "whole" nor "resize_to".
        is_whole, sides = stored.get("whole", False), stored.get("resize_to")
        is_pair = (
            isinstance(sides, list)
            and len(sides) == 2
            and all(type(side) is int and 8 <= side <= MAX_SIDE for side in sides)
        )
        if type(is_whole) is not bool or not (sides is None or is_pair):
            raise UserError(
                f"model.json has whole {is_whole!r} and resize_to {sides!r}, expected true or false, and null or two "
                f"sides from 8 to {MAX_SIDE} pixels: restore the file."
            )
        return coding.count, {
            "head": HeadOptions(stored["head"]["width"], stored["head"]["dropout"]),
            "coding": coding,
            "overlap": float(overlap),
            "whole": is_whole,
            "resize_to": None if sides is None else tuple(sides),
        }


@dataclass(frozen=True)
class SegmentationModel:
    """A trained model that segments images: its network in evaluation mode, its model card, and its device."""

    network: nn.Module
    card: SegmentationCard
    device: torch.device

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the probabilities."""
        return self.card.classes

    @property
    def decode_options(self) -> DecodeOptions:
        """Options for reading images at their original size, with the value range of the training images."""
        return replace(self.card.preprocessing.decode_options, side=None)

    def window_options(self, scales: tuple[float, ...] = (1.0,), mirror: bool = False) -> WindowOptions:
        """Return the inference options of the run with the given scales and mirroring."""
        card = self.card
        size = card.preprocessing.image_size
        return WindowOptions(size, card.overlap, scales, mirror, whole=card.whole, resize_to=card.resize_to)

    def probabilities(
        self, image: Image.Image | np.ndarray, scales: tuple[float, ...] = (1.0,), mirror: bool = False
    ) -> torch.Tensor:
        """Return the (K, H, W) float32 class probabilities of an image of any size, on the CPU.

        Args:
            image: PIL image, or array (H, W) or (H, W, 3).
            scales: Factors on the image's sides, over which probabilities are averaged.
            mirror: Whether to average also over the mirror image.

        Raises:
            UserError: The probabilities would not fit in memory.
        """
        normalisation = self.card.preprocessing.normalisation
        normalised = normalisation.apply(convert_image(image, self.decode_options)).to(self.device)
        height, width = normalised.shape[-2:]
        scale = max(scales) * scale_to_fit((height, width), self.card.resize_to)
        needed_bytes = round(4 * PROBABILITY_COPIES * len(self.classes) * height * width * max(scale, 1.0) ** 2)
        free_bytes = read_available_memory()
        if needed_bytes > free_bytes:
            raise UserError(
                f"an image of {height}x{width} pixels with {len(self.classes)} classes needs "
                f"{needed_bytes / 2**30:.3g} GiB, but only {free_bytes / 2**30:.3g} GiB are free: cut the image into "
                "tiles, or reduce its size."
            )
        return pixel_probabilities(self.network, normalised, self.window_options(scales, mirror)).cpu()

    def mask(
        self, image: Image.Image | np.ndarray, scales: tuple[float, ...] = (1.0,), mirror: bool = False
    ) -> NDArray[np.uint8]:
        """Return the (H, W) most probable class numbers of an image's pixels; for the arguments see `probabilities`."""
        return self.probabilities(image, scales, mirror).argmax(0).numpy().astype(np.uint8)


def load_segmenter(run: str | os.PathLike[str] | RunFolder, device: torch.device | str = "cpu") -> SegmentationModel:
    """Load the best model of a run of `paucal segment`.

    Raises:
        UserError: The run does not exist, belongs to another command or has no saved model yet, or its weights do not
            match its `model.json`.

    Example:
        >>> model = load_segmenter("runs/1")  # doctest: +SKIP
        >>> model.mask(Image.open("photo.jpg")).shape  # doctest: +SKIP
        (480, 640)
    """
    return SegmentationModel(*load_saved(run, SegmentationCard, device))
