"""Masks that tests write."""

from pathlib import Path

import numpy as np
from PIL import Image


def save(path: Path, values, mode: str | None = None) -> Path:
    """Write an array as an image, with its folders; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values), mode).save(path) if mode else Image.fromarray(np.asarray(values)).save(path)
    return path


def grey(*rows) -> np.ndarray:
    """Return 8-bit grey values."""
    return np.asarray(rows, dtype=np.uint8)
