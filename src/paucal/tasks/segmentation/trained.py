"""A trained segmentation model: from the files of a run to masks of new images."""

import os
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from paucal.data.channels.decoding import convert_image
from paucal.data.decode import Reading
from paucal.data.views.normalisation import Normalisation
from paucal.memory import available_memory
from paucal.models.saved import load_saved
from paucal.runs import RunFolder
from paucal.tasks.segmentation.card import SegmentationCard
from paucal.tasks.segmentation.windows import WindowOptions, fitting_scale, pixel_probabilities
from paucal.types import UserError

COPIES = 5  # of an image's probabilities that exist at a time


@dataclass(frozen=True)
class SegmentationModel:
    """A model ready to segment.

    Attributes:
        network: in evaluation mode.
        card: what it is and how to feed it.
        device: where it is.
    """

    network: nn.Module
    card: SegmentationCard
    device: torch.device

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the probabilities."""
        return self.card.classes

    @property
    def reading(self) -> Reading:
        """How images are read: whole, with the values of the training."""
        return replace(self.card.preprocessing.reading, side=None)

    def look(self, scales: tuple[float, ...] = (1.0,), mirror: bool = False) -> WindowOptions:
        """Return how images are looked at: as the run was told to, at scales, and mirrored."""
        card = self.card
        size = card.preprocessing.image_size
        return WindowOptions(size, card.overlap, scales, mirror, whole=card.whole, resize_to=card.resize_to)

    def probabilities(
        self, image: Image.Image | np.ndarray, scales: tuple[float, ...] = (1.0,), mirror: bool = False
    ) -> torch.Tensor:
        """Return the (K, H, W) float32 probabilities of the pixels of an image of any size, on the CPU.

        Args:
            image: PIL image, or array (H, W) or (H, W, 3).
            scales: factors on the image's sides, over which answers are averaged.
            mirror: whether the mirror image is averaged, too.

        Raises:
            UserError: they would not fit in memory.
        """
        picture = convert_image(image, self.reading)
        statistics = Normalisation(self.card.preprocessing.mean, self.card.preprocessing.std)
        pixels = statistics.apply(picture).to(self.device)
        size = (pixels.shape[-2], pixels.shape[-1])
        require_room(len(self.classes), *size, max(scales) * fitting_scale(size, self.card.resize_to))
        return pixel_probabilities(self.network, pixels, self.look(scales, mirror)).cpu()

    def mask(
        self, image: Image.Image | np.ndarray, scales: tuple[float, ...] = (1.0,), mirror: bool = False
    ) -> NDArray[np.uint8]:
        """Return the (H, W) class numbers of an image's pixels; see `probabilities`."""
        return self.probabilities(image, scales, mirror).argmax(0).numpy().astype(np.uint8)


def load_segmenter(run: str | os.PathLike[str] | RunFolder, device: torch.device | str = "cpu") -> SegmentationModel:
    """Load the best model of a run of `paucal segment`.

    Args:
        run: a run folder.
        device: where to put the model.

    Raises:
        UserError: there is no such run, it is of another verb, it has no saved model yet, or its files do not fit.

    Example:
        >>> model = load_segmenter("runs/1")  # doctest: +SKIP
        >>> model.mask(Image.open("photo.jpg")).shape  # doctest: +SKIP
        (480, 640)
    """
    return SegmentationModel(*load_saved(run, SegmentationCard, device))


def require_room(classes: int, height: int, width: int, scale: float = 1.0) -> None:
    """Refuse an image whose probabilities would fill the memory; raises a UserError."""
    needed, free = round(4 * COPIES * classes * height * width * max(scale, 1.0) ** 2), available_memory()
    if needed > free:
        raise UserError(
            f"an image of {height}x{width} pixels with {classes} classes takes {needed / 2**30:.3g} GiB, and "
            f"{free / 2**30:.3g} GiB of this machine's memory are free: cut it into parts, or make it smaller."
        )
