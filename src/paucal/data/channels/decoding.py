"""Decoding of images with any number of channels, by Pillow (`data.decode`) if possible, else as arrays.

Values of more than 8 bits are scaled to 8 bits with the value range of the set. Images without exactly three channels
have a range for each channel, since the channels may measure different quantities, such as reflectance and height.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.channels.arrays import ArrayShape, is_npy, is_tiff, npy_shape, read_npy, read_tiff, tiff_shape
from paucal.data.channels.pixels import (
    RGB,
    MultichannelImage,
    has_high_bit_depth,
    high_bit_values,
    image_from_pixels,
    to_8_bits,
)
from paucal.data.decode import (
    DEFAULT_DECODE_OPTIONS,
    DecodeOptions,
    ImageSource,
    UnreadableImage,
    check_decodes,
    decode_reduced,
    decode_rgb,
    open_image,
    read_orientation,
    turn_upright,
    upright_rgb,
    wrap_decoding_errors,
)

GREY, GREY_ALPHA, RGBA = 1, 2, 4  # numbers of channels
MODES = {GREY: "L", GREY_ALPHA: "LA", RGBA: "RGBA"}  # Pillow's modes by number of channels


def decode_image(source: ImageSource, name: str, options: DecodeOptions = DEFAULT_DECODE_OPTIONS) -> Image.Image:
    """Decode an image to `options.channels` channels: to a Pillow RGB image for 3, else to a `MultichannelImage`."""
    if options.channels == RGB and not is_npy(source):
        with _report_channels(source):
            return decode_rgb(source, name, options)
    values = channel_values(source, name, options.channels)
    with wrap_decoding_errors(name):
        return image_from_values(values, options)


def image_shape(source: ImageSource, name: str) -> tuple[int, int]:
    """Return the upright (height, width) from the header, without decoding the pixels."""
    array = array_shape(source, name)
    return read_orientation(source, name).upright_size if array is None else (array.height, array.width)


def check_image(source: ImageSource, name: str, options: DecodeOptions = DEFAULT_DECODE_OPTIONS) -> None:
    """Raise `UnreadableImage` if an image cannot be decoded to its last byte; see `check_decodes`."""
    if options.channels == RGB and not is_npy(source):
        with _report_channels(source):
            check_decodes(source, name, options)
    else:
        decode_image(source, name, options)


def decode_for_display(
    source: ImageSource, name: str, side: int, value_range: tuple[float, float] | None = None
) -> tuple[Image.Image, str, tuple[int, int]]:
    """Decode an image for display, and return its original mode and size; see `decode_reduced`."""
    array = array_shape(source, name)
    if array is None:
        return decode_reduced(source, name, side, value_range)
    values = channel_values(source, name, array.channels)
    with wrap_decoding_errors(name):
        ranges = None
        if values.dtype.itemsize > 1:  # the range of each channel, since that of the set is unknown
            ranges = tuple(value_range_of(values[..., channel]) for channel in range(array.channels))
        image = image_from_values(values, DecodeOptions(side, None, array.channels, ranges))
        mode = f"{array.channels} channels, {values.dtype}" if array.channels > 1 else f"grey, {values.dtype}"
    return image.convert("RGB"), mode, (array.height, array.width)


def array_shape(source: ImageSource, name: str) -> ArrayShape | None:
    """Return the shape in the header of an image that is read as an array; None if Pillow reads the image."""
    with wrap_decoding_errors(name):
        if is_npy(source):
            return npy_shape(source)
        if is_tiff(source):
            try:
                with open_image(source, name):
                    return None
            except UnreadableImage:
                return tiff_shape(source)
    return None


def channel_values(source: ImageSource, name: str, channels: int) -> NDArray[np.generic]:
    """Return the (H, W, channels) values of an image; a grey channel is repeated if `channels` is 3."""
    with wrap_decoding_errors(name):
        if is_npy(source):
            values = read_npy(source, channels)
        else:
            try:
                with open_image(source, name) as image:
                    values = _pillow_image_values(image, channels)
            except UnreadableImage:
                if not is_tiff(source):
                    raise
                values = None  # channels that Pillow does not support
        if values is None and not is_tiff(source):
            raise ValueError(f"Pillow cannot read the image with {channels} channels, {_expected_channels(channels)}")
        return _adapt_channels(read_tiff(source, channels) if values is None else values, channels)


def _adapt_channels(values: NDArray[np.generic], channels: int) -> NDArray[np.generic]:
    if values.shape[2] == GREY and channels == RGB:
        return np.repeat(values, RGB, axis=2)
    if values.shape[2] != channels:
        raise ValueError(f"the image has {values.shape[2]} channels, {_expected_channels(channels)}")
    return values


def high_bit_channel_values(source: ImageSource, name: str, channels: int = RGB) -> NDArray[np.generic] | None:
    """Return the (H, W[, C]) values of an image with more than 8 bits per channel; None if the image has 8 bits."""
    if channels == RGB and not is_npy(source):
        with open_image(source, name) as image:
            return high_bit_values(image) if has_high_bit_depth(image) else None
    values = channel_values(source, name, channels)
    return None if values.dtype.itemsize == 1 else values


def image_from_values(values: NDArray[np.generic], options: DecodeOptions) -> Image.Image:
    """Convert (H, W, C) values to an image as `options` specify; floats need a value range."""
    ranges = options.channel_ranges or (options.value_range,) * values.shape[2]
    if values.dtype.kind == "b":
        values = values.astype(np.uint8) * 255
    if values.dtype == np.uint8:
        return reduce_size(image_from_pixels(values.astype(np.uint8, copy=False)), options)
    planes = [to_8_bits(values[..., channel], ranges[channel]) for channel in range(values.shape[2])]
    return reduce_size(Image.merge("RGB", planes) if len(planes) == RGB else MultichannelImage(planes), options)


def convert_image(image: Image.Image | NDArray[np.generic], options: DecodeOptions) -> Image.Image:
    """Convert an image or (H, W[, C]) values in memory in the same way as `decode_image` converts files."""
    if isinstance(image, np.ndarray):
        values = image[..., None] if image.ndim == 2 else image
        if values.ndim != 3:
            raise ValueError(f"an array has {image.ndim} axes, expected (H, W) or (H, W, C)")
        return image_from_values(_adapt_channels(values, options.channels), options)
    if isinstance(image, MultichannelImage):
        if len(image.planes) != options.channels:
            raise ValueError(f"the image has {len(image.planes)} channels, {_expected_channels(options.channels)}")
        return reduce_size(image, options)
    if options.channels == RGB:
        return upright_rgb(image, options)
    values = _pillow_image_values(image, options.channels)
    if values is None:
        raise ValueError(f"the image has the mode {image.mode}, {_expected_channels(options.channels)}")
    return image_from_values(values, options)


def reduce_size(image: Image.Image, options: DecodeOptions) -> Image.Image:
    """Return an image at the reduced size that `options` specify."""
    size = options.reduced_size(image.size)
    return image if size == image.size else image.resize(size, Image.Resampling.HAMMING, reducing_gap=2.0)


def value_range_of(values: NDArray[np.generic], outside_fraction: float = 0.0) -> tuple[float, float]:
    """Return the (low, high) range of the finite values, without `outside_fraction` of the values at each end."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if not finite.size:
        return 0.0, 1.0
    low, high = (float(edge) for edge in np.quantile(finite, (outside_fraction, 1 - outside_fraction)))
    return (low, high) if high > low else (low, low + 1)


def _pillow_image_values(image: Image.Image, channels: int) -> NDArray[np.generic] | None:
    if has_high_bit_depth(image):
        values = np.atleast_3d(high_bit_values(image, keep_alpha=True))
        return values if values.shape[2] == channels else None
    if channels not in MODES or (channels != GREY and image.mode not in ("LA", "RGBA", "PA", "P", "CMYK")):
        return None
    upright = turn_upright(image)
    if image.mode == "CMYK" and channels == RGBA:
        return np.asarray(upright)
    return np.atleast_3d(np.asarray(upright.convert(MODES[channels])))


@contextmanager
def _report_channels(source: ImageSource) -> Iterator[None]:
    """If a TIFF cannot be decoded to RGB in the `with` block because of more channels, report their number."""
    try:
        yield
    except UnreadableImage as problem:
        if not is_tiff(source):
            raise
        try:
            shape = tiff_shape(source)
        except Exception:  # keep Pillow's message
            raise problem from None
        if shape.channels <= RGBA:
            raise
        prefix = str(problem).partition(":")[0]
        raise UnreadableImage(f"{prefix}: the image has {shape.channels} channels, {_expected_channels(RGB)}") from None


def _expected_channels(channels: int) -> str:
    return f"expected {channels} (--channels sets the number)"
