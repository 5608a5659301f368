"""Stores, which read the pixels of images by position from encoded files, arrays or other stores."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.channels.decoding import check_image, convert_image, decode_image, image_shape, reduce_size
from paucal.data.channels.pixels import RGB, image_from_pixels
from paucal.data.decode import DEFAULT_DECODE_OPTIONS, DecodeOptions, ImageSource, wrap_decoding_errors


class Store(Protocol):
    """Reads images by position; picklable, so that loader workers can be spawned."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Image.Image:
        """Return the upright 8-bit RGB image; raises `UnreadableImage`."""
        ...

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width) without decoding the pixels; raises `UnreadableImage`."""
        ...

    def check(self, index: int) -> None:
        """Raise `UnreadableImage` if `read` would raise it."""
        ...


class NestedStore(ABC):
    """A store that reads each of its images from another store."""

    @abstractmethod
    def locate(self, index: int) -> tuple[Store, int]:
        """Return the store that contains an image, and the position of the image in that store."""

    def read(self, index: int) -> Image.Image:
        """Return the image."""
        store, position = self.locate(index)
        return store.read(position)

    def size(self, index: int) -> tuple[int, int]:
        """Return the image's (height, width)."""
        store, position = self.locate(index)
        return store.size(position)

    def check(self, index: int) -> None:
        """Raise if the image cannot be read."""
        store, position = self.locate(index)
        store.check(position)


class DecodedCopies(ABC):
    """A store of decoded, possibly smaller copies of another store's images."""

    def __init__(self, original: Store | None) -> None:
        self.original = original

    @abstractmethod
    def view(self, index: int) -> NDArray[np.uint8] | None:
        """Return the (H, W, C) pixels of an image without copying them; None if they no longer exist."""

    def read(self, index: int) -> Image.Image:
        """Return the decoded image as a copy, or else the original image."""
        if (view := self.view(index)) is not None:
            return image_from_pixels(view)
        assert self.original is not None
        return self.original.read(index)

    def check(self, index: int) -> None:  # noqa: B027
        """Do nothing, since decoded copies are readable."""

    def digest(self, index: int) -> bytes | None:
        """Return the digest of the original image's bytes; None if it is unknown."""
        return None


def locate(store: Store, index: int) -> tuple[Store, int]:
    """Return the innermost store that contains an image, and the position of the image in that store."""
    while isinstance(store, NestedStore):
        store, index = store.locate(index)
    return store, index


def locate_original(store: Store, index: int) -> tuple[Store, int]:
    """Return the store of the original image, not of a decoded copy, and the position of the image in that store."""
    store, index = locate(store, index)
    while isinstance(store, DecodedCopies) and store.original is not None:
        store, index = locate(store.original, index)
    return store, index


class StoreSelection(NestedStore):
    """The images of another store at the positions `indices`, in that order."""

    def __init__(self, store: Store, indices: NDArray[np.int64]) -> None:
        self._store, self._indices = store, np.asarray(indices, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._indices)

    def locate(self, index: int) -> tuple[Store, int]:
        """Return the store that contains an image, and the position of the image in that store."""
        return self._store, int(self._indices[index])


class JoinedStore(NestedStore):
    """The images of several stores, one store after the other."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self._stores = list(stores)
        self._ends = np.cumsum([len(store) for store in stores])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def locate(self, index: int) -> tuple[Store, int]:
        """Return the store that contains an image, and the position of the image in that store."""
        store_number = int(np.searchsorted(self._ends, index, side="right"))
        return self._stores[store_number], index - (int(self._ends[store_number - 1]) if store_number else 0)


class FileStamp(NamedTuple):
    """Path, size in bytes and modification time of an image file, read without the content of the file."""

    name: str
    size: int
    modified_ns: int


class EncodedStore(ABC):
    """A store of encoded images, whose bytes are provided by subclasses; `keys` are the images' names in messages."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def name(self, index: int) -> str:
        """Return the name of an image as shown in messages."""
        return self._keys[index]

    @abstractmethod
    def source(self, index: int) -> ImageSource:
        """Return the encoded bytes of an image, or the path of its file."""

    def stamp(self, index: int) -> FileStamp | None:
        """Return the name, size and modification time of an image's file; None if the image has no file."""
        return None

    def prefetch(self, index: int) -> None:  # noqa: B027
        """Download the file of an image if the file is remote; `source` raises the error if the download fails."""

    def read(self, index: int) -> Image.Image:
        """Return the upright 8-bit RGB image."""
        return decode_image(self.source(index), self.name(index))

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width) from the header."""
        return image_shape(self.source(index), self.name(index))

    def check(self, index: int) -> None:
        """Decode the image as cheaply as possible and raise if that fails."""
        check_image(self.source(index), self.name(index))


class FileStore(EncodedStore):
    """Image files below one folder, named by their paths relative to that folder."""

    def __init__(self, root: Path, keys: list[str]) -> None:
        super().__init__(keys)
        self._root = root

    def source(self, index: int) -> Path:
        """Return the path of the file."""
        return self._root / self._keys[index]

    def stamp(self, index: int) -> FileStamp | None:
        """Return the path, size and modification time of the file; None if the file cannot be accessed."""
        file = self.source(index)
        try:
            status = file.stat()
        except OSError:
            return None
        return FileStamp(str(file), status.st_size, status.st_mtime_ns)


class ArrayStore:
    """Images of one size in a uint8 array, (N, H, W) grey or (N, H, W, 3) RGB."""

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
        """Do nothing, since pixels in memory are always readable."""


class ConvertedStore(NestedStore):
    """The images of another store, converted as `DecodeOptions` specifies; `size` returns the size of the original."""

    def __init__(self, original: Store, options: DecodeOptions) -> None:
        self.original, self.options = original, options

    def __len__(self) -> int:
        return len(self.original)

    def locate(self, index: int) -> tuple[Store, int]:
        """Return the store with the unconverted images, and the position of the image in that store."""
        return self.original, index

    def read(self, index: int) -> Image.Image:
        """Return the converted image; a JPEG is decoded at the smallest sufficient size."""
        store, position = locate(self.original, index)
        if isinstance(store, EncodedStore):
            return decode_image(store.source(position), store.name(position), self.options)
        if self.options.channels == RGB:
            return reduce_size(store.read(position), self.options)
        with wrap_decoding_errors(f"number {index + 1}"):
            return convert_image(store.read(position), self.options)

    def check(self, index: int) -> None:
        """Raise if the image cannot be read."""
        store, position = locate(self.original, index)
        if isinstance(store, EncodedStore):
            check_image(store.source(position), store.name(position), self.options)
        elif self.options.channels == RGB:
            store.check(position)
        else:
            self.read(index)


class RgbStore(ConvertedStore):
    """The first three channels of another store's images, in RGB."""

    def __init__(self, original: Store) -> None:
        super().__init__(original, DEFAULT_DECODE_OPTIONS)

    def read(self, index: int) -> Image.Image:
        """Return the image in RGB."""
        return self.original.read(index).convert("RGB")
