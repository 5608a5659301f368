"""Stores over encoded files and over arrays in memory."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.channels.decoding import check_image, decode_image, image_shape
from paucal.data.decode import ImageSource


class Stamp(NamedTuple):
    """What tells that an encoded image is the one that was looked at before, without reading it.

    Attributes:
        name: where it is, on this machine.
        size: of its file in bytes.
        changed: time of the file's last change in nanoseconds.
    """

    name: str
    size: int
    changed: int


def stamp_of(file: Path) -> Stamp | None:
    """Return the stamp of a file; None where it cannot be asked."""
    try:
        found = file.stat()
    except OSError:
        return None
    return Stamp(str(file), found.st_size, found.st_mtime_ns)


class EncodedStore(ABC):
    """A store of encoded images; a subclass says where the bytes are and how the image is called."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def source(self, index: int) -> ImageSource:
        """Return the encoded bytes or the path of the file."""

    @abstractmethod
    def name(self, index: int) -> str:
        """Return the name used in messages."""

    def stamp(self, index: int) -> Stamp | None:
        """Return what an image is recognised by; None where only its bytes tell."""
        return None

    def read(self, index: int) -> Image.Image:
        """Return the upright 8-bit RGB image."""
        return decode_image(self.source(index), self.name(index))

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width) from the header."""
        return image_shape(self.source(index), self.name(index))

    def check(self, index: int) -> None:
        """Decode the image as cheaply as possible and raise if that fails."""
        check_image(self.source(index), self.name(index))


class Reopened(ABC):
    """A store that holds files open: a process that it is sent to gets its `kept` attributes, and opens them anew."""

    kept: ClassVar[tuple[str, ...]] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Begin without an open file."""


class FileStore(EncodedStore):
    """Image files below one folder, named by their paths relative to it."""

    def __init__(self, root: Path, keys: list[str]) -> None:
        self._root, self._keys = root, keys

    def __len__(self) -> int:
        return len(self._keys)

    def source(self, index: int) -> Path:
        """Return the path of the file."""
        return self._root / self._keys[index]

    def name(self, index: int) -> str:
        """Return the relative path."""
        return self._keys[index]

    def stamp(self, index: int) -> Stamp | None:
        """Return the path with size and time of the file."""
        return stamp_of(self.source(index))


class ArrayStore:
    """Images of one size in an array.

    Args:
        pixels: (N, H, W) grey or (N, H, W, 3) RGB, uint8.
    """

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4):
            raise ValueError(f"expected (N, H, W) or (N, H, W, 3) uint8, got {pixels.shape} {pixels.dtype}")
        self._pixels = pixels

    def __len__(self) -> int:
        return len(self._pixels)

    def read(self, index: int) -> Image.Image:
        """Return the image as RGB."""
        return Image.fromarray(self._pixels[index]).convert("RGB")

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width)."""
        return self._pixels.shape[1], self._pixels.shape[2]

    def check(self, index: int) -> None:
        """Accept: pixels in memory are always readable."""
