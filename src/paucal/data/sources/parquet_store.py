"""Random access to the encoded images of Parquet files."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from paucal.data.decode import UnreadableImage
from paucal.data.shards.stream import WINDOW_BYTES, is_streamed
from paucal.data.sources.stores import EncodedStore, Stamp, stamp_of

_KEPT_BYTES = 1 << 30
_STREAMED_BYTES = 2 * WINDOW_BYTES  # of which all but the window is on its way out
_PICKLED = ("_files", "_column", "_rows", "_keys")  # all but what a new process reads for itself


class ParquetStore(EncodedStore):
    """Rows of memory-mapped Parquet files, read one row group at a time.

    A row group is the smallest piece of a Parquet file that can be read. Those read last are kept, encoded,
    up to 1 GiB in each process (512 MiB of a set of 200,000 images or more); forked loader workers share what the
    parent has read.

    Args:
        files: paths of the Parquet files.
        column: name of the image column, a struct with a `bytes` field or plain binary.
        rows: (N, 2) int64, file number and row in that file of each image.
        keys: N names for messages.
    """

    def __init__(self, files: list[str], column: str, rows: NDArray[np.int64], keys: Sequence[str]) -> None:
        self._files, self._column, self._rows, self._keys = files, column, rows, keys
        self._forget()

    def __len__(self) -> int:
        return len(self._rows)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in _PICKLED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._files, self._column, self._rows, self._keys = (state[name] for name in _PICKLED)
        self._forget()

    def name(self, index: int) -> str:
        """Return the key of the row."""
        return self._keys[index]

    def stamp(self, index: int) -> Stamp | None:
        """Return the file and the row, with size and time of the file."""
        file, row = (int(number) for number in self._rows[index])
        if file not in self._stamps:
            self._stamps[file] = stamp_of(Path(self._files[file]))
        found = self._stamps[file]
        return found and found._replace(name=f"{found.name}#{row}")

    def source(self, index: int) -> bytes:
        """Return the encoded bytes of a row.

        Raises:
            UnreadableImage: the row has none, or its row group is damaged.
        """
        file, row = (int(number) for number in self._rows[index])
        try:
            value = self._value(file, row)
        except (pa.ArrowException, OSError) as error:
            raise UnreadableImage(f"image {self.name(index)} cannot be read from its file: {error}") from None
        if not value:
            raise UnreadableImage(f"image {self.name(index)} has no bytes in the column '{self._column}'")
        return value

    def _forget(self) -> None:
        self._groups: OrderedDict[tuple[int, int], pa.Array] = OrderedDict()
        self._readers: dict[int, tuple[pq.ParquetFile, NDArray[np.int64]]] = {}
        self._stamps: dict[int, Stamp | None] = {}
        self._lock = threading.Lock()

    def _value(self, file: int, row: int) -> bytes | None:
        with self._lock:
            reader, starts = self._reader(file)
            group = int(np.searchsorted(starts, row, side="right")) - 1
            images = self._groups.get((file, group))
            if images is None:
                images = self._read_group(reader, group)
                self._groups[file, group] = images
                self._evict()
            self._groups.move_to_end((file, group))
        return images[row - int(starts[group])].as_py()

    def _reader(self, file: int) -> tuple[pq.ParquetFile, NDArray[np.int64]]:
        if file not in self._readers:
            reader = pq.ParquetFile(self._files[file], memory_map=True)
            lengths = [reader.metadata.row_group(i).num_rows for i in range(reader.num_row_groups)]
            self._readers[file] = reader, np.cumsum([0, *lengths])[:-1]
        return self._readers[file]

    def _read_group(self, reader: pq.ParquetFile, group: int) -> pa.Array:
        # One thread: Arrow's pool does not survive the fork of a loader worker in every version.
        table = reader.read_row_group(group, columns=[self._column], use_threads=False)
        images = table[self._column].combine_chunks()
        if isinstance(images, pa.ChunkedArray):
            raise pa.ArrowInvalid("a row group holds more than 2 GiB of images")
        return images.field("bytes") if pa.types.is_struct(images.type) else images

    def _evict(self) -> None:
        total = sum(images.nbytes for images in self._groups.values())
        most = _STREAMED_BYTES if is_streamed(len(self._rows), 0) else _KEPT_BYTES
        while total > most and len(self._groups) > 1:
            _, oldest = self._groups.popitem(last=False)
            total -= oldest.nbytes
