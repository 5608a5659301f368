"""Conversion of the images and class labels that are passed to the scikit-learn estimators."""

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

Images = Any  # a sequence of paths, PIL images or uint8 arrays, one uint8 array of all images, or a one-column table
EXPECTED_IMAGES = (
    "expected paths, PIL images, or uint8 arrays of (height, width) or (height, width, channels): a list, an array of "
    "(images, height, width[, channels]), or a table with one column"
)


def list_images(images: Images) -> list[str | ImageInMemory]:
    """Convert X to a list of paths, PIL images and uint8 arrays."""
    if isinstance(images, str | os.PathLike | Image.Image):
        raise ValueError(f"X is a single image, {EXPECTED_IMAGES}.")
    items = [os.fspath(image) if isinstance(image, os.PathLike) else image for image in _iterate_images(images)]
    if not items:
        raise ValueError("X has no images (0 samples), at least 1 is required.")
    for index, image in enumerate(items):
        is_array = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim in (2, 3)
        if not is_array and not isinstance(image, str | Image.Image):
            actual = f"an array of {image.shape} {image.dtype}" if isinstance(image, np.ndarray) else repr(type(image))
            raise ValueError(f"X[{index}] is {actual}, {EXPECTED_IMAGES}.")
    return items


def _iterate_images(images: Images) -> Iterable[Any]:
    if is_frame(images) and hasattr(images, "columns"):
        columns = columns_of(images)
        if len(columns) != 1:
            raise ValueError(
                f"X has the columns {', '.join(columns)}, expected one column: select the column of images."
            )
        return next(iter(columns.values()))
    if isinstance(images, np.ndarray) and images.dtype.kind in "OUS" and images.ndim == 2 and images.shape[1] == 1:
        return images[:, 0]  # ColumnTransformer passes a single column in this form
    if hasattr(images, "tocsr"):
        raise ValueError(f"X is a sparse matrix, and sparse input is not supported: {EXPECTED_IMAGES}.")
    is_scalar = isinstance(images, bytes) or (isinstance(images, np.ndarray) and images.ndim == 0)
    if is_scalar or not isinstance(images, Iterable):
        raise ValueError(f"X is of the type {type(images).__name__}, {EXPECTED_IMAGES}.")
    return images


def name_classes(classes: NDArray[Any]) -> list[str]:
    """Return a name for each class: the class as text, or "class_0", "class_1", ... if a table would change a name."""
    names = [str(name) for name in classes]
    is_plain = list(plain_if_distinct(names)) == names and not any(is_missing(name) for name in names)
    if is_plain and len({name.strip() for name in names}) == len(names) and all(name == name.strip() for name in names):
        return names
    return [f"class_{number}" for number in range(len(names))]


def reorder_columns(
    probabilities: Sequence[NDArray[np.float32]], classes: Sequence[str], new_order: Sequence[str]
) -> NDArray[Any]:
    """Stack N rows of K probabilities to one (N, K) array, with the columns in the new order of the classes."""
    return np.stack(probabilities)[:, [list(classes).index(name) for name in new_order]].astype(np.float64)
