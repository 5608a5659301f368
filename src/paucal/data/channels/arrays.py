"""Reads images stored as arrays: `.npy` files, and TIFF files with channels that Pillow does not support.

Files are untrusted, so nothing is unpickled.
"""

import io
import stat
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image

from paucal.data.channels.pixels import open_tiff
from paucal.data.decode import ImageSource, check_shape

NPY_SUFFIXES, TIFF_SUFFIXES = (".npy",), (".tif", ".tiff")
MAX_CHANNELS = 1024  # largest number of channels of an image
_NPY_MAGIC = b"\x93NUMPY"
_TIFF_MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_DTYPE_KINDS = "buif"  # NumPy's letters for boolean, unsigned integer, signed integer and float types


class ArrayShape(NamedTuple):
    """Shape of an image, and the axis of the channels in its array (None if the array has two axes)."""

    height: int
    width: int
    channels: int
    axis: int | None


def is_npy(source: ImageSource) -> bool:
    """Return whether a file or bytes hold a NumPy array."""
    return _first_bytes(source).startswith(_NPY_MAGIC)


def is_tiff(source: ImageSource) -> bool:
    """Return whether a file or bytes hold a TIFF."""
    return _first_bytes(source).startswith(_TIFF_MAGICS)


def npy_shape(source: ImageSource) -> ArrayShape:
    """Return the shape in a NumPy file's header; the shorter of the first and the last axis has the channels."""
    with _open_binary(source) as file:
        return _npy_header(file, None)


def read_npy(source: ImageSource, channels: int | None = None) -> NDArray[np.generic]:
    """Return the (H, W, C) values of a NumPy file; the number of `channels`, if known, shows which axis is C."""
    with _open_binary(source) as file:
        shape = _npy_header(file, channels)
        file.seek(0)
        return _move_channels_last(npy.read_array(file, allow_pickle=False), shape.axis)


def read_tiff(source: ImageSource, channels: int | None = None) -> NDArray[np.generic]:
    """Return the (H, W, C) values of a TIFF, whose channels may be samples, planes or pages; this needs tifffile."""
    with open_tiff(source, "several channels") as file:
        series = file.series[0]
        shape = _tiff_shape(series, channels)
        values = series.asarray()
    size = (shape.height, shape.width)
    axes = size if shape.axis is None else (*size, shape.channels) if shape.axis else (shape.channels, *size)
    return _move_channels_last(values.reshape(axes), shape.axis)


def tiff_shape(source: ImageSource) -> ArrayShape:
    """Return the shape of a TIFF from its header."""
    with open_tiff(source, "several channels") as file:
        return _tiff_shape(file.series[0], None)


def _npy_header(file: BinaryIO, channels: int | None) -> ArrayShape:
    version = npy.read_magic(file)
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read_header is None:
        raise ValueError(f"the array has version {version} of NumPy's format, expected 1.0 or 2.0")
    shape, _, dtype = read_header(file)
    image_shape, start = _array_shape(shape, dtype, channels), file.tell()
    if file.seek(0, io.SEEK_END) - start < prod(shape) * dtype.itemsize:
        raise ValueError("the array is truncated")
    return image_shape


def _tiff_shape(series: Any, channels: int | None) -> ArrayShape:
    sides = [(side, axis) for side, axis in zip(series.shape, series.axes, strict=True) if side > 1 or axis in "YX"]
    shape, axes = [side for side, _ in sides], "".join(axis for _, axis in sides)
    # The names of other axes do not show which axis has the channels.
    channels_first = not axes.startswith("YX") if axes in ("YXS", "SYX", "CYX", "YXC") else None
    return _array_shape(shape, np.dtype(series.dtype), channels, channels_first)


def _array_shape(
    shape: Sequence[int], dtype: np.dtype, channels: int | None, channels_first: bool | None = None
) -> ArrayShape:
    """Return the shape of an image from the shape of its array; `channels` and `channels_first` are None if unknown."""
    if dtype.kind not in _DTYPE_KINDS or len(shape) not in (2, 3) or min(shape) < 1:
        raise ValueError(
            f"the array has the type {dtype} and the shape {tuple(shape)}, expected numbers with 2 axes, or with "
            "a third axis for the channels"
        )
    if channels_first is None and len(shape) == 3:
        channels_first = shape[0] < shape[2]
        if channels is not None and (shape[0] == channels) != (shape[2] == channels):
            channels_first = shape[0] == channels
    if len(shape) == 2:
        image_shape = ArrayShape(shape[0], shape[1], 1, None)
    elif channels_first:
        image_shape = ArrayShape(shape[1], shape[2], shape[0], 0)
    else:
        image_shape = ArrayShape(shape[0], shape[1], shape[2], 2)
    if image_shape.channels > MAX_CHANNELS:
        raise ValueError(f"the image has {image_shape.channels:,} channels, expected at most {MAX_CHANNELS:,}")
    check_shape(image_shape.width, image_shape.height)
    if prod(shape) > 6 * (Image.MAX_IMAGE_PIXELS or prod(shape)):  # twice Pillow's limit of pixels, times 3 channels
        raise Image.DecompressionBombError
    return image_shape


def _move_channels_last(values: NDArray[np.generic], axis: int | None) -> NDArray[np.generic]:
    return values[..., None] if axis is None else np.moveaxis(values, axis, 2)


def _first_bytes(source: ImageSource) -> bytes:
    if isinstance(source, bytes):
        return source[:8]
    try:
        if not stat.S_ISREG(source.stat().st_mode):  # reading a pipe would block
            return b""
        with source.open("rb") as file:
            return file.read(8)
    except OSError:  # reported when the whole file is read
        return b""


def _open_binary(source: ImageSource) -> AbstractContextManager[BinaryIO]:
    return nullcontext(io.BytesIO(source)) if isinstance(source, bytes) else source.open("rb")
