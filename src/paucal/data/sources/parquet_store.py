"""Parquet and Arrow files, on this machine or on object storage: their columns, and the images in their rows."""

import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from paucal.data.decode import UnreadableImage
from paucal.data.shards.folders import RemoteShardFolder, ShardFolder
from paucal.data.shards.index import DamagedShard, Shard
from paucal.data.shards.requests import retry
from paucal.data.shards.stream import WINDOW_BYTES, is_streamed
from paucal.data.stores import EncodedStore, ReopenedStore, Stamp
from paucal.types import UserError
from paucal.wording import first_line

PARQUET_SUFFIX, ARROW_SUFFIX = ".parquet", ".arrow"
_DAMAGED_FOOTER = "deserialize thrift"  # part of Arrow's OSError for a damaged footer
_KEPT_BYTES = 1 << 30
_STREAMED_BYTES = 2 * WINDOW_BYTES  # kept bytes when streaming
_MAX_OPEN_FILES = 16  # a downloaded file must be closed before its space can be freed


class Rows(NamedTuple):
    """Numbers of rows in the row groups of a file, and the values of one column, if one was requested."""

    groups: list[int]
    column: pa.ChunkedArray | None


class RowFile:
    """A Parquet or Arrow file; it is reopened for each query, so that a set may have thousands of files."""

    def __init__(self, folder: ShardFolder, shard: Shard) -> None:
        self.place, self.shard = folder, shard

    def __str__(self) -> str:
        return f"{self.place.location}/{self.shard.name}"

    @property
    def is_arrow(self) -> bool:
        """Whether it is an Arrow file, as written by Hugging Face's `save_to_disk`, and not Parquet."""
        return self.shard.name.endswith(ARROW_SUFFIX)

    def schema(self) -> pa.Schema:
        """Return the columns."""
        if self.is_arrow:
            return read_arrow(self.place.local_path(self.shard)).schema
        return self._query(lambda file: file.schema_arrow)

    def rows(self, column: str | None) -> Rows:
        """Return the row counts, and the values of a column.

        Raises:
            UserError: As in `schema`.
            ArrowException: The column is damaged.
        """
        if self.is_arrow:
            table = read_arrow(self.place.local_path(self.shard))
            return Rows([table.num_rows], None if column is None else table[column])
        return self._query(
            lambda file: Rows(row_groups(file), None if column is None else file.read(columns=[column])[column])
        )

    def _query(self, query: Callable[[pq.ParquetFile], Any]) -> Any:
        """Return the result of a function of the opened file; on object storage only the bytes it needs are read."""
        if isinstance(self.place, RemoteShardFolder):
            return self._query_remote(self.place, query)
        try:
            file = pq.ParquetFile(self.place.local_path(self.shard), memory_map=True)
        except (pa.ArrowException, OSError) as problem:
            raise self._damaged(problem) from None
        with file:
            return query(file)

    def _damaged(self, problem: Exception) -> DamagedShard:
        return DamagedShard(f"{self} cannot be read as a Parquet file ({first_line(problem)}); give another one.")

    def _query_remote(self, folder: RemoteShardFolder, query: Callable[[pq.ParquetFile], Any]) -> Any:
        def attempt() -> Any:
            try:
                with folder.open_file(self.shard) as source, pq.ParquetFile(source) as file:
                    return query(file)
            except (pa.ArrowInvalid, OSError) as problem:
                if isinstance(problem, OSError) and _DAMAGED_FOOTER not in str(problem):  # a request failed
                    raise
                raise self._damaged(problem) from None

        try:
            return retry(attempt)
        except UserError:
            raise
        except FileNotFoundError:
            raise UserError(f"{self} no longer exists; check the address.") from None
        except Exception as problem:  # each storage library has its own exceptions
            raise UserError(f"{self} cannot be read ({first_line(problem)}); check the network.") from None


def read_arrow(file: Path) -> pa.Table:
    """Return the memory-mapped table of an Arrow file, in the stream or the file format."""
    try:
        source = pa.memory_map(str(file))
        try:
            return pa.ipc.open_stream(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_file(source).read_all()
    except (pa.ArrowException, OSError, EOFError) as problem:
        reason = first_line(problem)
        raise DamagedShard(f"{file} cannot be read as an Arrow file ({reason}); save the data set again.") from None


def row_groups(file: pq.ParquetFile) -> list[int]:
    """Return the number of rows in each row group of a Parquet file."""
    return [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]


class RowStore(ReopenedStore, EncodedStore):
    """Encoded images in the rows of files; a subclass reads the files.

    Args:
        folder: Folder or storage of the files.
        files: Files in the order of their numbers.
        column: Name of the image column, a struct with a `bytes` field or plain binary.
        rows: (N, 2) int64 file number and row in that file of each image.
        keys: N names for messages.
    """

    kept = ("_folder", "_files", "_column", "_rows", "_keys")

    def __init__(
        self, folder: ShardFolder, files: Sequence[Shard], column: str, rows: NDArray[np.int64], keys: Sequence[str]
    ) -> None:
        self._folder, self._files, self._column, self._rows, self._keys = folder, files, column, rows, keys
        self._begin()

    def __len__(self) -> int:
        return len(self._rows)

    def name(self, index: int) -> str:
        """Return the key of the row."""
        return self._keys[index]

    def stamp(self, index: int) -> Stamp:
        """Return the file and the row, with size and time of the file."""
        file, row = (int(number) for number in self._rows[index])
        shard = self._files[file]
        return Stamp(f"{self._folder.location}/{shard.name}#{row}", shard.size, shard.changed)

    def fetch_ahead(self, index: int) -> None:
        """Download the file of a row if needed."""
        self._folder.fetch_ahead(self._files[int(self._rows[index, 0])])

    def source(self, index: int) -> bytes:
        """Return the encoded bytes of a row."""
        file, row = (int(number) for number in self._rows[index])
        try:
            with self._lock:
                images, position = self._piece(file, row)
            value = images[position].as_py()
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
        """Return the images that are read together with a row, and the position of that row among them."""


class ArrowStore(RowStore):
    """Rows of Arrow files that are mapped into memory."""

    def _begin(self) -> None:
        super()._begin()
        self._tables: dict[int, pa.ChunkedArray] = {}

    def _piece(self, file: int, row: int) -> tuple[pa.ChunkedArray, int]:
        if file not in self._tables:
            self._tables[file] = read_arrow(self._folder.local_path(self._files[file]))[self._column]
        return self._tables[file], row


class ParquetStore(RowStore):
    """Rows of memory-mapped Parquet files, read one row group at a time.

    A row group is the smallest piece of a Parquet file that can be read. The latest ones are kept, encoded, up to 1 GiB
    in each process (512 MiB for a set of 200,000 images or more); forked loader workers share those of the parent.
    A file on object storage is downloaded as a whole when its first image is needed.
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
            images = self._groups[file, group] = self._read_group(self._reader(file), group)
            total = sum(images.nbytes for images in self._groups.values())
            max_bytes = _STREAMED_BYTES if is_streamed(len(self._rows), 0) else _KEPT_BYTES
            while total > max_bytes and len(self._groups) > 1:
                _, oldest = self._groups.popitem(last=False)
                total -= oldest.nbytes
        self._groups.move_to_end((file, group))
        return images, row - int(starts[group])

    def _reader(self, file: int) -> pq.ParquetFile:
        if file not in self._readers:
            while len(self._readers) >= _MAX_OPEN_FILES:
                self._readers.popitem(last=False)
            self._readers[file] = self._open_file(file)
        self._readers.move_to_end(file)
        return self._readers[file]

    def _open_file(self, file: int) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self._folder.local_path(self._files[file]), memory_map=True)
        except FileNotFoundError:  # the downloaded file was deleted in between to free space: download it again
            return pq.ParquetFile(self._folder.local_path(self._files[file]), memory_map=True)

    def _read_group(self, reader: pq.ParquetFile, group: int) -> pa.Array:
        # One thread, since Arrow's thread pool does not survive a fork in every version.
        table = reader.read_row_group(group, columns=[self._column], use_threads=False)
        images = table[self._column].combine_chunks()
        if isinstance(images, pa.ChunkedArray):
            raise pa.ArrowInvalid("a row group holds more than 2 GiB of images")
        return images.field("bytes") if pa.types.is_struct(images.type) else images
