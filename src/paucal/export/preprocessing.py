"""The preprocessing of `data.views.EvalTransform` as tensor operations, which can be exported in a graph."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from paucal.data.channels.pixels import RGB
from paucal.models.preprocessing import Preprocessing
from paucal.types import UserError
from paucal.wording import counted

GREY_LEVELS = 255
STEPS = float(1 << 22)  # Pillow stores a filter weight as an integer multiple of 1 / STEPS
REACH = {"bilinear": 1.0, "bicubic": 2.0}  # radius of each filter, in pixels of the coarser of the two grids
Side = Any  # number of pixels: an int, or a symbolic int while torch traces a graph
Shape = tuple[Side, Side]  # height and width
SHARPNESS = -0.5  # coefficient a of Pillow's bicubic filter


class PixelInput(nn.Module):
    """Resize, crop and normalise pixels.

    Images are resized as in Pillow: separably, with a filter scaled to the pixels of the coarser grid, and rounded to
    grey levels after each direction. Written as two matrix products, the resize only needs operations that other
    runtimes have, and takes images of any size. Weights are rounded as in Pillow, and their sums are exact in double
    precision; a few pixels differ by one grey level, where a weight lies between two steps.

    Shape:
        - pixels: (N, H, W, 3) uint8, RGB, upright
        - output: (N, 3, h, w) float32, the network's input
    """

    mean: Tensor
    factor: Tensor
    colour: Tensor

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        if preprocessing.channels != RGB:
            raise UserError(
                f"the model reads {counted(preprocessing.channels, 'channel')}, but --with-preprocessing is for RGB: "
                "leave it out."
            )
        if preprocessing.value_range is not None:
            raise UserError(
                f"the model reads images of more than 8 bits per channel (values {preprocessing.value_range}), and "
                "--with-preprocessing takes bytes: leave it out."
            )
        self.size, self.resize = preprocessing.image_size, preprocessing.resize
        self.reach = REACH[preprocessing.interpolation]
        self.cover = tuple(math.floor(side / preprocessing.crop_ratio + 1e-6) for side in self.size)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (preprocessing.mean, preprocessing.std))
        self.register_buffer("mean", GREY_LEVELS * mean)
        self.register_buffer("factor", 1 / (GREY_LEVELS * std))
        colour = (GREY_LEVELS * mean).round().clamp(0, GREY_LEVELS)  # colour of the bars of "letterbox"
        self.register_buffer("colour", colour.double())

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the network's input."""
        image = pixels.permute(0, 3, 1, 2).to(self.colour.dtype) - self.colour
        if self.resize == "squash":
            image = self._stretch(image)
        page = self._padded_size(image.shape[2], image.shape[3])
        covering = (
            torch.sym_max(self.cover[0], page[0] * self.cover[1] // page[1]),
            torch.sym_max(self.cover[1], page[1] * self.cover[0] // page[0]),
        )
        view = self._resize(image, self.size, covering, page) + self.colour
        return (view.to(self.mean.dtype) - self.mean) * self.factor

    def _stretch(self, image: Tensor) -> Tensor:
        """Return an image stretched to the aspect ratio of the view, by shrinking one of its sides."""
        height, width = image.shape[2], image.shape[3]
        high, broad = self.size
        shape = (
            torch.sym_max(1, torch.sym_min(height, (2 * width * high + broad) // (2 * broad))),
            torch.sym_max(1, torch.sym_min(width, (2 * height * broad + high) // (2 * high))),
        )
        return self._resize(image, shape, shape, (height, width))

    def _resize(self, image: Tensor, size: Shape, resized: Shape, page: Shape) -> Tensor:
        """Return the centre of an image that is padded to the page and resized, with the bar colour subtracted."""
        rows = self._interpolation_weights(size[0], resized[0], image.shape[2], page[0])
        columns = self._interpolation_weights(size[1], resized[1], image.shape[3], page[1])
        return self._round(rows @ self._round(image @ columns.T))

    def _padded_size(self, height: Side, width: Side) -> Shape:
        """Return the size of an image with the bars that give it the aspect ratio of the view."""
        if self.resize != "letterbox":
            return height, width
        high, broad = self.size
        across = torch.sym_max(width, (2 * height * broad + high) // (2 * high))
        down = torch.sym_max(height, (2 * width * high + broad) // (2 * broad))
        return down + (down - height) % 2, across + (across - width) % 2

    def _round(self, image: Tensor) -> Tensor:
        return (image + self.colour + 0.5).floor().clamp(0, GREY_LEVELS) - self.colour

    def _interpolation_weights(self, size: Side, resized: Side, length: Side, page: Side) -> Tensor:
        """Return the (size, length) weights of the rows of an image in the rows of the view.

        Args:
            size: Number of rows of the view, in the middle of the resized page.
            resized: Number of rows of the resized page.
            length: Number of rows of the image, in the middle of the page.
            page: Number of rows of the page, the image with its bars.
        """
        left_over = resized - size
        first = left_over // 2 + (left_over % 2) * (left_over // 2 % 2)  # halves round to even, as in Python
        ratio = torch.ones_like(self.colour[0, 0, 0]) * page / resized
        width = ratio.clamp(min=1.0)
        centres = (self._number_range(size) + first + 0.5) * ratio
        source_centres = self._number_range(length) + (page - length) // 2 + 0.5
        everywhere = self._number_range(page) + 0.5
        scale = 1 / width
        weights = self._interpolation_kernel((source_centres - centres[:, None]) * scale)
        sums = self._interpolation_kernel((everywhere - centres[:, None]) * scale).sum(1, keepdim=True)
        weights = weights * (1 / sums)
        return (weights * STEPS + 0.5 * weights.sign()).trunc() / STEPS

    def _number_range(self, count: Side) -> Tensor:
        return torch.arange(count, device=self.colour.device, dtype=self.colour.dtype)

    def _interpolation_kernel(self, distance: Tensor) -> Tensor:
        offset = distance.abs()
        if self.reach == 1.0:
            return (1 - offset).clamp(min=0)
        inner = ((SHARPNESS + 2) * offset - (SHARPNESS + 3)) * offset * offset + 1
        outer = ((offset - 5) * offset + 8) * offset * SHARPNESS - 4 * SHARPNESS
        return torch.where(offset < 1, inner, torch.where(offset < self.reach, outer, torch.zeros_like(offset)))
