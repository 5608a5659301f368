"""Random access to the encoded images in rows of files."""

import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paucal.data.decode import UnreadableImage
from paucal.data.shards.index import Shard
from paucal.data.shards.place import Place
from paucal.data.sources.stores import EncodedStore, Stamp

_PICKLED = ("_place", "_files", "_column", "_rows", "_keys")  # all but what a new process reads for itself


class RowStore(EncodedStore):
    """Rows of files with a column of images; a subclass says how a file is read.

    Args:
        place: where the files lie.
        files: in the order of their numbers.
        column: name of the image column, a struct with a `bytes` field or plain binary.
        rows: (N, 2) int64, file number and row in that file of each image.
        keys: N names for messages.
    """

    def __init__(
        self, place: Place, files: Sequence[Shard], column: str, rows: NDArray[np.int64], keys: Sequence[str]
    ) -> None:
        self._place, self._files, self._column, self._rows, self._keys = place, files, column, rows, keys
        self._begin()

    def __len__(self) -> int:
        return len(self._rows)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in _PICKLED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

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
        """Begin without anything read; a subclass adds what it keeps."""
        self._lock = threading.Lock()

    @abstractmethod
    def _piece(self, file: int, row: int) -> tuple[pa.Array | pa.ChunkedArray, int]:
        """Return images that were read together, and the position of a row of a file among them."""
