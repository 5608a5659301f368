"""The ledger of a run: append-only files that record the images of every optimizer step on every process.

Each process writes one file each time the run is started or resumed. The file contains a line of JSON (`Start`) and one
record for each forward pass. A record is written before the pass and in a single call, so a killed process leaves at
most its last record incomplete. Images are stored as 8-byte hashes of their keys, so an epoch of a million images takes
8 MB.
"""

import errno
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

LEDGER_FOLDER = "ledger"
_RECORD_HEADER = struct.Struct("<QII")  # optimizer step counted from 0, number of images, CRC of their hashes
_HASH_TYPE = np.dtype("<u8")  # stored type of image hashes: little-endian 64-bit integers
_MAX_START_BYTES = 4096  # limit for the first line of a file


@dataclass(frozen=True)
class StartRecord:
    """The information that a process stores when the run is started or resumed."""

    number: int  # number of earlier starts: 0 when the run is first started, 1 when it is first resumed, and so on
    rank: int
    processes: int  # number of processes
    step: int  # number of optimizer steps that were completed before this start
    batch: int  # number of images per optimizer step, over all processes
    steps_per_pass: int  # number of optimizer steps per epoch


@dataclass(frozen=True)
class PassRecord:
    """The images of one forward pass on one process."""

    start: StartRecord  # information about the start or resumption of the run after which the pass was computed
    step: int  # index of the optimizer step that the forward pass belongs to, counted from 0
    hashes: NDArray[np.uint64]  # (B,) hashes of the images' keys


class LedgerWriter:
    """Appends records to the ledger file that one process writes after one start or resumption of the run."""

    def __init__(self, run: Path, start: StartRecord) -> None:
        (run / LEDGER_FOLDER).mkdir(exist_ok=True)
        path = run / LEDGER_FOLDER / f"{start.number:06d}-{start.rank:05d}.bin"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        os.write(self._descriptor, json.dumps(asdict(start)).encode() + b"\n")

    def write(self, step: int, hashes: NDArray[np.uint64]) -> None:
        """Append a record with the hashes of a forward pass's images; raise an OSError if the disk is full."""
        content = hashes.astype(_HASH_TYPE).tobytes()
        record = _RECORD_HEADER.pack(step, len(hashes), zlib.crc32(content)) + content
        if os.write(self._descriptor, record) != len(record):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), LEDGER_FOLDER)

    def flush(self) -> None:
        """Flush the records to the disk (fsync)."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def image_hashes(keys: Iterable[str]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each image key.

    Example:
        >>> [f"{number:016x}" for number in image_hashes(["cats/1.jpg", "cats/2.jpg"]).tolist()]
        ['ba360fc8ce306c3d', '0311a0b67f42a2a6']
    """
    digests = (hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest() for key in keys)
    return np.frombuffer(b"".join(digests), dtype=_HASH_TYPE).astype(np.uint64)


def next_start_number(run: Path) -> int:
    """Return the value of `StartRecord.number` for the next start or resumption of a run."""
    return max((int(file.name[:6]) + 1 for file in (run / LEDGER_FOLDER).glob("??????-?????.bin")), default=0)


def read_records(run: Path) -> Iterator[PassRecord]:
    """Yield all records, ordered by start number, then by rank; an incomplete last record of a file is left out."""
    for file in sorted((run / LEDGER_FOLDER).glob("??????-?????.bin")):
        content = np.memmap(file, dtype=np.uint8, mode="r") if file.stat().st_size else np.zeros(0, np.uint8)
        line, newline, _ = bytes(content[:_MAX_START_BYTES]).partition(b"\n")
        if not newline:
            continue
        start, offset = StartRecord(**json.loads(line)), len(line) + 1
        while offset + _RECORD_HEADER.size <= len(content):
            step, count, crc = _RECORD_HEADER.unpack(bytes(content[offset : offset + _RECORD_HEADER.size]))
            offset += _RECORD_HEADER.size
            hashes = bytes(content[offset : offset + count * _HASH_TYPE.itemsize])
            offset += count * _HASH_TYPE.itemsize
            if offset > len(content) or zlib.crc32(hashes) != crc:
                break
            yield PassRecord(start, step, np.frombuffer(hashes, dtype=_HASH_TYPE))
