"""Views of a whole batch of small images at once, equal to those that are made one by one.

An image of 32 pixels costs less than the calls that crop, mirror and normalise it. Where nothing but these three
happens and the images already have the size of the view, a batch takes a fifth of the time.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paucal.data.views.normalisation import Normalisation

Pixels = NDArray[np.uint8]


@runtime_checkable
class AtOnce(Protocol):
    """A view transform that can make the views of several images at once."""

    def suits(self, pixels: Pixels) -> bool:
        """Whether an image (H, W, C) can be among them."""
        ...

    def at_once(self, images: Sequence[Pixels], seeds: Iterable[int]) -> tuple[Tensor, Tensor]:
        """Return (N, C, H, W) views and their (N, 2, 3) geometry, image n drawn with the n-th seed."""
        ...


def padded_crops(
    images: Sequence[Pixels], seeds: Iterable[int], padding: int, hflip: float, normalisation: Normalisation
) -> tuple[Tensor, Tensor]:
    """Return crops of images that are padded with black, some of them mirrored: the custom for 32-pixel images.

    Args:
        images: N of one shape (H, W, C), which is that of the views.
        seeds: of each image, as torch's generators take them.
        padding: pixels on each side.
        hflip: probability of mirroring left and right.
        normalisation: applied at the end.

    Returns:
        (N, C, H, W) views and their (N, 2, 3) geometry, as `types.Batch.geometry` defines it.
    """
    height, width, channels = images[0].shape
    page = np.zeros((height + 2 * padding, width + 2 * padding, channels), dtype=np.uint8)
    views = np.empty((len(images), height, width, channels), dtype=np.uint8)
    corners, mirrored = np.empty((len(images), 2)), np.ones(len(images))
    generator = torch.Generator()
    for place, (image, seed) in enumerate(zip(images, seeds, strict=True)):
        generator.manual_seed(seed)
        left, top = (int(torch.randint(2 * padding + 1, (), generator=generator)) for _ in range(2))
        page[padding : padding + height, padding : padding + width] = image
        view = page[top : top + height, left : left + width]
        if torch.rand((), generator=generator).item() < hflip:
            view, mirrored[place] = view[:, ::-1], -1
        views[place], corners[place] = view, (left - padding, top - padding)
    return normalisation.apply_all(views), _geometry(corners, mirrored, height, width)


def whole_views(images: Sequence[Pixels], normalisation: Normalisation) -> tuple[Tensor, Tensor]:
    """Return (N, C, H, W) views that show all of N images of one shape, and their (N, 2, 3) geometry."""
    height, width, _ = images[0].shape
    geometry = _geometry(np.zeros((len(images), 2)), np.ones(len(images)), height, width)
    return normalisation.apply_all(np.stack(images)), geometry


def _geometry(corners: NDArray[np.float64], mirrored: NDArray[np.float64], height: int, width: int) -> Tensor:
    """Return the (N, 2, 3) maps of boxes with these corners (left, top) and the size of the image."""
    geometry = np.zeros((len(corners), 2, 3))
    geometry[:, 0, 0], geometry[:, 1, 1] = mirrored, 1
    geometry[:, :, 2] = (2 * corners + (width, height)) / (width, height) - 1
    return torch.from_numpy(geometry.astype(np.float32))
