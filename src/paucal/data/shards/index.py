"""The index of tar shards: position, size, name and label of every image, in arrays that are read when needed."""

import bisect
import itertools
import json
import os
import struct
import threading
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paucal.data.sources.archive import MAX_ENTRIES, MAX_IMAGE_BYTES, require_safe_name
from paucal.data.string_arrays import StringArray
from paucal.types import UserError
from paucal.wording import counted, join_first_few, was_or_were
from paucal.writing import write_atomically

INDEX_NAME = "paucal_index.npz"
CLASSES_NAME = "classes.txt"  # file with a class name on each line, in label order
FORMAT_VERSION = 1
HEADER_BYTES = 512  # size of the header in front of the content of each tar member
MAX_BYTES = 4 << 30  # maximum size of an index file
# The rows of recently read shards (one row per image) are cached in memory, since the images of a window are in several
# shards. `MIN_CACHED_SHARDS` shards are cached even if they have more than `MAX_CACHED_ROWS` rows.
MIN_CACHED_SHARDS, MAX_CACHED_SHARDS, MAX_CACHED_ROWS = 4, 256, 1 << 17
_ROWS_PER_CHECK = 1 << 16  # number of rows of an index that are checked at once, to save memory
_ARRAY_TYPES = {
    **{name: np.dtype(np.int32) for name in ("shards", "lengths", "labels")},
    **{name: np.dtype(np.int64) for name in ("offsets", "key_ends")},
    "key_bytes": np.dtype(np.uint8),
}
REMAKE_ADVICE = f"remove {INDEX_NAME}, so that the shards are indexed again, or write them again with 'paucal shard'"
_LOCAL_HEADER = struct.Struct("<26xHH")  # lengths of the name and of the extra field in front of a zip member
_MAX_NAMES_SHOWN = 3  # maximum number of shard names in a message
# Exceptions that may be raised when a damaged index is read.
_DAMAGE_EXCEPTIONS = (
    *(zipfile.BadZipFile, struct.error, OSError, ValueError, KeyError, TypeError, EOFError, AttributeError),
    *(RecursionError, NotImplementedError),
)


class OpenFile:
    """An open file that threads and forked processes may read at the same time; closed when garbage-collected."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenFile, (self.path,)

    def read(self, start: int, count: int) -> bytes:
        """Return `count` bytes from the position `start` on; fewer bytes at the end of the file."""
        if hasattr(os, "pread"):
            return os.pread(self._file, count, start)
        with self._lock:  # Windows has no `pread`; a lock suffices, since there are no forked processes
            os.lseek(self._file, start, os.SEEK_SET)
            return os.read(self._file, count)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)


class StoredArray:
    """A 1-D array in a file, with `count` values from the byte position `start` on."""

    def __init__(self, file: OpenFile, start: int, dtype: np.dtype[Any], count: int) -> None:
        self.dtype, self._file, self._start, self._count = dtype, file, start, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Read the values of a slice, whose step must be 1."""
        first, last, _ = rows.indices(self._count)
        size = self.dtype.itemsize
        content = self._file.read(self._start + first * size, max(0, last - first) * size)
        return np.frombuffer(content, dtype=self.dtype)


class StoredStrings:
    """Strings in a file, stored as the two arrays that `StringArray.to_buffers` returns."""

    def __init__(self, content: StoredArray, ends: StoredArray) -> None:
        self._content, self._ends = content, ends

    def __getitem__(self, rows: slice) -> StringArray:
        """Read the strings of a slice, whose step must be 1."""
        first = rows.indices(len(self._ends))[0]
        begin = int(self._ends[first - 1 : first][0]) if first else 0
        ends = self._ends[rows]
        return StringArray.from_buffers(self._content[begin : int(ends[-1]) if len(ends) else begin], ends - begin)


def open_arrays(path: Path) -> dict[str, StoredArray]:
    """Return the 1-D arrays in a file written by `numpy.savez`, by name; the values are read when needed."""
    arrays, open_file = {}, OpenFile(path)
    with zipfile.ZipFile(path) as packed, path.open("rb") as file:
        for member in packed.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{member.filename} is compressed")
            file.seek(member.header_offset)
            lengths = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            header_end = member.header_offset + _LOCAL_HEADER.size + sum(lengths)
            file.seek(header_end)
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError(f"{member.filename} is not an array")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            if len(shape) == 1:
                if file.tell() - header_end + shape[0] * dtype.itemsize != member.file_size or dtype.hasobject:
                    raise ValueError(f"{member.filename} has the type {dtype} and the shape {shape}")
                arrays[member.filename.removesuffix(".npy")] = StoredArray(open_file, file.tell(), dtype, shape[0])
    return arrays


class DamagedShard(UserError):
    """The content of a shard is damaged, so reading the shard again would fail too."""


@dataclass(frozen=True)
class Shard:
    """A tar, Parquet or Arrow file with many images."""

    name: str  # path relative to the folder of all shards
    size: int  # size in bytes
    part: str = ""  # split in the name; "" if the name has none
    changed: int = 0  # modification time in nanoseconds, or a number that identifies the version; 0 if unknown


class ShardRows(NamedTuple):
    """Positions, sizes and names of the images in one shard; the fields are those of `ShardIndex`."""

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int32]
    names: StringArray


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """The N images in a set of tar shards.

    Positions, sizes and names may stay in the index file, which has M rows, one for each image, including images of
    shards that were left out.
    """

    files: tuple[Shard, ...]  # F shards, in the order of their names
    classes: tuple[str, ...]  # class names in label order; empty if no image has a label
    spans: NDArray[np.int64]  # (F, 2) first row of each shard, and the row after its last row
    labels: NDArray[np.integer]  # (N,) class numbers; -1 for unlabelled images
    offsets: NDArray[np.int64] | StoredArray  # (M,) byte positions of the images in their shards
    lengths: NDArray[np.int32] | StoredArray  # (M,) sizes of the images in bytes
    names: StringArray | StoredStrings  # (M,) paths of the images within their shards
    notes: tuple[str, ...] = ()  # notes on images without a label and on empty shards
    # Rows by the number of the shard, in the order in which they were first read.
    _cached_rows: dict[int, ShardRows] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def counts(self) -> list[int]:
        """Number of images of each shard."""
        return (self.spans[:, 1] - self.spans[:, 0]).tolist()

    @cached_property
    def _shard_ends(self) -> list[int]:
        return list(itertools.accumulate(self.counts))

    def locate(self, image: int) -> tuple[int, int]:
        """Return the number of the shard of an image, and the row of the image within the shard."""
        shard = bisect.bisect_right(self._shard_ends, image)
        return shard, image - self._shard_ends[shard] + self.counts[shard]

    def rows(self, shard: int) -> ShardRows:
        """Return the rows of a shard; the rows of recently read shards are cached."""
        rows = self._cached_rows.get(shard)
        if rows is None:
            span = slice(*self.spans[shard].tolist())
            rows = self._cached_rows[shard] = ShardRows(self.offsets[span], self.lengths[span], self.names[span])
            cached_rows = list(self._cached_rows.items())
            n_rows = sum(len(shard_rows.offsets) for _, shard_rows in cached_rows)
            while len(cached_rows) > MAX_CACHED_SHARDS or (
                len(cached_rows) > MIN_CACHED_SHARDS and n_rows > MAX_CACHED_ROWS
            ):
                oldest, oldest_rows = cached_rows.pop(0)
                self._cached_rows.pop(oldest, None)
                n_rows -= len(oldest_rows.offsets)
        return rows

    def names_of(self, shard: int) -> StringArray:
        """Return the paths of the images in a shard."""
        return self.rows(shard).names

    def without_damaged(self, damaged: Mapping[int, str], shown_path: str) -> "ShardIndex":
        """Return the index without the images of `damaged` shards (reasons by position in `files`), with a note."""
        if not damaged:
            return self
        names = {self.files[number].name: reason for number, reason in damaged.items()}
        (note,) = damage_notes(names, len(self.files), shown_path)
        spans, is_kept = self.spans.copy(), np.ones(len(self.files), dtype=bool)
        is_kept[list(damaged)] = False
        spans[~is_kept, 1] = spans[~is_kept, 0]
        labels = self.labels[np.repeat(is_kept, self.counts)]
        note += f", with {counted(len(self) - len(labels), 'image')}"
        return replace(self, spans=spans, labels=labels, notes=(*self.notes, note), _cached_rows={})

    def write(self, path: Path) -> None:
        """Write an index that is completely in memory to a file, atomically."""
        assert isinstance(self.names, StringArray)
        files = [asdict(file) for file in self.files]
        header = {"format": FORMAT_VERSION, "files": files, "classes": self.classes, "notes": self.notes}
        key_bytes, key_ends = self.names.to_buffers()
        shards = np.repeat(np.arange(len(self.files), dtype=np.int32), self.counts)
        arrays = {"shards": shards, "offsets": self.offsets, "lengths": self.lengths}
        arrays |= {"labels": self.labels.astype(np.int32), "key_bytes": key_bytes, "key_ends": key_ends}
        about = np.array(json.dumps(header))
        write_atomically(path, lambda file: np.savez(file, about=about, **arrays))  # type: ignore[arg-type]


def spans_from_counts(counts: Sequence[int]) -> NDArray[np.int64]:
    """Return the (F, 2) int64 `ShardIndex.spans` of shards with the given numbers of rows."""
    ends = np.cumsum(np.asarray(counts, dtype=np.int64))
    return np.stack([ends - counts, ends], axis=1)


def compact_labels(labels: NDArray[np.integer], n_classes: int) -> NDArray[np.integer]:
    """Return labels in the smallest integer type that can represent -1 and all class numbers."""
    return labels.astype(np.min_scalar_type(-max(1, n_classes)))


def damage_notes(damaged: Mapping[str, str], total: int, shown_path: str) -> list[str]:
    """Return a list with a note on the `damaged` shards (reasons by name), or []; refuse if all are damaged."""
    if not damaged:
        return []
    names, reason = list(damaged), next(iter(damaged.values())).rstrip(".")
    subject = f"{len(names)} of {counted(total, 'shard')} cannot be read ({join_first_few(names, _MAX_NAMES_SHOWN)})"
    if len(names) == total:
        raise UserError(f"{shown_path}: {subject}; {reason}.")
    left_out = f"{counted(len(names), 'shard')} {was_or_were(len(names))} left out"
    return [f"{subject}; {reason.split(';')[0].rstrip('.')}; {left_out}"]


def read_index(path: Path, shown_path: str) -> ShardIndex:
    """Open and check an index file; only the labels are loaded into memory. `shown_path` is the path for messages."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES:,} bytes")
        with zipfile.ZipFile(path) as packed:
            if damaged := packed.testzip():
                raise ValueError(f"{damaged} is damaged")
        with np.load(path, allow_pickle=False) as stored:
            header = json.loads(str(stored["about"]))
        return _validated_index(header, open_arrays(path), shown_path)
    except UserError:
        raise
    except _DAMAGE_EXCEPTIONS as problem:
        raise UserError(f"{shown_path} cannot be read as an index of shards ({problem}); {REMAKE_ADVICE}.") from None


def _validated_index(header: Any, arrays: dict[str, StoredArray], shown_path: str) -> ShardIndex:
    """Return the index that a header and arrays describe; raise a `ValueError` if the header or an array is invalid."""
    if header["format"] != FORMAT_VERSION:
        raise ValueError(
            f"the format of the file is {header['format']}, but this version of paucal reads {FORMAT_VERSION}"
        )
    files = tuple(Shard(**file) for file in header["files"])
    for file in files:
        if not isinstance(file.name, str) or not all(isinstance(number, int) for number in (file.size, file.changed)):
            raise ValueError("the list of shards is invalid")
        require_safe_name(shown_path, file.name)
    count = len(arrays["offsets"])
    if not 0 < count <= MAX_ENTRIES or not files:
        raise ValueError(f"it lists {count:,} images in {len(files):,} shards, expected 1 to {MAX_ENTRIES:,} images")
    for name, kind in _ARRAY_TYPES.items():
        array = arrays[name]
        if array.dtype != kind or (name != "key_bytes" and len(array) != count):
            raise ValueError(f"'{name}' has the type {array.dtype} and {len(array)} values")
    classes, notes = tuple(map(str, header["classes"])), tuple(map(str, header["notes"]))
    counts, labels = _read_positions(files, len(classes), arrays)
    names = StoredStrings(arrays["key_bytes"], arrays["key_ends"])
    return ShardIndex(
        files, classes, spans_from_counts(counts), labels, arrays["offsets"], arrays["lengths"], names, notes
    )


def _read_positions(
    files: tuple[Shard, ...], n_classes: int, arrays: dict[str, StoredArray]
) -> tuple[list[int], NDArray[np.integer]]:
    """Check all rows in chunks, and return the number of images in each shard, and the labels."""
    sizes = np.asarray([file.size for file in files], dtype=np.int64)
    counts, labels = np.zeros(len(files), dtype=np.int64), []
    last_shard, last_end = 0, 0
    for first in range(0, len(arrays["offsets"]), _ROWS_PER_CHECK):
        rows = {name: array[first : first + _ROWS_PER_CHECK] for name, array in arrays.items() if name != "key_bytes"}
        shards, offsets, lengths, ends = (rows[name] for name in ("shards", "offsets", "lengths", "key_ends"))
        if shards[0] < last_shard or shards[-1] >= len(files) or (np.diff(shards) < 0).any():
            raise ValueError("images refer to shards that are not in the list of shards")
        in_range = offsets.min() >= HEADER_BYTES and lengths.min() >= 0 and lengths.max() <= MAX_IMAGE_BYTES
        if not in_range or (offsets + lengths > sizes[shards]).any():
            raise ValueError("an image is outside of its shard")
        if not -1 <= rows["labels"].min() <= rows["labels"].max() < max(1, n_classes):
            raise ValueError(f"labels are outside of the {n_classes} classes")
        if ends[0] < last_end or (np.diff(ends) < 0).any() or ends[-1] > len(arrays["key_bytes"]):
            raise ValueError("the names of images are damaged")
        counts += np.bincount(shards, minlength=len(files))
        labels.append(compact_labels(rows["labels"], n_classes))
        last_shard, last_end = int(shards[-1]), int(ends[-1])
    if last_end != len(arrays["key_bytes"]):
        raise ValueError("the names of images are damaged")
    return counts.tolist(), np.concatenate(labels)
