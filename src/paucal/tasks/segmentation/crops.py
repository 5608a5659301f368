"""Training crops: an image and its mask are scaled, cropped and flipped together, and the image's colours change."""

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
from paucal.tasks.segmentation.windows import scale_to_fit

MAX_TRIES = 10  # attempts to draw a crop with several classes, as in Swin's code
MASK = "mask"  # key of the segmentation masks in `Batch.label_maps`, the batch's dictionary of per-pixel targets
# Constants of the photometric distortion.
CHANGE_PROBABILITY = 0.5  # probability of each change
MAX_BRIGHTNESS = 32.0  # maximum change of brightness, for pixel values up to 255
CONTRAST = SATURATION = (0.5, 1.5)  # range of the random factors on contrast and on saturation
HUE_STEPS, HUE_CIRCLE = 18, 180  # maximum change of hue, and the full hue circle, in steps of 2 degrees


@dataclass(frozen=True)
class CropOptions:
    """Scaling and augmentation of training crops; `hflip` and `vflip` are probabilities."""

    size: Size  # (height, width) of a crop in pixels
    scale: tuple[float, float] = (0.5, 2.0)  # range of the factor on the sides of the image before it is cropped
    # Maximum fraction of one class among the labelled pixels of a crop. A crop above this fraction is drawn again; at
    # most 10 crops are drawn.
    max_class_fraction: float = 0.75
    hflip: float = 0.5
    vflip: float = 0.0
    # Strength s of changes to brightness, contrast and saturation, by factors in [1 - s, 1 + s]; the hue is shifted by
    # up to s / 4 of the circle. "photometric" for the distortion of Swin's code.
    colour: float | Literal["photometric"] = 0.2
    resize_to: Size | None = None  # maximum shorter and longer side in pixels before `scale`; None to keep the size


class CropTransform:
    """Draws a random crop of an image and its mask, with torch's global generator."""

    def __init__(self, options: CropOptions, statistics: Normalisation) -> None:
        self.options = options
        self._mean, self._std = list(statistics.mean), list(statistics.std)
        self._fill = tuple(round(255 * value) for value in statistics.mean)
        self._change_colour = None
        if options.colour == "photometric":
            self._change_colour = distort_colours
        elif options.colour > 0:
            strength = options.colour
            self._change_colour = v2.ColorJitter(strength, strength, strength, strength / 4)

    def __call__(self, image: Any, mask: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return a normalised (C, H, W) float crop of a PIL image, and the (H, W) uint8 class numbers of the crop.

        A scaled image that is smaller than the crop is padded with the mean colour and unlabelled pixels. A crop is
        drawn again if one class covers nearly all pixels.
        """
        pixels = tv_tensors.Image(transforms.pil_to_tensor(image))
        classes = tv_tensors.Mask(torch.from_numpy(np.ascontiguousarray(mask)))
        # The image is cropped before the crop is scaled, which is faster than scaling the image first.
        scale = _uniform(*self.options.scale)
        scale *= scale_to_fit((pixels.shape[-2], pixels.shape[-1]), self.options.resize_to)
        height, width = (max(1, round(side / scale)) for side in self.options.size)
        right, bottom = max(0, width - pixels.shape[-1]), max(0, height - pixels.shape[-2])
        if right or bottom:
            pixels = transforms.pad(pixels, [0, 0, right, bottom], fill=list(self._fill))
            classes = transforms.pad(classes, [0, 0, right, bottom], fill=IGNORED)
        rows, columns = classes.shape[-2] - height + 1, classes.shape[-1] - width + 1
        top, left = 0, 0
        for _ in range(MAX_TRIES if self.options.max_class_fraction < 1 else 1):
            top, left = int(_uniform() * rows), int(_uniform() * columns)
            crop = classes[top : top + height, left : left + width]
            counts = torch.bincount(crop.flatten(), minlength=IGNORED + 1)[:IGNORED]
            if int((counts > 0).sum()) > 1 and int(counts.max()) < self.options.max_class_fraction * int(counts.sum()):
                break
        area = (top, left, height, width, list(self.options.size))
        pixels, classes = (
            transforms.resized_crop(pixels, *area, antialias=True),
            transforms.resized_crop(classes, *area),
        )
        if _uniform() < self.options.hflip:
            pixels, classes = transforms.horizontal_flip(pixels), transforms.horizontal_flip(classes)
        if _uniform() < self.options.vflip:
            pixels, classes = transforms.vertical_flip(pixels), transforms.vertical_flip(classes)
        if self._change_colour is not None:
            pixels = self._change_colour(pixels)
        floats = transforms.normalize(transforms.to_dtype(pixels, torch.float32, scale=True), self._mean, self._std)
        return floats.as_subclass(Tensor), classes.as_subclass(Tensor)


class MaskedCrops(ViewDataset):
    """A dataset of random crops of images with their masks, seeded by (seed, epoch, image, repeat)."""

    def __init__(self, image_set: ImageSet, masks: MaskStore, transform: CropTransform, seed: int) -> None:
        super().__init__(image_set, [], seed, with_labels=False)
        self.masks, self.transform = masks, transform

    def _make_sample(self, key: SampleKey) -> Sample:
        image, mask = self.image_set.store.read(key.index), self.masks.read(key.index)
        reseed(self.seed, *key)
        view, classes = self.transform(image, mask)
        return Sample(id=key.index, views=[view], label=None, geometry=None, label_maps={MASK: classes})


def distort_colours(pixels: Tensor) -> Tensor:
    """Apply the photometric distortion of Swin's code to (3, H, W) uint8 pixels.

    This is the distortion of SSD (Liu et al., ECCV 2016), as implemented in code for segmentation. Brightness,
    contrast, saturation and hue change, each with probability 0.5. The contrast changes either directly after the
    brightness, or last.
    """
    if _uniform() < CHANGE_PROBABILITY:
        pixels = _to_uint8(pixels + _uniform(-MAX_BRIGHTNESS, MAX_BRIGHTNESS))
    contrast_comes_first = _uniform() < CHANGE_PROBABILITY
    if contrast_comes_first:
        pixels = _change_contrast(pixels)
    if _uniform() < CHANGE_PROBABILITY:
        pixels = multiply_saturation(pixels, _uniform(*SATURATION))
    if _uniform() < CHANGE_PROBABILITY:
        pixels = transforms.adjust_hue(pixels, int(torch.randint(-HUE_STEPS, HUE_STEPS, ())) / HUE_CIRCLE)
    return pixels if contrast_comes_first else _change_contrast(pixels)


def multiply_saturation(pixels: Tensor, factor: float) -> Tensor:
    """Multiply the HSV saturation of (3, H, W) uint8 pixels by a factor, and clip the saturation to 1."""
    floats = pixels.float()
    value, lowest = floats.amax(0, keepdim=True), floats.amin(0, keepdim=True)
    max_factor = value / (value - lowest).clamp_min(1e-6)  # the factor that makes the saturation 1
    return _to_uint8(value - (value - floats) * max_factor.clamp_max(factor) + 0.5)


def _change_contrast(pixels: Tensor) -> Tensor:
    return _to_uint8(pixels * _uniform(*CONTRAST)) if _uniform() < CHANGE_PROBABILITY else pixels


def _to_uint8(floats: Tensor) -> Tensor:
    return floats.clamp(0, 255).to(torch.uint8)


def _uniform(low: float = 0.0, high: float = 1.0) -> float:
    """Draw a number from [low, high) with torch's global generator."""
    return low + (high - low) * float(torch.rand(()))
