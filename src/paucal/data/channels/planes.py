"""Pictures of any number of channels, 8 bits each, that go wherever pictures of Pillow go.

Pillow knows no image of two or five channels. `Planes` is an RGB image to whoever only looks at it (a sheet, a report,
a perceptual hash), and carries all channels through what the data path does with it: resize, crop, mirror, turn.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

RGB = 3
_LEVELS = np.arange(256) / 255


class Planes(Image.Image):
    """A picture of several channels. To Pillow it is an RGB image of the first three, a missing one black.

    Args:
        planes: a grey picture ("L") for each channel, all of one size.

    Example:
        >>> picture = Planes([Image.new("L", (4, 2), level) for level in (10, 20, 30, 40, 50)])
        >>> picture.size, picture.mode, pixels_of(picture.resize((2, 1))).tolist()
        ((4, 2), 'RGB', [[[10, 20, 30, 40, 50], [10, 20, 30, 40, 50]]])
    """

    def __init__(self, planes: Sequence[Image.Image]) -> None:
        super().__init__()
        if not planes or any(plane.mode != "L" or plane.size != planes[0].size for plane in planes):
            raise ValueError(f"expected grey pictures of one size, got {[(one.mode, one.size) for one in planes]}")
        self.planes = tuple(planes)
        shown = [*self.planes[:RGB]] if len(planes) > 1 else [planes[0]] * RGB
        shown += [Image.new("L", planes[0].size)] * (RGB - len(shown))
        picture = Image.merge("RGB", shown)
        self.im, self._mode, self._size = picture.im, picture.mode, picture.size

    def __reduce__(self) -> Any:
        return Planes, (self.planes,)

    def each(self, change: Callable[[Image.Image], Image.Image]) -> "Planes":
        """Return the picture with a function applied to every channel."""
        return Planes([change(plane) for plane in self.planes])

    def copy(self) -> "Planes":
        """Return a copy."""
        return self.each(lambda plane: plane.copy())

    def resize(self, *arguments: Any, **options: Any) -> "Planes":
        """Return the picture at another size, as Pillow resizes each channel."""
        return self.each(lambda plane: plane.resize(*arguments, **options))

    def crop(self, box: Any = None) -> "Planes":
        """Return a part; what lies outside is 0."""
        return self.each(lambda plane: plane.crop(box))

    def transpose(self, method: Image.Transpose) -> "Planes":
        """Return the picture mirrored or turned by right angles."""
        return self.each(lambda plane: plane.transpose(method))

    def filter(self, filter: Any) -> "Planes":
        """Return the picture with a filter of Pillow applied to every channel."""
        return self.each(lambda plane: plane.filter(filter))

    def rotate(self, angle: float, *arguments: Any, fillcolor: Any = None, **options: Any) -> "Planes":
        """Return the picture turned, with a value for each channel in what comes into view."""
        return self._filled(lambda plane, fill: plane.rotate(angle, *arguments, fillcolor=fill, **options), fillcolor)

    def transform(self, size: Any, method: Any, *arguments: Any, fillcolor: Any = None, **options: Any) -> "Planes":
        """Return the picture moved by a map of Pillow, with a value for each channel in what comes into view."""
        return self._filled(
            lambda plane, fill: plane.transform(size, method, *arguments, fillcolor=fill, **options), fillcolor
        )

    def on_page(self, size: tuple[int, int], place: tuple[int, int], colour: Sequence[int]) -> "Planes":
        """Return a page (width, height) of one colour with the picture on it."""
        pages = [Image.new("L", size, value) for value in colour]
        for page, plane in zip(pages, self.planes, strict=True):
            page.paste(plane, place)
        return Planes(pages)

    def _filled(self, change: Callable[[Image.Image, Any], Image.Image], fill: Any) -> "Planes":
        values = fill if isinstance(fill, Sequence) else [fill] * len(self.planes)
        return Planes([change(plane, value) for plane, value in zip(self.planes, values, strict=True)])


def picture_of(pixels: NDArray[np.uint8]) -> Image.Image:
    """Return (H, W, C) pixels as a picture: of Pillow with three channels, else `Planes`."""
    if pixels.shape[2] == RGB:
        return Image.fromarray(pixels)
    return Planes([Image.fromarray(np.ascontiguousarray(pixels[..., channel])) for channel in range(pixels.shape[2])])


def pixels_of(image: Image.Image) -> NDArray[np.uint8]:
    """Return all channels of a picture as (H, W, C), a copy for `Planes`."""
    if isinstance(image, Planes):
        return np.stack([np.asarray(plane) for plane in image.planes], axis=2)
    return np.asarray(image)


def moments_of(image: Image.Image) -> NDArray[np.float64]:
    """Return the (2, C) means and mean squares of a picture's channels, of values in [0, 1].

    They are exact: how often each of 256 levels occurs says all, and takes no memory however large the image is.
    """
    levels = [plane.histogram() for plane in image.planes] if isinstance(image, Planes) else image.histogram()
    counts = np.asarray(levels, dtype=np.float64).reshape(-1, 256)
    share = counts / counts.sum(axis=1, keepdims=True)
    return np.stack([share @ _LEVELS, share @ np.square(_LEVELS)])


def on_page(image: Image.Image, size: tuple[int, int], place: tuple[int, int], colour: Sequence[int]) -> Image.Image:
    """Return a page (width, height) of one colour, a value for each channel, with a picture on it."""
    if isinstance(image, Planes):
        return image.on_page(size, place, colour)
    page = Image.new("RGB", size, tuple(colour))
    page.paste(image, place)
    return page
