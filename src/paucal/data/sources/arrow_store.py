"""Random access to the encoded images of Arrow files, as Hugging Face's `save_to_disk` writes them."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paucal.data.decode import UnreadableImage
from paucal.data.sources.stores import EncodedStore
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


_PICKLED = ("_files", "_column", "_rows", "_keys")  # all but what a new process maps for itself


class ArrowStore(EncodedStore):
    """Rows of Arrow files that are mapped into memory.

    Args:
        files: paths of the files.
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

    def source(self, index: int) -> bytes:
        """Return the encoded bytes of a row.

        Raises:
            UnreadableImage: the row has none.
        """
        file, row = (int(number) for number in self._rows[index])
        with self._lock:
            if file not in self._tables:
                self._tables[file] = read_arrow(Path(self._files[file]))[self._column]
        value = self._tables[file][row].as_py()
        value = value.get("bytes") if isinstance(value, dict) else value
        if not value:
            raise UnreadableImage(f"image {self.name(index)} has no bytes in the column '{self._column}'")
        return value

    def _forget(self) -> None:
        self._tables: dict[int, pa.ChunkedArray] = {}
        self._lock = threading.Lock()
