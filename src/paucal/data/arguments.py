"""Images and paths that a caller of Python gives: one or several, sorted out before anything is opened."""

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
    """Return the images in memory of a call, one by one.

    Args:
        images: One PIL image or array, or several: a list, another iterable, or an array of (images, height, width,
            channels).

    Raises:
        UserError: Something else was given.
    """
    expected = f"expected {IMAGES}"
    entries: list[ImageInMemory] = []
    for number, one in enumerate(_several(images, expected), start=1):
        if isinstance(one, str | os.PathLike):
            raise UserError(f"image {number} is a path ({os.fsdecode(one)!r}), {expected}: open it first.")
        entries.append(_image(one, number, expected))
    return entries


def list_sources(images: Any) -> list[str | ImageInMemory]:
    """Return the paths and the images in memory of a call, one by one; see `list_images`.

    Raises:
        UserError: Something else was given.
    """
    expected = f"expected {PATHS}, {IMAGES}"
    return [
        os.fsdecode(one) if isinstance(one, str | os.PathLike) else _image(one, number, expected)
        for number, one in enumerate(_several(images, expected), start=1)
    ]


def path_text(path: Any, what: str) -> str:
    """Return a path as text.

    Args:
        path: Text, or what has a path, such as the result of `paucal.train`.
        what: Name of the argument, for people.

    Raises:
        UserError: It is neither.
    """
    try:
        return os.fsdecode(path)
    except TypeError:
        raise UserError(f"{what} is of the type {_kind(path)}, expected a path, such as 'runs/1'.") from None


def _several(images: Any, expected: str) -> Iterable[Any]:
    """Return what a caller gives as several images; one alone is a list of one."""
    if isinstance(images, str | os.PathLike | Image.Image | Planes) or _is_array(images):
        return [images]
    # Of a mapping or a table one would get the names of its columns.
    named = isinstance(images, bytes | bytearray | Mapping) or hasattr(images, "columns")
    if named or not isinstance(images, Iterable) or (isinstance(images, np.ndarray) and images.ndim == 0):
        raise UserError(f"the images are of the type {_kind(images)}, {expected}.")
    return images


def _image(one: Any, number: int, expected: str) -> ImageInMemory:
    if isinstance(one, Image.Image | Planes) or _is_array(one):
        return one  # type: ignore[return-value]
    raise UserError(f"image {number} is of the type {_kind(one)}, {expected}.")


def _is_array(value: Any) -> bool:
    """Return whether a value is an array of one image."""
    return isinstance(value, np.ndarray) and value.ndim in (2, 3) and value.dtype.kind in "uifb"


def _kind(value: object) -> str:
    return f"array of {value.ndim} axes" if isinstance(value, np.ndarray) else type(value).__name__
