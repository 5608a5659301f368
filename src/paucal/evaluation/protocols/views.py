"""Second views of an image for the correspondence protocol, with the geometry that tells the truth."""

from typing import Literal

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from paucal.data.views.augmentation import RESAMPLING, Augmentation
from paucal.data.views.transforms import EvalTransform, TrainTransform, ViewTransform, cover_size

Change = Literal["mirror", "crop"]
# Brightness, contrast, saturation, hue: the published program's, as is the chance of it.
_JITTER, _JITTERED = (0.4, 0.4, 0.2, 0.1), 0.8
_CROPPED_AREA = (0.4, 0.6)


def second_view(change: Change, first: EvalTransform) -> ViewTransform:
    """Return the transform of the second view; the first is the plain one.

    Args:
        change: "mirror" is the published one: mirrored always, colours jittered with probability 0.8, grey always (as
            the program has it; the paper says nothing of always). "crop" takes a box of 40 to 60 % of the image,
            mirrored or not, jittered with probability 0.8, grey with 0.2.
        first: the transform of the first view.
    """
    return MirroredView(first) if change == "mirror" else CroppedView(first)


class MirroredView:
    """The first view in a mirror, in other colours; randomness from torch's global generator."""

    def __init__(self, first: EvalTransform) -> None:
        self._first, self._colours = first, _colours(grey=1.0)

    def __call__(self, image: Image.Image) -> tuple[Tensor, Tensor]:
        """Return the (3, H, W) view and its (2, 3) geometry."""
        view, theta = self._first(self._colours(_reduced(image, self._first)))
        theta[0, 0] = -theta[0, 0]
        return torch.flip(view, [2]), theta


class CroppedView:
    """A part of the image, mirrored or not, in other colours; randomness from torch's global generator."""

    def __init__(self, first: EvalTransform) -> None:
        self._first, self._colours = first, _colours(grey=0.2)
        crop = Augmentation(scale=_CROPPED_AREA, rand_augment=None, erase_prob=0.0, interpolation=first.interpolation)
        self._crop = TrainTransform(first.size, crop, first.normalisation, resize=first.resize)

    def __call__(self, image: Image.Image) -> tuple[Tensor, Tensor]:
        """Return the (3, H, W) view and its (2, 3) geometry."""
        return self._crop(self._colours(_reduced(image, self._first)))


def _colours(grey: float) -> v2.Compose:
    return v2.Compose([v2.RandomApply([v2.ColorJitter(*_JITTER)], p=_JITTERED), v2.RandomGrayscale(grey)])


def _reduced(image: Image.Image, first: EvalTransform) -> Image.Image:
    """Return a large photo at twice the size of the view: colours are changed in a tenth of the time."""
    height, width = cover_size(image, (2 * first.size[0], 2 * first.size[1]))
    if height >= image.height:
        return image
    return image.resize((width, height), RESAMPLING[first.interpolation])
