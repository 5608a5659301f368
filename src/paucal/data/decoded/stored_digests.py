"""Digests of encoded images, which are stored so that later runs need not read unchanged files again."""

import hashlib
import os
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paucal.data.decoded.cache_folder import DIGESTS_SUFFIX, INDEX_SUFFIX, UNFINISHED_SUFFIX
from paucal.data.stores import FileStamp

DIGEST_BYTES = 16  # bytes per digest
_STAMP_DTYPE = np.dtype([("name", "S16"), ("size", np.int64), ("changed", np.int64)])
_StampKey = tuple[bytes, int, int]


def source_digest(source: bytes | Path) -> bytes:
    """Return the 16-byte digest of an encoded image; raises an OSError if the file of the image cannot be read."""
    if isinstance(source, bytes):
        return hashlib.blake2b(source, digest_size=DIGEST_BYTES).digest()
    with open(source, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).digest()


class StoredDigests:
    """The digests of a set's images in a file of the cache folder, by path, size and modification time."""

    def __init__(self, folder: Path, location: str) -> None:
        name = hashlib.blake2b(location.encode(errors="surrogateescape"), digest_size=DIGEST_BYTES).hexdigest()
        self.file = folder / f"{name}{DIGESTS_SUFFIX}{INDEX_SUFFIX}"
        self._digests: dict[_StampKey, bytes] = {}  # empty if the file is damaged or missing
        with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            with open(self.file, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                stamps, digests = arrays["stamps"], arrays["digests"]
            shape = (len(stamps), DIGEST_BYTES)
            if stamps.dtype == _STAMP_DTYPE and digests.dtype == np.uint8 and digests.shape == shape:
                self._digests = dict(zip(stamps.tolist(), (row.tobytes() for row in digests), strict=True))

    def look_up(self, stamps: Sequence[FileStamp | None]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return (N, 16) digests, and an (N,) mask of the images whose digest was stored; all other digests are 0."""
        digests, is_known = np.zeros((len(stamps), DIGEST_BYTES), dtype=np.uint8), np.zeros(len(stamps), dtype=bool)
        for row, stamp in enumerate(stamps):
            digest = None if stamp is None else self._digests.get(_stamp_key(stamp))
            if digest is not None:
                digests[row], is_known[row] = np.frombuffer(digest, dtype=np.uint8), True
        return digests, is_known

    def remember(self, stamps: Sequence[FileStamp | None], digests: NDArray[np.uint8]) -> None:
        """Store digests, and remove older digests of the same paths."""
        rows = enumerate(stamps)
        new_digests = {_stamp_key(stamp): digests[row].tobytes() for row, stamp in rows if stamp is not None}
        paths = {key[0] for key in new_digests}
        self._digests = {**{key: value for key, value in self._digests.items() if key[0] not in paths}, **new_digests}
        temporary = self.file.with_name(f".{self.file.name}.{os.getpid()}{UNFINISHED_SUFFIX}")
        table = np.array(list(self._digests), dtype=_STAMP_DTYPE)
        values = np.frombuffer(b"".join(self._digests.values()), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
        try:  # if several runs write the file at once, the last wins, and the next run computes the lost digests again
            with open(temporary, "wb") as file:
                np.savez(file, stamps=table, digests=values)
            temporary.replace(self.file)
        except OSError:  # the disk is full, for instance; the next run computes the digests again
            temporary.unlink(missing_ok=True)


def _stamp_key(stamp: FileStamp) -> _StampKey:
    # NumPy strips trailing zeros of byte strings.
    name = hashlib.blake2b(stamp.name.encode(errors="surrogateescape"), digest_size=16).digest().rstrip(b"\0")
    return name, stamp.size, stamp.modified_ns
