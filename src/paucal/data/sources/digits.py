"""The built-in data: 1,797 handwritten digits of 8 x 8 grey pixels that scikit-learn ships."""

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from paucal.data.images import Hints, ImageSet
from paucal.data.sources.stores import ArrayStore

_BRIGHTEST = 16  # scikit-learn's digits have 17 grey levels, 0 to 16


def open_digits(labelled: bool = True) -> ImageSet:
    """Return scikit-learn's digits: real, small, always there.

    The hints ask for 16 pixels (8 leave a patch model too few tokens), for no mirroring, and for so few epochs that a
    first run takes about a minute.
    """
    data: Any = load_digits()
    pixels = np.rint(data.images * (255 / _BRIGHTEST)).astype(np.uint8)
    return ImageSet(
        name="digits",
        location="digits",
        classes=tuple(str(name) for name in data.target_names) if labelled else (),
        keys=[f"digits#{row}" for row in range(len(pixels))],
        labels=data.target.astype(np.int64) if labelled else np.full(len(pixels), -1, dtype=np.int64),
        declared=[""] * len(pixels),
        store=ArrayStore(pixels),
        hints=Hints(flip=False, image_size=16, epochs=16),
    )
