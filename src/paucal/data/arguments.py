"""Single or several images and paths passed to Python functions, validated before anything is opened."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.channels.pixels import Planes
from paucal.types import UserError

ImageInMemory = Image.Image | NDArray[np.generic]
IMAGES = "PIL images or arrays of (height, width) or (height, width, channels)"
PATHS = "files, folders or patterns as text or paths"


def list_images(images: Any) -> list[ImageInMemory]:
    """Return one or several images in memory (an iterable, or an array (N, H, W, C)) as a list."""
    expected = f"expected {IMAGES}"
    entries: list[ImageInMemory] = []
    for number, image in enumerate(_as_iterable(images, expected), start=1):
        if isinstance(image, str | os.PathLike):
            raise UserError(f"image {number} is a path ({os.fsdecode(image)!r}), {expected}: open it first.")
        entries.append(_check_image(image, number, expected))
    return entries


def list_sources(images: Any) -> list[str | ImageInMemory]:
    """Return paths and images in memory as a list; see `list_images`."""
    expected = f"expected {PATHS}, {IMAGES}"
    return [
        os.fsdecode(source) if isinstance(source, str | os.PathLike) else _check_image(source, number, expected)
        for number, source in enumerate(_as_iterable(images, expected), start=1)
    ]


def path_text(path: Any, what: str) -> str:
    """Return a path, or an object with one such as the result of `paucal.train`, as text; messages call it `what`."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise UserError(f"{what} is of the type {_kind_text(path)}, expected a path, such as 'runs/1'.") from None


def _as_iterable(images: Any, expected: str) -> Iterable[Any]:
    """Return an iterable of the images of an argument, which may be a single image."""
    if isinstance(images, str | os.PathLike | Image.Image | Planes) or _is_array(images):
        return [images]
    # Iterating over a mapping or a table would give the names of its columns.
    has_names = isinstance(images, bytes | bytearray | Mapping) or hasattr(images, "columns")
    if has_names or not isinstance(images, Iterable) or (isinstance(images, np.ndarray) and images.ndim == 0):
        raise UserError(f"the images are of the type {_kind_text(images)}, {expected}.")
    return images


def _check_image(image: Any, number: int, expected: str) -> ImageInMemory:
    if isinstance(image, Image.Image | Planes) or _is_array(image):
        return image  # type: ignore[return-value]
    raise UserError(f"image {number} is of the type {_kind_text(image)}, {expected}.")


def _is_array(value: Any) -> bool:
    """Return whether a value is an array of one image."""
    return isinstance(value, np.ndarray) and value.ndim in (2, 3) and value.dtype.kind in "uifb"


def _kind_text(value: object) -> str:
    return f"array of {value.ndim} axes" if isinstance(value, np.ndarray) else type(value).__name__
