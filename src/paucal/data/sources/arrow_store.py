"""Random access to the encoded images of Arrow files, as Hugging Face's `save_to_disk` writes them."""

from pathlib import Path

import pyarrow as pa

from paucal.data.sources.row_store import RowStore
from paucal.types import UserError


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


class ArrowStore(RowStore):
    """Rows of Arrow files that are mapped into memory."""

    def _begin(self) -> None:
        super()._begin()
        self._tables: dict[int, pa.ChunkedArray] = {}

    def _piece(self, file: int, row: int) -> tuple[pa.ChunkedArray, int]:
        if file not in self._tables:
            self._tables[file] = read_arrow(self._place.path(self._files[file]))[self._column]
        return self._tables[file], row
