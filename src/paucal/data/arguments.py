"""Validation of the images and paths that are passed to paucal's Python functions, before any image is opened."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.channels.pixels import MultichannelImage
from paucal.types import UserError

ImageInMemory = Image.Image | NDArray[np.generic]
_EXPECTED_IMAGES = "PIL images or arrays of (height, width) or (height, width, channels)"
_EXPECTED_PATHS = "files, folders or patterns as text or paths"


def list_images(images: Any) -> list[ImageInMemory]:
    """Return images as a list; `images` is one image, an iterable of images, or an array (N, H, W, C)."""
    expected = f"expected {_EXPECTED_IMAGES}"
    entries: list[ImageInMemory] = []
    for number, image in enumerate(_as_iterable(images, expected), start=1):
        if isinstance(image, str | os.PathLike):
            raise UserError(f"image {number} is a path ({os.fsdecode(image)!r}), {expected}: open the image first.")
        entries.append(_check_image(image, number, expected))
    return entries


def list_sources(images: Any) -> list[str | ImageInMemory]:
    """Return a list of paths (as text) and images in memory; a single path or image is accepted too."""
    expected = f"expected {_EXPECTED_PATHS}, {_EXPECTED_IMAGES}"
    return [
        os.fsdecode(source) if isinstance(source, str | os.PathLike) else _check_image(source, number, expected)
        for number, source in enumerate(_as_iterable(images, expected), start=1)
    ]


def path_text(path: Any, subject: str) -> str:
    """Return a path-like object as text; `subject` is what the error message calls it, such as "the run"."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise UserError(
            f"{subject} is of the type {_describe_type(path)}, expected a path, such as 'runs/1'."
        ) from None


def _as_iterable(images: Any, expected: str) -> Iterable[Any]:
    """Return the images or paths of an argument as an iterable; a single image or path becomes a list of length 1."""
    if isinstance(images, str | os.PathLike | Image.Image | MultichannelImage) or _is_array(images):
        return [images]
    # Iterating over a mapping or a table would give its column names, and iterating over bytes would give integers.
    is_invalid = isinstance(images, bytes | bytearray | Mapping) or hasattr(images, "columns")
    if is_invalid or not isinstance(images, Iterable) or (isinstance(images, np.ndarray) and images.ndim == 0):
        raise UserError(f"the images are of the type {_describe_type(images)}, {expected}.")
    return images


def _check_image(image: Any, number: int, expected: str) -> ImageInMemory:
    if isinstance(image, Image.Image | MultichannelImage) or _is_array(image):
        return image  # type: ignore[return-value]
    raise UserError(f"image {number} is of the type {_describe_type(image)}, {expected}.")


def _is_array(value: Any) -> bool:
    """Return whether a value is an array with the axes and the data type of one image."""
    return isinstance(value, np.ndarray) and value.ndim in (2, 3) and value.dtype.kind in "uifb"


def _describe_type(value: object) -> str:
    return f"array with {value.ndim} axes" if isinstance(value, np.ndarray) else type(value).__name__
