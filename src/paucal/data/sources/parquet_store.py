"""Random access to the encoded images of Parquet files."""

from collections import OrderedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from paucal.data.shards.stream import WINDOW_BYTES, is_streamed
from paucal.data.sources.row_store import RowStore

_KEPT_BYTES = 1 << 30
_STREAMED_BYTES = 2 * WINDOW_BYTES  # of which all but the window is on its way out
_MOST_OPEN = 16  # files: one that was fetched can only make room for another once it is closed


class ParquetStore(RowStore):
    """Rows of memory-mapped Parquet files, read one row group at a time.

    A row group is the smallest piece of a Parquet file that can be read. Those read last are kept, encoded,
    up to 1 GiB in each process (512 MiB of a set of 200,000 images or more); forked loader workers share what the
    parent has read. A file on object storage is fetched whole when its first image is needed.
    """

    def _begin(self) -> None:
        super()._begin()
        self._groups: OrderedDict[tuple[int, int], pa.Array] = OrderedDict()
        self._readers: OrderedDict[int, pq.ParquetFile] = OrderedDict()
        self._starts: dict[int, NDArray[np.int64]] = {}

    def _piece(self, file: int, row: int) -> tuple[pa.Array, int]:
        if file not in self._starts:
            self._starts[file] = _first_rows(self._reader(file))
        starts = self._starts[file]
        group = int(np.searchsorted(starts, row, side="right")) - 1
        images = self._groups.get((file, group))
        if images is None:
            images = self._read_group(self._reader(file), group)
            self._groups[file, group] = images
            self._evict()
        self._groups.move_to_end((file, group))
        return images, row - int(starts[group])

    def _reader(self, file: int) -> pq.ParquetFile:
        if file not in self._readers:
            while len(self._readers) >= _MOST_OPEN:
                self._readers.popitem(last=False)
            self._readers[file] = self._opened(file)
        self._readers.move_to_end(file)
        return self._readers[file]

    def _opened(self, file: int) -> pq.ParquetFile:
        for last in (False, True):
            try:
                return pq.ParquetFile(self._place.path(self._files[file]), memory_map=True)
            except FileNotFoundError:  # a fetched one that had to make room for another in between
                if last:
                    raise
        raise AssertionError

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


def _first_rows(reader: pq.ParquetFile) -> NDArray[np.int64]:
    lengths = [reader.metadata.row_group(group).num_rows for group in range(reader.num_row_groups)]
    return np.cumsum([0, *lengths])[:-1]
