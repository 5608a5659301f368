"""The preprocessing of `data.views.EvalTransform` as tensor operations, which can be exported in a graph."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from paucal.data.channels.pixels import RGB
from paucal.models.preprocessing import Preprocessing
from paucal.types import UserError
from paucal.wording import counted

MAX_LEVEL = 255  # highest grey level
WEIGHT_STEPS = float(1 << 22)  # Pillow stores filter weights as integer multiples of 1 / WEIGHT_STEPS
FILTER_RADIUS = {"bilinear": 1.0, "bicubic": 2.0}  # radius of each filter in pixels of the smaller of the two images
Side = Any  # height or width in pixels: an int, or a symbolic int while torch traces a graph
Shape = tuple[Side, Side]  # (height, width)
BICUBIC_A = -0.5  # coefficient a of Pillow's bicubic filter


class PixelPreprocessing(nn.Module):
    """Module that resizes, crops and normalises pixels.

    Images are resized as in Pillow: first in width and then in height, with a filter whose width is measured in pixels
    of the smaller image. Values are rounded to grey levels after each direction. Resizing is implemented as two matrix
    products. So the graph needs only operations that other runtimes support, and accepts images of any size. Weights
    are rounded as in Pillow, and sums are exact in double precision. A few pixels differ from Pillow's pixels by one
    grey level, since weights midway between two steps may be rounded differently.
    """

    mean: Tensor
    factor: Tensor
    bar_colour: Tensor

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        if preprocessing.channels != RGB:
            raise UserError(
                f"the model reads {counted(preprocessing.channels, 'channel')}, but --with-preprocessing supports only "
                "RGB: remove --with-preprocessing."
            )
        if preprocessing.value_range is not None:
            raise UserError(
                f"the model reads images of more than 8 bits per channel (values {preprocessing.value_range}), but "
                "--with-preprocessing supports only 8 bits: remove --with-preprocessing."
            )
        self.size, self.resize = preprocessing.image_size, preprocessing.resize
        self.radius = FILTER_RADIUS[preprocessing.interpolation]
        self.min_resized = tuple(math.floor(side / preprocessing.crop_ratio + 1e-6) for side in self.size)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (preprocessing.mean, preprocessing.std))
        self.register_buffer("mean", MAX_LEVEL * mean)
        self.register_buffer("factor", 1 / (MAX_LEVEL * std))
        colour = (MAX_LEVEL * mean).round().clamp(0, MAX_LEVEL)  # colour of the bars in "letterbox" mode
        self.register_buffer("bar_colour", colour.double())

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the network's input, (N, 3, h, w) float32, for (N, H, W, 3) uint8 pixels, RGB and upright."""
        image = pixels.permute(0, 3, 1, 2).to(self.bar_colour.dtype) - self.bar_colour
        height, width = image.shape[2], image.shape[3]
        padded: Shape = (height, width)
        if self.resize != "crop":
            view_height, view_width = self.size
            # The height that `width` needs, and the width that `height` needs, for the input's aspect ratio.
            matching_height: Side = (2 * width * view_height + view_width) // (2 * view_width)
            matching_width: Side = (2 * height * view_width + view_height) // (2 * view_height)
            if self.resize == "squash":  # the side that is too long is reduced
                shape = (
                    torch.sym_max(1, torch.sym_min(height, matching_height)),
                    torch.sym_max(1, torch.sym_min(width, matching_width)),
                )
                image = self._resize(image, shape, shape, padded)
                padded = (image.shape[2], image.shape[3])
            else:  # bars are added
                bottom, right = torch.sym_max(height, matching_height), torch.sym_max(width, matching_width)
                padded = (bottom + (bottom - height) % 2, right + (right - width) % 2)
        resized = (
            torch.sym_max(self.min_resized[0], padded[0] * self.min_resized[1] // padded[1]),
            torch.sym_max(self.min_resized[1], padded[1] * self.min_resized[0] // padded[0]),
        )
        view = self._resize(image, self.size, resized, padded) + self.bar_colour
        return (view.to(self.mean.dtype) - self.mean) * self.factor

    def _resize(self, image: Tensor, size: Shape, resized: Shape, padded: Shape) -> Tensor:
        """Pad an image to `padded`, resize it to `resized`, and return the `size` pixels in the centre.

        The bar colour has been subtracted from all pixels, so padding is 0.
        """
        rows = self._interpolation_weights(size[0], resized[0], image.shape[2], padded[0])
        columns = self._interpolation_weights(size[1], resized[1], image.shape[3], padded[1])
        return self._round(rows @ self._round(image @ columns.T))

    def _round(self, image: Tensor) -> Tensor:
        return (image + self.bar_colour + 0.5).floor().clamp(0, MAX_LEVEL) - self.bar_colour

    def _interpolation_weights(self, size: Side, resized: Side, length: Side, padded: Side) -> Tensor:
        """Return (size, length) weights: row i of the result of `_resize` is a weighted sum of the image's rows.

        The result is the centre of the resized image. The image has `length` rows without bars, and `padded` rows with
        bars. The same function is used for columns.
        """
        excess = resized - size
        first = excess // 2 + (excess % 2) * (excess // 2 % 2)  # halves are rounded to even, as in Python
        ratio = torch.ones_like(self.bar_colour[0, 0, 0]) * padded / resized
        width = ratio.clamp(min=1.0)
        centres = (self._arange(size) + first + 0.5) * ratio
        image_centres = self._arange(length) + (padded - length) // 2 + 0.5
        padded_centres = self._arange(padded) + 0.5
        scale = 1 / width
        weights = self._interpolation_kernel((image_centres - centres[:, None]) * scale)
        sums = self._interpolation_kernel((padded_centres - centres[:, None]) * scale).sum(1, keepdim=True)
        weights = weights * (1 / sums)
        return (weights * WEIGHT_STEPS + 0.5 * weights.sign()).trunc() / WEIGHT_STEPS

    def _arange(self, count: Side) -> Tensor:
        return torch.arange(count, device=self.bar_colour.device, dtype=self.bar_colour.dtype)

    def _interpolation_kernel(self, distance: Tensor) -> Tensor:
        offset = distance.abs()
        if self.radius == 1.0:
            return (1 - offset).clamp(min=0)
        inner = ((BICUBIC_A + 2) * offset - (BICUBIC_A + 3)) * offset * offset + 1
        outer = ((offset - 5) * offset + 8) * offset * BICUBIC_A - 4 * BICUBIC_A
        return torch.where(offset < 1, inner, torch.where(offset < self.radius, outer, torch.zeros_like(offset)))
