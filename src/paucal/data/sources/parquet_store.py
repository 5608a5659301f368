"""Random access to the encoded images in the rows of Parquet and Arrow files."""

import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from paucal.data.decode import UnreadableImage
from paucal.data.shards.index import Shard
from paucal.data.shards.place import Place
from paucal.data.shards.stream import WINDOW_BYTES, is_streamed
from paucal.data.sources.row_files import read_arrow, row_groups
from paucal.data.sources.stores import EncodedStore, Reopened, Stamp

_KEPT_BYTES = 1 << 30
_STREAMED_BYTES = 2 * WINDOW_BYTES  # of which all but the window is on its way out
_MOST_OPEN = 16  # files: one that was fetched can only make room for another once it is closed


class RowStore(Reopened, EncodedStore):
    """Rows of files with a column of images; a subclass says how a file is read.

    Args:
        place: where the files lie.
        files: in the order of their numbers.
        column: name of the image column, a struct with a `bytes` field or plain binary.
        rows: (N, 2) int64, file number and row in that file of each image.
        keys: N names for messages.
    """

    kept = ("_place", "_files", "_column", "_rows", "_keys")

    def __init__(
        self, place: Place, files: Sequence[Shard], column: str, rows: NDArray[np.int64], keys: Sequence[str]
    ) -> None:
        self._place, self._files, self._column, self._rows, self._keys = place, files, column, rows, keys
        self._begin()

    def __len__(self) -> int:
        return len(self._rows)

    def name(self, index: int) -> str:
        """Return the key of the row."""
        return self._keys[index]

    def stamp(self, index: int) -> Stamp:
        """Return the file and the row, with size and time of the file."""
        file, row = (int(number) for number in self._rows[index])
        found = self._files[file]
        return Stamp(f"{self._place.location}/{found.name}#{row}", found.size, found.changed)

    def source(self, index: int) -> bytes:
        """Return the encoded bytes of a row.

        Raises:
            UnreadableImage: the row has none, or its file is damaged, gone or cannot be fetched.
        """
        file, row = (int(number) for number in self._rows[index])
        try:
            with self._lock:
                images, place = self._piece(file, row)
            value = images[place].as_py()
        except (pa.ArrowException, OSError) as error:
            raise UnreadableImage(f"image {self.name(index)} cannot be read from its file: {error}") from None
        value = value.get("bytes") if isinstance(value, dict) else value
        if not value:
            raise UnreadableImage(f"image {self.name(index)} has no bytes in the column '{self._column}'")
        return value

    def _begin(self) -> None:
        self._lock = threading.Lock()

    @abstractmethod
    def _piece(self, file: int, row: int) -> tuple[pa.Array | pa.ChunkedArray, int]:
        """Return images that were read together, and the position of a row of a file among them."""


class ArrowStore(RowStore):
    """Rows of Arrow files that are mapped into memory."""

    def _begin(self) -> None:
        super()._begin()
        self._tables: dict[int, pa.ChunkedArray] = {}

    def _piece(self, file: int, row: int) -> tuple[pa.ChunkedArray, int]:
        if file not in self._tables:
            self._tables[file] = read_arrow(self._place.path(self._files[file]))[self._column]
        return self._tables[file], row


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
            self._starts[file] = np.cumsum([0, *row_groups(self._reader(file))])[:-1]
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
