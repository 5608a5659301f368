"""Images and labels as scikit-learn's estimators take them."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.arguments import ImageInMemory
from paucal.data.classes import plain_if_distinct
from paucal.data.sources.labels import is_missing
from paucal.runner.frames import columns_of, is_frame

Images = Any  # a sequence of paths or pictures, an array of uint8, or a table with one column of them
EXPECTED = (
    "expected paths, PIL images, or uint8 arrays of (height, width) or (height, width, channels): a list, an array of "
    "(images, height, width[, channels]), or a table with one column"
)


def list_images(images: Images) -> list[str | ImageInMemory]:
    """Return X as a list of paths and pictures."""
    if isinstance(images, str | os.PathLike | Image.Image):
        raise ValueError(f"X is a single image, {EXPECTED}.")
    items = [os.fspath(image) if isinstance(image, os.PathLike) else image for image in _rows_of(images)]
    if not items:
        raise ValueError("X has no images (0 samples), at least 1 is required.")
    for index, image in enumerate(items):
        is_array = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim in (2, 3)
        if not is_array and not isinstance(image, str | Image.Image):
            kind = f"an array of {image.shape} {image.dtype}" if isinstance(image, np.ndarray) else repr(type(image))
            raise ValueError(f"X[{index}] is {kind}, {EXPECTED}.")
    return items


def _rows_of(images: Images) -> Iterable[Any]:
    if is_frame(images) and hasattr(images, "columns"):
        columns = columns_of(images)
        if len(columns) != 1:
            raise ValueError(f"X has the columns {', '.join(columns)}, expected one column of images: select it.")
        return next(iter(columns.values()))
    if isinstance(images, np.ndarray) and images.dtype.kind in "OUS" and images.ndim == 2 and images.shape[1] == 1:
        return images[:, 0]  # ColumnTransformer passes a single column in this form
    if hasattr(images, "tocsr"):
        raise ValueError(f"X is a sparse matrix, and sparse input is not supported: {EXPECTED}.")
    is_scalar = isinstance(images, bytes) or (isinstance(images, np.ndarray) and images.ndim == 0)
    if is_scalar or not isinstance(images, Iterable):
        raise ValueError(f"X is of the type {type(images).__name__}, {EXPECTED}.")
    return images


def name_classes(classes: NDArray[Any]) -> list[str]:
    """Return a name for each class: its text, or its number if a text could be read as something else."""
    names = [str(name) for name in classes]
    plain = list(plain_if_distinct(names)) == names and not any(is_missing(name) for name in names)
    if plain and len({name.strip() for name in names}) == len(names) and all(name == name.strip() for name in names):
        return names
    return [f"class_{number}" for number in range(len(names))]


def order_columns(shares: Sequence[NDArray[np.float32]], given: Sequence[str], wanted: Sequence[str]) -> NDArray[Any]:
    """Return (N, K) probabilities with the classes in another order."""
    return np.stack(shares)[:, [list(given).index(name) for name in wanted]].astype(np.float64)
