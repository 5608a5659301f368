"""Reads columns and single images of Parquet and Arrow files on disk or on object storage."""

import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from paucal.data.decode import UnreadableImage
from paucal.data.shards.folders import RemoteShardFolder, ShardFolder
from paucal.data.shards.index import DamagedShard, Shard
from paucal.data.shards.requests import retry
from paucal.data.shards.stream import WINDOW_BYTES, is_streamed
from paucal.data.stores import EncodedStore, FileStamp
from paucal.types import UserError
from paucal.wording import first_line

PARQUET_SUFFIX, ARROW_SUFFIX = ".parquet", ".arrow"
_DAMAGED_FOOTER = "deserialize thrift"  # text in the message of Arrow's OSError for a damaged footer
_MAX_CACHED_BYTES = 1 << 30  # maximum size of the cached row groups of a store
_MAX_CACHED_BYTES_STREAMED = 2 * WINDOW_BYTES  # maximum size of the cached row groups for a streamed set
_MAX_OPEN_FILES = 16  # low, since the disk space of a deleted download is freed only when the file is closed


class RowFile:
    """A Parquet or Arrow file, which is open only while it is read, so that a set may have thousands of files."""

    def __init__(self, folder: ShardFolder, shard: Shard) -> None:
        self.folder, self.shard = folder, shard

    def __str__(self) -> str:
        return f"{self.folder.location}/{self.shard.name}"

    @property
    def is_arrow(self) -> bool:
        """Whether this is an Arrow file (as written by Hugging Face's `save_to_disk`), not a Parquet file."""
        return self.shard.name.endswith(ARROW_SUFFIX)

    def schema(self) -> pa.Schema:
        """Read the names and types of the columns, and the metadata of the file."""
        if self.is_arrow:
            return read_arrow(self.folder.fetch_shard(self.shard)).schema
        return self._query(lambda file: file.schema_arrow)

    def read_rows(self, column: str | None) -> tuple[list[int], pa.ChunkedArray | None]:
        """Return the numbers of rows in the row groups, and the values of a column (None for no column)."""
        if self.is_arrow:
            table = read_arrow(self.folder.fetch_shard(self.shard))
            return [table.num_rows], None if column is None else table[column]
        return self._query(
            lambda file: (row_group_sizes(file), None if column is None else file.read(columns=[column])[column])
        )

    def _query(self, query: Callable[[pq.ParquetFile], Any]) -> Any:
        """Open the file and return `query(file)`; only the needed bytes of a remote file are read."""
        folder = self.folder
        if not isinstance(folder, RemoteShardFolder):
            try:
                file = pq.ParquetFile(folder.fetch_shard(self.shard), memory_map=True)
            except (pa.ArrowException, OSError) as problem:
                raise self._damage_error(problem) from None
            with file:
                return query(file)

        def attempt() -> Any:
            try:
                with folder.open_file(self.shard) as source, pq.ParquetFile(source) as file:
                    return query(file)
            except (pa.ArrowInvalid, OSError) as problem:
                # Other OSErrors are failed requests, which are retried.
                if isinstance(problem, OSError) and _DAMAGED_FOOTER not in str(problem):
                    raise
                raise self._damage_error(problem) from None

        try:
            return retry(attempt)
        except UserError:
            raise
        except FileNotFoundError:
            raise UserError(f"{self} no longer exists; check the address.") from None
        except Exception as problem:  # each storage library raises different exceptions
            raise UserError(f"{self} cannot be read ({first_line(problem)}); check the network connection.") from None

    def _damage_error(self, problem: Exception) -> DamagedShard:
        return DamagedShard(f"{self} cannot be read as a Parquet file ({first_line(problem)}); give another file.")


def read_arrow(file: Path) -> pa.Table:
    """Return the memory-mapped table in an Arrow file, in Arrow's stream format or file format."""
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


def row_group_sizes(file: pq.ParquetFile) -> list[int]:
    """Return the number of rows in each row group of a Parquet file."""
    return [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]


class RowStore(EncodedStore):
    """Encoded images in the rows of Parquet or Arrow files; a process that unpickles the store opens the files again.

    `rows` are the (N, 2) numbers of each image's file, and of its row in this file.
    """

    def __init__(
        self, folder: ShardFolder, files: Sequence[Shard], column: str, rows: NDArray[np.int64], keys: Sequence[str]
    ) -> None:
        super().__init__(keys)
        self._folder, self._files, self._column, self._rows = folder, files, column, rows
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._folder, self._files, self._column, self._rows, self._keys)

    def stamp(self, index: int) -> FileStamp:
        """Return a stamp with the file and row of an image, and the size and modification time of the file."""
        file, row = (int(number) for number in self._rows[index])
        shard = self._files[file]
        return FileStamp(f"{self._folder.location}/{shard.name}#{row}", shard.size, shard.changed)

    def prefetch(self, index: int) -> None:
        """Download the file of an image, unless the file is local or already downloaded."""
        self._folder.prefetch(self._files[int(self._rows[index, 0])])

    def source(self, index: int) -> bytes:
        """Return the encoded bytes of an image."""
        file, row = (int(number) for number in self._rows[index])
        try:
            with self._lock:
                images, position = self._read_block(file, row)
            value = images[position].as_py()
        except (pa.ArrowException, OSError) as error:
            raise UnreadableImage(f"image {self.name(index)} cannot be read from its file: {error}") from None
        value = value.get("bytes") if isinstance(value, dict) else value
        if not value:
            raise UnreadableImage(f"image {self.name(index)} has no bytes in the column '{self._column}'")
        return value

    @abstractmethod
    def _read_block(self, file: int, row: int) -> tuple[pa.Array | pa.ChunkedArray, int]:
        """Return all images that are read together with the image in a row, and the position of this image in them."""


class ArrowStore(RowStore):
    """Rows of Arrow files that are mapped into memory."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._tables: dict[int, pa.ChunkedArray] = {}

    def _read_block(self, file: int, row: int) -> tuple[pa.ChunkedArray, int]:
        if file not in self._tables:
            self._tables[file] = read_arrow(self._folder.fetch_shard(self._files[file]))[self._column]
        return self._tables[file], row


class ParquetStore(RowStore):
    """Rows of memory-mapped Parquet files, read one row group (the smallest readable block) at a time.

    The most recently used row groups are cached in memory with encoded images, up to 1 GiB in each process (512 MiB for
    a set of 200,000 images or more). Forked loader workers share the row groups that the parent process had cached. A
    file on object storage is downloaded completely when one of its images is first needed.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._groups: OrderedDict[tuple[int, int], pa.Array] = OrderedDict()
        self._readers: OrderedDict[int, pq.ParquetFile] = OrderedDict()
        self._starts: dict[int, NDArray[np.int64]] = {}

    def _read_block(self, file: int, row: int) -> tuple[pa.Array, int]:
        if file not in self._starts:
            self._starts[file] = np.cumsum([0, *row_group_sizes(self._reader(file))])[:-1]
        starts = self._starts[file]
        group = int(np.searchsorted(starts, row, side="right")) - 1
        images = self._groups.get((file, group))
        if images is None:
            # Arrow's thread pool is not used, since in some Arrow versions the pool does not work after a fork.
            table = self._reader(file).read_row_group(group, columns=[self._column], use_threads=False)
            images = table[self._column].combine_chunks()
            if isinstance(images, pa.ChunkedArray):
                raise pa.ArrowInvalid("a row group has more than 2 GiB of images")
            images = images.field("bytes") if pa.types.is_struct(images.type) else images
            self._groups[file, group] = images
            total = sum(images.nbytes for images in self._groups.values())
            max_bytes = _MAX_CACHED_BYTES_STREAMED if is_streamed(len(self._rows), 0) else _MAX_CACHED_BYTES
            while total > max_bytes and len(self._groups) > 1:
                _, oldest = self._groups.popitem(last=False)
                total -= oldest.nbytes
        self._groups.move_to_end((file, group))
        return images, row - int(starts[group])

    def _reader(self, file: int) -> pq.ParquetFile:
        if file not in self._readers:
            while len(self._readers) >= _MAX_OPEN_FILES:
                self._readers.popitem(last=False)
            try:
                reader = pq.ParquetFile(self._folder.fetch_shard(self._files[file]), memory_map=True)
            except FileNotFoundError:  # another process has deleted the copy to free space, so download it again
                reader = pq.ParquetFile(self._folder.fetch_shard(self._files[file]), memory_map=True)
            self._readers[file] = reader
        self._readers.move_to_end(file)
        return self._readers[file]
