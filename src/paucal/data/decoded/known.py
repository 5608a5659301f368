"""What is known of encoded images that were looked at before: a digest of their bytes, by place, size and time."""

import errno
import hashlib
import os
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paucal.data.decoded.folder import INDEX, KNOWN, UNFINISHED
from paucal.data.sources.stores import Stamp

DIGEST = 16  # bytes
_AT_ONCE = 64 << 20  # bytes of a file that are held while it is decoded
_STAMPS = np.dtype([("name", "S16"), ("size", np.int64), ("changed", np.int64)])


def content_of(source: bytes | Path) -> bytes | Path:
    """Return the bytes of an encoded image, read once for all that is done with them, or the path of a very large file.

    Raises:
        OSError: that is no file, or cannot be read.
    """
    if isinstance(source, bytes):
        return source
    found = source.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.ENODEV, "it is no regular file (a pipe or a device, for instance)")
    return source.read_bytes() if found.st_size <= _AT_ONCE else source


def source_digest(source: bytes | Path) -> bytes:
    """Return a 16-byte digest of an encoded image; raises an OSError where its file cannot be read."""
    if isinstance(source, bytes):
        return hashlib.blake2b(source, digest_size=DIGEST).digest()
    with open(source, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST)).digest()


class KnownImages:
    """The digests of a set's images, remembered from one run to the next.

    They are looked up by place, size and time of change, so a file that was changed or replaced is read anew. Several
    runs may write at once: the last one wins, and what the others knew is found out again.

    Args:
        folder: of the cache.
        location: of the set.
    """

    def __init__(self, folder: Path, location: str) -> None:
        name = hashlib.blake2b(location.encode(errors="surrogateescape"), digest_size=DIGEST).hexdigest()
        self.file = folder / f"{name}{KNOWN}{INDEX}"
        self._found = _read(self.file)

    def look_up(self, stamps: Sequence[Stamp | None]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return (N, 16) digests, and (N,) whether each is known."""
        digests, known = np.zeros((len(stamps), DIGEST), dtype=np.uint8), np.zeros(len(stamps), dtype=bool)
        for row, stamp in enumerate(stamps):
            found = None if stamp is None else self._found.get(_compact(stamp))
            if found is not None:
                digests[row], known[row] = np.frombuffer(found, dtype=np.uint8), True
        return digests, known

    def remember(self, stamps: Sequence[Stamp | None], digests: NDArray[np.uint8]) -> None:
        """Add the digests of images that can be decoded; those of the same place are replaced."""
        new = {_compact(stamp): digests[row].tobytes() for row, stamp in enumerate(stamps) if stamp is not None}
        places = {key[0] for key in new}
        self._found = {**{key: value for key, value in self._found.items() if key[0] not in places}, **new}
        temporary = self.file.with_name(f".{self.file.name}.{os.getpid()}{UNFINISHED}")
        table = np.array(list(self._found), dtype=_STAMPS)
        values = np.frombuffer(b"".join(self._found.values()), dtype=np.uint8).reshape(-1, DIGEST)
        try:
            with open(temporary, "wb") as file:
                np.savez(file, stamps=table, digests=values)
            temporary.replace(self.file)
        except OSError:  # a full disk costs the next run some time, nothing else
            temporary.unlink(missing_ok=True)


_Key = tuple[bytes, int, int]


def _compact(stamp: Stamp) -> _Key:
    # A byte string of NumPy ends before its last zeros.
    name = hashlib.blake2b(stamp.name.encode(errors="surrogateescape"), digest_size=16).digest().rstrip(b"\0")
    return name, stamp.size, stamp.changed


def _read(file: Path) -> dict[_Key, bytes]:
    """Return what a file remembers; nothing where it is damaged or not there."""
    try:
        with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as stored:
            stamps, digests = stored["stamps"], stored["digests"]
        if stamps.dtype != _STAMPS or digests.dtype != np.uint8 or digests.shape != (len(stamps), DIGEST):
            return {}
        return dict(zip(stamps.tolist(), (row.tobytes() for row in digests), strict=True))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return {}
