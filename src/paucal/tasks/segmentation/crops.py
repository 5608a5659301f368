"""Training crops: an image and its mask are scaled, cut and mirrored together; colours change in the image alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as transforms

from paucal.backbones.layout import Size
from paucal.data.dataset import Sample, SampleKey, ViewDataset
from paucal.data.images import ImageSet
from paucal.data.masks.coding import IGNORED
from paucal.data.masks.masked_images import MaskStore
from paucal.data.randomness import reseed
from paucal.data.views.normalisation import Normalisation
from paucal.tasks.segmentation.colours import distort_colours
from paucal.tasks.segmentation.windows import fitting_scale

TRIES = 10  # crops that are drawn until one shows several classes, as in the papers' programs
MASK = "mask"  # the name of the masks among a batch's label maps


@dataclass(frozen=True)
class CropOptions:
    """How training crops are made.

    Attributes:
        size: (height, width) in pixels.
        scale: smallest and largest factor on the sides of the image before it is cut.
        most_of_one: share of a crop's labelled pixels that one class may have; others are drawn then, a few times.
        hflip: chance of a mirrored crop, left to right.
        vflip: chance of one mirrored top to bottom.
        colour: strength of changes to brightness, contrast and saturation, each a factor of up to 1 plus or minus this;
            the hue turns by up to a quarter of it. "photometric" for the papers' distortion.
        resize_to: Shorter and longer side in pixels that an image is brought to before `scale`, as large as fits in
            both; None for its own size.
    """

    size: Size
    scale: tuple[float, float] = (0.5, 2.0)
    most_of_one: float = 0.75
    hflip: float = 0.5
    vflip: float = 0.0
    colour: float | Literal["photometric"] = 0.2
    resize_to: Size | None = None


class CropTransform:
    """Draws one crop of an image and its mask, with torch's global generator.

    Args:
        options: how.
        statistics: mean and deviation of the images.
    """

    def __init__(self, options: CropOptions, statistics: Normalisation) -> None:
        self.options = options
        self._mean, self._std = list(statistics.mean), list(statistics.std)
        self._fill = tuple(round(255 * value) for value in statistics.mean)
        self._colour = _colour_change(options.colour)

    def __call__(self, image: Any, mask: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return a normalised (C, H, W) float crop and its (H, W) uint8 class numbers.

        Where the scaled image is smaller than the crop it is filled up with the mean colour and unlabelled pixels.

        Args:
            image: PIL image.
            mask: (H, W) uint8 class numbers of its pixels.
        """
        pixels = tv_tensors.Image(transforms.pil_to_tensor(image))
        classes = tv_tensors.Mask(torch.from_numpy(np.ascontiguousarray(mask)))
        pixels, classes = self._cut(pixels, classes)
        if _drawn() < self.options.hflip:
            pixels, classes = transforms.horizontal_flip(pixels), transforms.horizontal_flip(classes)
        if _drawn() < self.options.vflip:
            pixels, classes = transforms.vertical_flip(pixels), transforms.vertical_flip(classes)
        if self._colour is not None:
            pixels = self._colour(pixels)
        floats = transforms.normalize(transforms.to_dtype(pixels, torch.float32, scale=True), self._mean, self._std)
        return floats.as_subclass(Tensor), classes.as_subclass(Tensor)

    def _cut(self, pixels: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Return a scaled crop: the part of the image that it will show is cut first, which is quicker."""
        low, high = self.options.scale
        scale = low + (high - low) * _drawn()
        scale *= fitting_scale((pixels.shape[-2], pixels.shape[-1]), self.options.resize_to)
        height, width = (max(1, round(side / scale)) for side in self.options.size)
        right, bottom = max(0, width - pixels.shape[-1]), max(0, height - pixels.shape[-2])
        if right or bottom:
            pixels = transforms.pad(pixels, [0, 0, right, bottom], fill=list(self._fill))
            classes = transforms.pad(classes, [0, 0, right, bottom], fill=IGNORED)
        top, left = self._place(classes, (height, width))
        area = (top, left, height, width, list(self.options.size))
        return transforms.resized_crop(pixels, *area, antialias=True), transforms.resized_crop(classes, *area)

    def _place(self, classes: Tensor, size: Size) -> tuple[int, int]:
        """Draw (top, left) of a crop, anew where one class has nearly all of it."""
        rows, columns = classes.shape[-2] - size[0] + 1, classes.shape[-1] - size[1] + 1
        top, left = 0, 0
        for _ in range(TRIES if self.options.most_of_one < 1 else 1):
            top, left = int(_drawn() * rows), int(_drawn() * columns)
            counts = torch.bincount(
                classes[top : top + size[0], left : left + size[1]].flatten(), minlength=IGNORED + 1
            )
            counts = counts[:IGNORED]
            if int((counts > 0).sum()) > 1 and int(counts.max()) < self.options.most_of_one * int(counts.sum()):
                break
        return top, left


class MaskedCrops(ViewDataset):
    """Crops of images with their masks, whose randomness depends on (seed, epoch, image, repeat) and on nothing else.

    Args:
        image_set: the images.
        masks: of the same images.
        transform: makes a crop.
        seed: of the run.
    """

    def __init__(self, image_set: ImageSet, masks: MaskStore, transform: CropTransform, seed: int) -> None:
        super().__init__(image_set, [], seed, labels=False)
        self.masks, self.transform = masks, transform

    def _sample(self, key: SampleKey) -> Sample:
        image, mask = self.image_set.store.read(key.index), self.masks.read(key.index)
        reseed(self.seed, *key)
        view, classes = self.transform(image, mask)
        return Sample(id=key.index, views=[view], label=None, geometry=None, label_maps={MASK: classes})


def _colour_change(colour: float | Literal["photometric"]) -> Callable[[Tensor], Tensor] | None:
    if colour == "photometric":
        return distort_colours
    return v2.ColorJitter(colour, colour, colour, colour / 4) if colour > 0 else None


def _drawn() -> float:
    """Return a number in [0, 1)."""
    return float(torch.rand(()))
