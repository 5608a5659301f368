"""Files of the image cache: the decoded images of a set, which each process maps into memory, and digests of images."""

import hashlib
import json
import os
import threading
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.channels.pixels import RGB, moments_of, pixels_of
from paucal.data.decoded.cache_folder import DIGESTS_SUFFIX, INDEX_SUFFIX, PIXELS_SUFFIX, UNFINISHED_SUFFIX
from paucal.data.stores import DecodedCopies, FileStamp, Store

DIGEST_BYTES = 16  # bytes per digest
_MARK_BYTES = 16  # size of the mark at the end of a file of pixels
_MIN_MOMENTS_SIDE = 128  # smallest shorter side in pixels for which moments are stored
_STAMP_DTYPE = np.dtype([("name", "S16"), ("size", np.int64), ("changed", np.int64)])
_StampKey = tuple[bytes, int, int]


class CacheFullError(Exception):
    """Error: the decoded images take up more bytes than the limit."""


def make_entry_table(count: int, channels: int = RGB) -> NDArray[np.void]:
    """Return an empty table for the index of a cache entry: an (N,) array with one record per image.

    `offsets` are the byte offsets in the file at which the images begin, `shapes` the heights and widths in pixels of
    the stored, possibly reduced images, `sizes` those of the original images, and `digests` those of the encoded
    images. `moments` are the means and mean squares of the channels (`moments_of`), or NaN for images whose shorter
    side is below 128 pixels, since these moments are quickly computed when they are needed.
    """
    fields = [("offsets", np.int64), ("shapes", np.int64, 2), ("sizes", np.int64, 2)]
    return np.zeros(count, [*fields, ("moments", np.float64, (2, channels)), ("digests", np.uint8, DIGEST_BYTES)])


class MappedEntry:
    """A memory-mapped cache entry. A process that unpickles the entry maps the file again.

    The file has the (H, W, C) uint8 pixels of one image after the other, then the `mark`: random bytes that are also in
    the table, to show that the two belong together. Another process may replace the table or the file at any time, with
    the same images in a different order. If the marks differ, `MappedEntry` raises a ValueError.
    """

    def __init__(self, path: Path, table: NDArray[np.void], mark: bytes) -> None:
        self.path, self.table, self._mark = path, table, mark
        self._pixels: NDArray[np.uint8] | None = _map_file(path, mark)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_pixels": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        try:
            self._pixels = _map_file(self.path, self._mark)
        except (OSError, ValueError):  # the file was removed or replaced in the meantime
            self._pixels = None

    def view(self, row: int) -> NDArray[np.uint8] | None:
        """Return the (H, W, C) pixels of an image without copying them; None if the file was removed or replaced."""
        if self._pixels is None:
            return None
        height, width = self.table["shapes"][row].tolist()
        start, channels = int(self.table["offsets"][row]), self.table["moments"].shape[-1]
        return self._pixels[start : start + height * width * channels].reshape(height, width, channels)


def _map_file(path: Path, mark: bytes) -> NDArray[np.uint8]:
    """Map a file into memory as a plain array, since slicing a `memmap` takes three times as long."""
    pixels = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
    if not mark or pixels[-len(mark) :].tobytes() != mark:
        raise ValueError("the file belongs to another table")
    return pixels


class MappedStore(DecodedCopies):
    """Decoded images in a memory-mapped file that all processes share; if the file is gone, the original is read."""

    def __init__(self, original: Store, entry: MappedEntry) -> None:
        super().__init__(original)
        self.entry = entry

    def __len__(self) -> int:
        return len(self.entry.table)

    def view(self, index: int) -> NDArray[np.uint8] | None:
        """Return the (H, W, C) pixels of an image without copying them; None if the file was removed or replaced."""
        return self.entry.view(index)

    def size(self, index: int) -> tuple[int, int]:
        """Return the (height, width) of the original image, which may be larger than the stored image."""
        height, width = self.entry.table["sizes"][index].tolist()
        return height, width

    def digest(self, index: int) -> bytes:
        """Return the digest of the encoded image."""
        return self.entry.table["digests"][index].tobytes()


def open_entry(folder: Path, key: str) -> MappedEntry | None:
    """Open an entry and record the time of use; None if the entry is missing or damaged."""
    index, pixels = folder / f"{key}{INDEX_SUFFIX}", folder / f"{key}{PIXELS_SUFFIX}"
    if (stored := read_table(index)) is None:
        return None
    table, _, mark = stored
    ends = table["offsets"] + table["shapes"].prod(axis=1) * table["moments"].shape[-1]
    if not len(table) or table["offsets"].min() < 0 or table["shapes"].min() <= 0:
        return None
    try:
        if ends.max() > pixels.stat().st_size:
            return None
        os.utime(index)
        return MappedEntry(pixels, table, mark)
    except (OSError, ValueError):
        return None


def read_table(index: Path) -> tuple[NDArray[np.void], str, bytes] | None:
    """Return the table of an entry, the format of the decoded images, and the mark of the file; None if unreadable."""
    try:
        with open(index, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            moments = arrays["moments"]
            table = make_entry_table(len(moments), moments.shape[-1])
            for name in table.dtype.names or ():
                values = arrays[name]
                if values.dtype != table[name].dtype or values.shape != table[name].shape:
                    return None
                table[name] = values
            metadata = json.loads(str(arrays["about"]))
            return table, str(metadata["reading"]), bytes.fromhex(metadata["mark"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None


class EntryWriter:
    """Writes a cache entry into a temporary file, from several threads in any order; `finish` renames the file."""

    def __init__(self, folder: Path, count: int, max_bytes: int, channels: int = RGB) -> None:
        self.table = make_entry_table(count, channels)
        self._folder, self._max_bytes, self._used, self._lock = folder, max_bytes, 0, threading.Lock()
        self._mark = os.urandom(_MARK_BYTES)
        self._path = folder / f".{os.getpid()}-{threading.get_ident()}-{self._mark.hex()}{UNFINISHED_SUFFIX}"
        self._index_path = self._path.with_suffix(f"{INDEX_SUFFIX}{UNFINISHED_SUFFIX}")

    def __enter__(self) -> "EntryWriter":
        self._file = open(self._path, "wb")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._file.close()
        for path in (self._path, self._index_path):
            path.unlink(missing_ok=True)

    def add(self, index: int, image: Image.Image, size: tuple[int, int]) -> None:
        """Store a decoded image in row `index`; `size` is the original (height, width). Raises `CacheFullError`."""
        no_moments = np.full(self.table["moments"].shape[1:], np.nan)
        moments = no_moments if min(image.size) < _MIN_MOMENTS_SIDE else moments_of(image)
        self._store_pixels(index, pixels_of(image), size, moments)

    def copy(self, index: int, entry: MappedEntry, row: int) -> bool:
        """Copy the image in a row of another entry; return False if the file of that entry was removed or replaced."""
        pixels = entry.view(row)
        if pixels is None:
            return False
        height, width = entry.table["sizes"][row].tolist()
        self._store_pixels(index, pixels, (height, width), entry.table["moments"][row])
        return True

    def finish(self, key: str, rows: NDArray[np.int64], format_key: str) -> None:
        """Complete the files and name them after `key`; the index has only `rows`, in that order. Raises an OSError."""
        self._file.write(self._mark)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        with open(self._index_path, "wb") as file:
            metadata = json.dumps({"reading": format_key, "mark": self._mark.hex()})
            arrays: dict[str, Any] = {name: self.table[name][rows] for name in self.table.dtype.names or ()}
            np.savez(file, about=np.array(metadata), **arrays)
            file.flush()
            os.fsync(file.fileno())
        self._path.replace(self._folder / f"{key}{PIXELS_SUFFIX}")
        # The index is renamed last, so that no index exists without its pixels.
        self._index_path.replace(self._folder / f"{key}{INDEX_SUFFIX}")

    def _store_pixels(
        self, index: int, pixels: NDArray[np.uint8], size: tuple[int, int], moments: NDArray[np.float64]
    ) -> None:
        data = pixels.reshape(-1).data
        with self._lock:
            if self._used + len(data) > self._max_bytes:
                raise CacheFullError
            self.table["offsets"][index] = self._used
            self._file.write(data)
            self._used += len(data)
        self.table["shapes"][index] = pixels.shape[:2]
        self.table["sizes"][index], self.table["moments"][index] = size, moments


def source_digest(source: bytes | Path) -> bytes:
    """Return the 16-byte digest of an encoded image; raises an OSError if the file of the image cannot be read."""
    if isinstance(source, bytes):
        return hashlib.blake2b(source, digest_size=DIGEST_BYTES).digest()
    with open(source, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).digest()


class StoredDigests:
    """The digests of a set's images in a file of the cache folder, by path, size and modification time."""

    def __init__(self, folder: Path, location: str) -> None:
        name = hashlib.blake2b(location.encode(errors="surrogateescape"), digest_size=DIGEST_BYTES).hexdigest()
        self.file = folder / f"{name}{DIGESTS_SUFFIX}{INDEX_SUFFIX}"
        self._digests: dict[_StampKey, bytes] = {}  # empty if the file is damaged or missing
        with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            with open(self.file, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                stamps, digests = arrays["stamps"], arrays["digests"]
            shape = (len(stamps), DIGEST_BYTES)
            if stamps.dtype == _STAMP_DTYPE and digests.dtype == np.uint8 and digests.shape == shape:
                self._digests = dict(zip(stamps.tolist(), (row.tobytes() for row in digests), strict=True))

    def look_up(self, stamps: Sequence[FileStamp | None]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return (N, 16) digests, and an (N,) mask of the images whose digest was stored; all other digests are 0."""
        digests, is_known = np.zeros((len(stamps), DIGEST_BYTES), dtype=np.uint8), np.zeros(len(stamps), dtype=bool)
        for row, stamp in enumerate(stamps):
            digest = None if stamp is None else self._digests.get(_stamp_key(stamp))
            if digest is not None:
                digests[row], is_known[row] = np.frombuffer(digest, dtype=np.uint8), True
        return digests, is_known

    def remember(self, stamps: Sequence[FileStamp | None], digests: NDArray[np.uint8]) -> None:
        """Store digests, and remove older digests of the same paths."""
        rows = enumerate(stamps)
        new_digests = {_stamp_key(stamp): digests[row].tobytes() for row, stamp in rows if stamp is not None}
        paths = {key[0] for key in new_digests}
        self._digests = {**{key: value for key, value in self._digests.items() if key[0] not in paths}, **new_digests}
        temporary = self.file.with_name(f".{self.file.name}.{os.getpid()}{UNFINISHED_SUFFIX}")
        table = np.array(list(self._digests), dtype=_STAMP_DTYPE)
        values = np.frombuffer(b"".join(self._digests.values()), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
        try:  # if several runs write the file at once, the last wins, and the next run computes the lost digests again
            with open(temporary, "wb") as file:
                np.savez(file, stamps=table, digests=values)
            temporary.replace(self.file)
        except OSError:  # the disk is full, for instance; the next run computes the digests again
            temporary.unlink(missing_ok=True)


def _stamp_key(stamp: FileStamp) -> _StampKey:
    # NumPy strips trailing zeros of byte strings.
    name = hashlib.blake2b(stamp.name.encode(errors="surrogateescape"), digest_size=16).digest().rstrip(b"\0")
    return name, stamp.size, stamp.modified_ns
