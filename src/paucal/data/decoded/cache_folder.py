"""Where decoded images lie on the disk, how much there may be, and which go first."""

import errno
import hashlib
import os
import shutil
import stat
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paucal.data.stores import Stamp

VARIABLE = "PAUCAL_IMAGE_CACHE"
OFF = "off"
PIXELS, INDEX, KNOWN, UNFINISHED = ".pixels", ".npz", ".known", ".tmp"
MOST_BYTES = 32 << 30
_SHARE_OF_FREE = 0.5
_FORGOTTEN = 24 * 3600  # seconds after which an unfinished file is nobody's any more


@dataclass(frozen=True)
class CacheEntry:
    """The decoded images of a set, on disk.

    Attributes:
        pixels: File with the decoded images.
        n_bytes: Size of the file in bytes.
        used: Time of the last use by a run, in seconds since 1970.
    """

    pixels: Path
    n_bytes: int
    used: float


def cache_folder() -> Path | None:
    """Return where decoded images are kept, None where they shall not be.

    That is the environment's `PAUCAL_IMAGE_CACHE` (a folder, or "off"), else `paucal/images` in the user's cache
    folder (`XDG_CACHE_HOME`, else `~/.cache`).
    """
    said = os.environ.get(VARIABLE, "").strip()
    if said.lower() == OFF:
        return None
    if said:
        return Path(said).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "paucal" / "images"


def usable_folder() -> Path | None:
    """Return the folder once it is made; None where there shall be none or it cannot be written.

    Only its owner can read it: the images may be of patients.
    """
    folder = cache_folder()
    if folder is None:
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def free_bytes(folder: Path) -> int:
    """Return how large one set's images may be: half of what is free on the disk, 32 GiB at most."""
    try:
        return min(MOST_BYTES, int(_SHARE_OF_FREE * shutil.disk_usage(folder).free))
    except OSError:
        return 0


def list_entries(folder: Path) -> list[CacheEntry]:
    """Return what lies in a folder, what was used longest ago first."""
    found = []
    for index in folder.glob(f"*{INDEX}"):
        pixels = index.with_suffix(PIXELS)
        try:
            found.append(CacheEntry(pixels, pixels.stat().st_size, index.stat().st_mtime))
        except OSError:  # another run has removed it
            continue
    return sorted(found, key=lambda one: one.used)


def free_space(folder: Path, most: int = MOST_BYTES, spare: Path | None = None) -> None:
    """Remove what was used longest ago until the rest takes no more than `most` bytes, and what was left unfinished.

    A run that has images open keeps them, on systems where a file may be removed while it is read; elsewhere they stay.

    Args:
        folder: Cache folder.
        most: Largest total size in bytes.
        spare: File of pixels that is never removed.
    """
    entries = list_entries(folder)
    total = sum(one.n_bytes for one in entries)
    for one in entries:
        if total <= most:
            break
        if one.pixels != spare:
            remove_entry(one)
            total -= one.n_bytes
    for file in folder.glob(f"*{UNFINISHED}"):
        try:
            if file.stat().st_mtime < time.time() - _FORGOTTEN:
                file.unlink()
        except OSError:
            continue


def remove_entry(one: CacheEntry) -> None:
    """Remove an entry; its index first, so that nobody opens it half gone."""
    for file in (one.pixels.with_suffix(INDEX), one.pixels):
        try:
            file.unlink(missing_ok=True)
        except OSError:  # open elsewhere, on Windows
            continue


def clear_cache(folder: Path) -> int:
    """Remove everything that paucal has put into a folder, and return the bytes that this freed."""
    entries = list_entries(folder)
    for one in entries:
        remove_entry(one)
    freed = sum(one.n_bytes for one in entries if not one.pixels.exists())
    for pattern in (f"*{KNOWN}{INDEX}", f"*{UNFINISHED}", f"*{PIXELS}"):
        for file in folder.glob(pattern):
            file.unlink(missing_ok=True)
    return freed


DIGEST = 16  # bytes
_AT_ONCE = 64 << 20  # bytes of a file that are held while it is decoded
_STAMPS = np.dtype([("name", "S16"), ("size", np.int64), ("changed", np.int64)])


def read_encoded(source: bytes | Path) -> bytes | Path:
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


class StoredDigests:
    """The digests of a set's images, remembered from one run to the next.

    They are looked up by place, size and time of change, so a file that was changed or replaced is read anew. Several
    runs may write at once: the last one wins, and what the others knew is found out again.

    Args:
        folder: Cache folder.
        location: Location of the set of images.
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
