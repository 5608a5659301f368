"""The ledger of a run: append-only files that record the images of every optimizer step on every process.

Each process writes one file per start of the run: a line of JSON (`Start`), then a record before each forward pass, in
a single write. So a kill can leave only the last record of a file incomplete.
Images are stored as 8-byte hashes of their keys, so that a pass over a million images takes 8 MB.
"""

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FOLDER = "ledger"
_RECORD = struct.Struct("<QII")  # optimizer step counted from 0, number of images, CRC of their hashes
_HASH = np.dtype("<u8")
_MAX_START = 4096  # bytes of the first line


@dataclass(frozen=True)
class Start:
    """A start of a run on one process.

    Attributes:
        number: Number of the start: 0 for a new run, then counting each time it was resumed.
        step: Optimizer steps made before.
        batch: Images of an optimizer step, over all processes.
        steps_per_pass: Optimizer steps of a pass over the training images.
    """

    number: int
    rank: int
    processes: int
    step: int
    batch: int
    steps_per_pass: int


@dataclass(frozen=True)
class Record:
    """The images of one forward pass on one process, as (B,) uint64 hashes of their keys, with the optimizer step."""

    start: Start
    step: int
    images: NDArray[np.uint64]


class LedgerWriter:
    """Appends records to the file of one start of a run on one process."""

    def __init__(self, run: Path, start: Start) -> None:
        (run / FOLDER).mkdir(exist_ok=True)
        path = run / FOLDER / f"{start.number:06d}-{start.rank:05d}.bin"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        os.write(self._file, json.dumps(asdict(start)).encode() + b"\n")

    def write(self, step: int, images: NDArray[np.uint64]) -> None:
        """Append the images of a forward pass; raises an OSError if the disk is full."""
        content = images.astype(_HASH).tobytes()
        record = _RECORD.pack(step, len(images), zlib.crc32(content)) + content
        if os.write(self._file, record) != len(record):
            raise OSError(28, os.strerror(28), FOLDER)

    def flush(self) -> None:
        """Force the records to the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def image_hashes(keys: Iterable[str]) -> NDArray[np.uint64]:
    """Return the hash of each key.

    Example:
        >>> [f"{number:016x}" for number in image_hashes(["cats/1.jpg", "cats/2.jpg"]).tolist()]
        ['ba360fc8ce306c3d', '0311a0b67f42a2a6']
    """
    digests = (hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest() for key in keys)
    return np.frombuffer(b"".join(digests), dtype=_HASH).astype(np.uint64)


def next_number(run: Path) -> int:
    """Return the number of the next start of a run."""
    return max((int(file.name[:6]) + 1 for file in (run / FOLDER).glob("??????-?????.bin")), default=0)


def read_records(run: Path) -> Iterator[Record]:
    """Yield all records in the order of starts and processes; an incomplete last record of a file is left out."""
    for file in sorted((run / FOLDER).glob("??????-?????.bin")):
        content = np.memmap(file, dtype=np.uint8, mode="r") if file.stat().st_size else np.zeros(0, np.uint8)
        line, end, _ = bytes(content[:_MAX_START]).partition(b"\n")
        if not end:
            continue
        start, offset = Start(**json.loads(line)), len(line) + 1
        while offset + _RECORD.size <= len(content):
            step, count, crc = _RECORD.unpack(bytes(content[offset : offset + _RECORD.size]))
            offset += _RECORD.size
            images = bytes(content[offset : offset + count * _HASH.itemsize])
            offset += count * _HASH.itemsize
            if offset > len(content) or zlib.crc32(images) != crc:
                break
            yield Record(start, step, np.frombuffer(images, dtype=_HASH))
