"""Files of rows, Parquet or Arrow, here or on object storage: what their columns are, and what one of them holds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paucal.data.shards.index import Shard
from paucal.data.shards.place import Place, RemotePlace, retried
from paucal.types import UserError

PARQUET_SUFFIX, ARROW_SUFFIX = ".parquet", ".arrow"


@dataclass(frozen=True)
class Rows:
    """What was read of a file.

    Attributes:
        groups: rows of each of its row groups, the smallest pieces that can be read.
        column: the values of the column that was asked for; None where none was.
    """

    groups: list[int]
    column: pa.ChunkedArray | None


class RowFile:
    """One file of rows; it is opened anew for each question, so that thousands may be asked.

    Args:
        place: where the file lies.
        shard: the file.
    """

    def __init__(self, place: Place, shard: Shard) -> None:
        self.place, self.shard = place, shard

    def __str__(self) -> str:
        return f"{self.place.location}/{self.shard.name}"

    @property
    def arrow(self) -> bool:
        """Whether it is what `save_to_disk` of Hugging Face writes, and not Parquet."""
        return self.shard.name.endswith(ARROW_SUFFIX)

    def schema(self) -> pa.Schema:
        """Return the columns.

        Raises:
            UserError: it is no such file, or cannot be fetched.
        """
        if self.arrow:
            return read_arrow(self._path()).schema
        return self._asked(lambda file: file.schema_arrow)

    def rows(self, column: str | None) -> Rows:
        """Return how many rows there are, and a column of them.

        Raises:
            UserError: as `schema`.
            ArrowException: the column is damaged.
        """
        if self.arrow:
            table = read_arrow(self._path())
            return Rows([table.num_rows], None if column is None else table[column])
        return self._asked(
            lambda file: Rows(row_groups(file), None if column is None else file.read(columns=[column])[column])
        )

    def _path(self) -> Path:
        return self.place.path(self.shard)

    def _asked(self, question: Any) -> Any:
        """Return what a question to the opened file returns; on object storage only the parts in question are read."""
        if isinstance(self.place, RemotePlace):
            return self._asked_far_away(self.place, question)
        try:
            file = pq.ParquetFile(self._path(), memory_map=True)
        except (pa.ArrowException, OSError) as problem:
            raise UserError(f"{self} cannot be read as a Parquet file ({problem}); give another one") from None
        with file:
            return question(file)

    def _asked_far_away(self, place: RemotePlace, question: Any) -> Any:
        def ask() -> Any:
            try:
                with place.opened(self.shard) as source, pq.ParquetFile(source) as file:
                    return question(file)
            except pa.ArrowInvalid as problem:
                raise UserError(f"{self} cannot be read as a Parquet file ({problem}); give another one") from None

        try:
            return retried(ask)
        except UserError:
            raise
        except FileNotFoundError:
            raise UserError(f"{self} is not there any more; check the address") from None
        except Exception as problem:  # every storage has its own types
            reason = str(problem).split("\n")[0].strip() or type(problem).__name__
            raise UserError(f"{self} cannot be read ({reason}); check the network") from None


def read_arrow(file: Path) -> pa.Table:
    """Return the table of an Arrow file (the stream or the file format), mapped into memory and not read.

    Raises:
        UserError: it is none.
    """
    try:
        source = pa.memory_map(str(file))
        try:
            return pa.ipc.open_stream(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_file(source).read_all()
    except (pa.ArrowException, OSError, EOFError) as problem:
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise UserError(f"{file} cannot be read as an Arrow file ({reason}); save the data set again") from None


def row_groups(file: pq.ParquetFile) -> list[int]:
    """Return how many rows each row group of a Parquet file has."""
    return [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
