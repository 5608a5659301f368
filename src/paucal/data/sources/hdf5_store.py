"""Images in an HDF5 file, read one by one."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.decode import UnreadableImage
from paucal.data.sources.stores import Reopened


def read_array(file: Path, name: str) -> Any:
    """Open a file and return its data set `name`, which must lie in that very file.

    HDF5 can point into other files; a file from outside shall not choose what is read.

    Raises:
        ValueError: there is no such data set, or its values lie elsewhere.
        OSError: the file is damaged or no HDF5 file.
    """
    import h5py

    handle = h5py.File(file, "r")
    found = handle[name] if isinstance(handle.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(found, h5py.Dataset) or found.is_virtual or found.external:
        raise ValueError(f"{file.name} has no data set '{name}' of its own")
    return found


class Hdf5Store(Reopened):
    """The images of a (N, H, W, 3) uint8 data set.

    The file is opened where it is first read and again in every process that the store is sent to. h5py lets one
    thread read at a time.

    Raises:
        ValueError: the data set has another shape or type.
        OSError: the file cannot be read.
    """

    kept = ("_file", "_name", "_shape")

    def __init__(self, file: Path, name: str) -> None:
        self._file, self._name = file, name
        self._begin()
        self._shape = self._array().shape
        if len(self._shape) != 4 or self._shape[3] != 3 or self._array().dtype != np.uint8:
            raise ValueError(f"{file.name} holds {self._array().dtype} of shape {self._shape}, not 8-bit RGB images")

    def __len__(self) -> int:
        return self._shape[0]

    def read(self, index: int) -> Image.Image:
        """Return the image; raises `UnreadableImage` where its piece of the file is damaged."""
        try:
            with self._lock:
                pixels: NDArray[np.uint8] = self._array()[index]
        except (OSError, ValueError) as problem:
            raise UnreadableImage(f"image {index} of {self._file.name} cannot be read: {problem}") from None
        return Image.fromarray(pixels)

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width)."""
        return self._shape[1], self._shape[2]

    def check(self, index: int) -> None:
        """Read the image."""
        self.read(index)

    def _begin(self) -> None:
        self._opened: Any = None
        self._owner = 0
        self._lock = threading.Lock()

    def _array(self) -> Any:
        # A worker that was forked does not use its parent's handle, whose state may be anything.
        if self._opened is None or self._owner != os.getpid():
            self._opened, self._owner = read_array(self._file, self._name), os.getpid()
        return self._opened
