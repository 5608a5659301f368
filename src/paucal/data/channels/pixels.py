"""Pixels that Pillow does not support: any number of channels, and more than 8 bits per channel.

`MultichannelImage` is an image of any number of 8-bit channels. Code that only displays the image (a sheet, a report, a
perceptual hash) gets an RGB image; resizing, cropping, mirroring and rotating apply to all channels.

Pillow keeps more than 8 bits of grey images (modes "I;16", "I" and "F"), but only the upper 8 bits of colour images, so
12-bit values in a 16-bit file are reduced to 17 levels. Therefore torchvision reads 16-bit colour PNG files here, and
tifffile (extra `tiff`) reads 16-bit colour TIFF files.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from paucal.wording import first_line

RGB = 3  # number of channels
_LEVELS = np.arange(256) / 255  # the values of 8-bit pixels, scaled to [0, 1]
_MAX_VALUE = 65535  # largest 16-bit value
_BITS_TAG, _ORIENTATION_TAG = 258, 274  # TIFF tags: bits of each channel, EXIF orientation
_ALPHA_CHANNELS = (2, 4)  # numbers of channels for which the last channel is the opacity


class MultichannelImage(Image.Image):
    """An image of any number of channels, each a grey image ("L"). Pillow gets the first three channels as RGB.

    A single channel is shown as grey, and a missing third channel as black.
    """

    def __init__(self, planes: Sequence[Image.Image]) -> None:
        super().__init__()
        formats = [(plane.mode, plane.size) for plane in planes]
        if len(set(formats)) != 1 or formats[0][0] != "L":
            raise ValueError(f"expected grey images of one size, got {formats}")
        self.planes = tuple(planes)
        rgb_planes = [*self.planes[:RGB]] if len(planes) > 1 else [planes[0]] * RGB
        rgb_planes += [Image.new("L", planes[0].size)] * (RGB - len(rgb_planes))
        rgb = Image.merge("RGB", rgb_planes)
        self.im, self._mode, self._size = rgb.im, rgb.mode, rgb.size

    def __reduce__(self) -> Any:
        return MultichannelImage, (self.planes,)

    def map_planes(self, function: Callable[[Image.Image], Image.Image]) -> "MultichannelImage":
        """Return the image with a function applied to every channel."""
        return MultichannelImage([function(plane) for plane in self.planes])

    def copy(self) -> "MultichannelImage":
        """Return a copy."""
        return self.map_planes(lambda plane: plane.copy())

    def resize(self, *arguments: Any, **options: Any) -> "MultichannelImage":
        """Return the image at another size."""
        return self.map_planes(lambda plane: plane.resize(*arguments, **options))

    def crop(self, box: Any = None) -> "MultichannelImage":
        """Return a crop of the image; pixels of the crop that lie outside the image are 0."""
        return self.map_planes(lambda plane: plane.crop(box))

    def transpose(self, method: Image.Transpose) -> "MultichannelImage":
        """Return the image mirrored, or rotated by a multiple of 90 degrees."""
        return self.map_planes(lambda plane: plane.transpose(method))

    def filter(self, filter: Any) -> "MultichannelImage":
        """Return the image with a Pillow filter applied to every channel."""
        return self.map_planes(lambda plane: plane.filter(filter))

    def rotate(self, angle: float, *arguments: Any, fillcolor: Any = None, **options: Any) -> "MultichannelImage":
        """Return the rotated image; `fillcolor` has a value for each channel."""
        planes = zip(self.planes, self._fill_values(fillcolor), strict=True)
        return MultichannelImage([plane.rotate(angle, *arguments, fillcolor=fill, **options) for plane, fill in planes])

    def transform(
        self, size: Any, method: Any, *arguments: Any, fillcolor: Any = None, **options: Any
    ) -> "MultichannelImage":
        """Return the image after a Pillow transform; `fillcolor` has a value for each channel."""
        planes = zip(self.planes, self._fill_values(fillcolor), strict=True)
        return MultichannelImage(
            [plane.transform(size, method, *arguments, fillcolor=fill, **options) for plane, fill in planes]
        )

    def _fill_values(self, fill: Any) -> Sequence[Any]:
        return fill if isinstance(fill, Sequence) else [fill] * len(self.planes)


def image_from_pixels(pixels: NDArray[np.uint8]) -> Image.Image:
    """Convert (H, W, C) pixels to a Pillow RGB image if C is 3, else to a `MultichannelImage`."""
    if pixels.shape[2] == RGB:
        return Image.fromarray(pixels)
    planes = np.moveaxis(pixels, 2, 0)
    return MultichannelImage([Image.fromarray(np.ascontiguousarray(plane)) for plane in planes])


def pixels_of(image: Image.Image) -> NDArray[np.uint8]:
    """Return all channels of an image as an (H, W, C) array; the pixels of a `MultichannelImage` are copied."""
    if isinstance(image, MultichannelImage):
        return np.stack([np.asarray(plane) for plane in image.planes], axis=2)
    return np.asarray(image)


def moments_of(image: Image.Image) -> NDArray[np.float64]:
    """Return the exact (2, C) means and mean squares of an image's channels in [0, 1], from its histogram."""
    levels = (
        [plane.histogram() for plane in image.planes] if isinstance(image, MultichannelImage) else image.histogram()
    )
    counts = np.asarray(levels, dtype=np.float64).reshape(-1, 256)
    frequencies = counts / counts.sum(axis=1, keepdims=True)
    return np.stack([frequencies @ _LEVELS, frequencies @ np.square(_LEVELS)])


def paste_on_page(
    image: Image.Image, size: tuple[int, int], position: tuple[int, int], colour: Sequence[int]
) -> Image.Image:
    """Return an image pasted at (left, top) on a page of (width, height) with a `colour` value for each channel."""
    if isinstance(image, MultichannelImage):
        pages = [Image.new("L", size, value) for value in colour]
        for page, plane in zip(pages, image.planes, strict=True):
            page.paste(plane, position)
        return MultichannelImage(pages)
    page = Image.new("RGB", size, tuple(colour))
    page.paste(image, position)
    return page


def has_high_bit_depth(image: Image.Image) -> bool:
    """Return whether an image has more than 8 bits per channel; only valid before Pillow decodes a colour image."""
    return image.mode == "F" or image.mode.startswith("I") or _has_16_bit_colours(image)


def high_bit_values(image: Image.Image, keep_alpha: bool = False) -> NDArray[np.generic]:
    """Return the (H, W) or (H, W, 3) values of an image of high bit depth, with alpha if `keep_alpha`."""
    if not _has_16_bit_colours(image):
        return np.asarray(image)
    file = getattr(image, "fp")  # noqa: B009 (Pillow declares `fp` only for image files)
    file.seek(0)
    encoded = file.read()
    if isinstance(image, TiffImageFile):
        with open_tiff(encoded, "16-bit colours") as tiff:
            page = tiff.pages[0]
            values = page.asarray()
            is_planar = values.ndim == 3 and values.shape[0] in (3, 4) and page.axes.startswith("S")
        values = np.moveaxis(values, 0, 2) if is_planar else values
        # Pillow applies the orientation tag on decoding.
        orientation = image.tag_v2.get(_ORIENTATION_TAG)
        values = values.swapaxes(0, 1) if orientation in (5, 6, 7, 8) else values
        values = values[:: -1 if orientation in (3, 4, 7, 8) else 1, :: -1 if orientation in (2, 3, 6, 7) else 1]
    else:
        # Imported here, because importing these modules takes seconds and few images need them.
        import torch
        from torchvision.io import ImageReadMode, decode_png

        try:
            pixels = decode_png(torch.frombuffer(bytearray(encoded), dtype=torch.uint8), mode=ImageReadMode.UNCHANGED)
        except RuntimeError as problem:
            raise ValueError(first_line(problem)) from None
        values = pixels.permute(1, 2, 0).numpy()
    if values.shape[:2] != (image.height, image.width):
        raise ValueError(
            f"the image has values of shape {values.shape}, but its header says {image.width} x {image.height} pixels"
        )
    if values.ndim == 3 and values.shape[2] in _ALPHA_CHANNELS and not keep_alpha:
        values = values[..., :-1]
    return values[..., 0] if values.ndim == 3 and values.shape[2] == 1 else values


def to_8_bits(values: NDArray[np.generic], value_range: tuple[float, float] | None) -> Image.Image:
    """Scale (H, W) or (H, W, 3) values to an 8-bit image; None means a range of 0 to 65,535."""
    if values.dtype.kind not in "iuf" or values.ndim not in (2, 3):
        raise ValueError(
            f"the pixels have the type {values.dtype} and the shape {values.shape}, expected numbers with 2 or 3 axes"
        )
    if value_range is None:
        if values.dtype.kind == "f":
            raise ValueError("the pixels are floats of unknown range (save the image with 8 or 16 bits)")
        integers = values.astype(np.int64)
        if integers.min() < 0 or integers.max() > _MAX_VALUE:
            raise ValueError("the pixels are integers beyond 16 bits (save the image with 8 or 16 bits)")
        return Image.fromarray(((integers * 255 + _MAX_VALUE // 2) // _MAX_VALUE).astype(np.uint8))
    low, high = value_range
    scaled = (values.astype(np.float64) - low) * (255 / (high - low))
    return Image.fromarray(np.nan_to_num(scaled, nan=0.0).clip(0, 255).round().astype(np.uint8))


def open_tiff(source: bytes | Path, content: str) -> Any:
    """Open a TIFF with tifffile; if tifffile is not installed, raise a ValueError that names the TIFF's `content`."""
    try:
        import tifffile
    except ImportError:
        raise ValueError(
            f"the image is a TIFF with {content}; to read such files: pip install 'paucal[tiff]'"
        ) from None
    return tifffile.TiffFile(io.BytesIO(source) if isinstance(source, bytes) else source)


def _has_16_bit_colours(image: Image.Image) -> bool:
    """Return whether this is a 16-bit colour image; Pillow would drop its lower bits or mix its planes."""
    tiles, colours = getattr(image, "tile", None), image.mode in ("RGB", "RGBA", "RGBX", "LA")
    if not colours or not tiles or getattr(image, "fp", None) is None:
        return False
    if isinstance(image, TiffImageFile):
        return max(image.tag_v2.get(_BITS_TAG, (8,))) > 8
    return image.format == "PNG" and ";16" in str(tiles[0][3])
