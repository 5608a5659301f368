"""What mean and deviation are made of, per image."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_LEVELS = np.arange(256) / 255


def image_moments(image: Image.Image) -> NDArray[np.float64]:
    """Return the (2, 3) means and mean squares of an RGB image, of values in [0, 1].

    They are exact: how often each of 256 levels occurs says all, and takes no memory however large the image is.
    """
    counts = np.asarray(image.histogram(), dtype=np.float64).reshape(3, 256)
    share = counts / counts.sum(axis=1, keepdims=True)
    return np.stack([share @ _LEVELS, share @ np.square(_LEVELS)])
