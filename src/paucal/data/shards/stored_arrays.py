"""Arrays of numbers and of strings in a file, from which slices are read when needed."""

import os
import struct
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paucal.data.string_arrays import StringArray

_LOCAL_HEADER = struct.Struct("<26xHH")  # lengths of the name and of the extra field in front of a zip member


class OpenFile:
    """An open file that several threads and forked processes may read at the same time.

    The file is closed when this object is garbage-collected. An object that is sent to another process opens the file
    again.
    """

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
    """Strings in a file, stored as their concatenated bytes and the end of each string in these bytes.

    `StringArray.to_buffers` returns these two arrays.
    """

    def __init__(self, content: StoredArray, ends: StoredArray) -> None:
        self._content, self._ends = content, ends

    def __getitem__(self, rows: slice) -> StringArray:
        """Read the strings of a slice, whose step must be 1."""
        first = rows.indices(len(self._ends))[0]
        begin = int(self._ends[first - 1 : first][0]) if first else 0
        ends = self._ends[rows]
        return StringArray.from_buffers(self._content[begin : int(ends[-1]) if len(ends) else begin], ends - begin)


def open_arrays(path: Path) -> dict[str, StoredArray]:
    """Return the 1-D arrays in a file written by `numpy.savez`, by name; the values are read when needed.

    Raises:
        ValueError: An array is damaged or compressed.
        zipfile.BadZipFile: The file is not a zip file.
    """
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
