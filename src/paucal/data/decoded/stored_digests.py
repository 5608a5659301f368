"""Digests of encoded images, which are stored so that later runs need not read unchanged files."""

import errno
import hashlib
import os
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paucal.data.decoded.cache_folder import INDEX, KNOWN, UNFINISHED
from paucal.data.stores import Stamp

DIGEST = 16  # bytes
_MAX_IN_MEMORY = 64 << 20  # bytes; larger files are decoded from disk
_STAMPS = np.dtype([("name", "S16"), ("size", np.int64), ("changed", np.int64)])
_Key = tuple[bytes, int, int]


def read_encoded(source: bytes | Path) -> bytes | Path:
    """Return the bytes of an encoded image, or the path of a file above 64 MiB.

    Raises:
        OSError: The path is not a regular file, or cannot be read.
    """
    if isinstance(source, bytes):
        return source
    status = source.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENODEV, "it is not a regular file (a pipe or a device, for instance)")
    return source.read_bytes() if status.st_size <= _MAX_IN_MEMORY else source


def source_digest(source: bytes | Path) -> bytes:
    """Return the 16-byte digest of an encoded image; raises an OSError if its file cannot be read."""
    if isinstance(source, bytes):
        return hashlib.blake2b(source, digest_size=DIGEST).digest()
    with open(source, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST)).digest()


class StoredDigests:
    """The digests of a set's images, stored for later runs.

    They are looked up by path, size and time of change, so a changed file is read again. If several runs write at once,
    the last write wins, and the next run computes the lost digests again.
    """

    def __init__(self, folder: Path, location: str) -> None:
        name = hashlib.blake2b(location.encode(errors="surrogateescape"), digest_size=DIGEST).hexdigest()
        self.file = folder / f"{name}{KNOWN}{INDEX}"
        self._digests = _read_digests(self.file)

    def look_up(self, stamps: Sequence[Stamp | None]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return (N, 16) digests, and an (N,) mask of the known ones."""
        digests, is_known = np.zeros((len(stamps), DIGEST), dtype=np.uint8), np.zeros(len(stamps), dtype=bool)
        for row, stamp in enumerate(stamps):
            digest = None if stamp is None else self._digests.get(_short_key(stamp))
            if digest is not None:
                digests[row], is_known[row] = np.frombuffer(digest, dtype=np.uint8), True
        return digests, is_known

    def remember(self, stamps: Sequence[Stamp | None], digests: NDArray[np.uint8]) -> None:
        """Store the digests of readable images, in place of older ones of the same paths."""
        new_digests = {
            _short_key(stamp): digests[row].tobytes() for row, stamp in enumerate(stamps) if stamp is not None
        }
        paths = {key[0] for key in new_digests}
        self._digests = {**{key: value for key, value in self._digests.items() if key[0] not in paths}, **new_digests}
        temporary = self.file.with_name(f".{self.file.name}.{os.getpid()}{UNFINISHED}")
        table = np.array(list(self._digests), dtype=_STAMPS)
        values = np.frombuffer(b"".join(self._digests.values()), dtype=np.uint8).reshape(-1, DIGEST)
        try:
            with open(temporary, "wb") as file:
                np.savez(file, stamps=table, digests=values)
            temporary.replace(self.file)
        except OSError:  # if the disk is full, the next run computes them again
            temporary.unlink(missing_ok=True)


def _short_key(stamp: Stamp) -> _Key:
    # NumPy strips trailing zeros of byte strings.
    name = hashlib.blake2b(stamp.name.encode(errors="surrogateescape"), digest_size=16).digest().rstrip(b"\0")
    return name, stamp.size, stamp.changed


def _read_digests(file: Path) -> dict[_Key, bytes]:
    """Return the digests of a file; empty if it is damaged or missing."""
    try:
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            stamps, digests = arrays["stamps"], arrays["digests"]
        if stamps.dtype != _STAMPS or digests.dtype != np.uint8 or digests.shape != (len(stamps), DIGEST):
            return {}
        return dict(zip(stamps.tolist(), (row.tobytes() for row in digests), strict=True))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return {}
