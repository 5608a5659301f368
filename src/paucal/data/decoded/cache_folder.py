"""The cache folder of decoded images: its location and size, removal of old entries, and stored digests of files."""

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
_ABANDONED = 24 * 3600  # age in seconds at which an unfinished file is removed
DIGEST = 16  # bytes
_MOST_IN_MEMORY = 64 << 20  # bytes; larger files are decoded from their path
_STAMPS = np.dtype([("name", "S16"), ("size", np.int64), ("changed", np.int64)])
_Key = tuple[bytes, int, int]


@dataclass(frozen=True)
class CacheEntry:
    """The decoded images of one set, on disk.

    Attributes:
        pixels: File with the decoded images.
        n_bytes: Size of the file in bytes.
        used: Time of the last use by a run, in seconds since 1970.
    """

    pixels: Path
    n_bytes: int
    used: float


def features_folder() -> Path:
    """Return the folder of stored features, `paucal/features` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "paucal" / "features"


def cache_folder() -> Path | None:
    """Return the folder for decoded images; None if caching is off.

    It is set by the environment variable `PAUCAL_IMAGE_CACHE` (a folder, or "off"), or else is `paucal/images` in the
    user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`).
    """
    setting = os.environ.get(VARIABLE, "").strip()
    if setting.lower() == OFF:
        return None
    if setting:
        return Path(setting).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "paucal" / "images"


def frames_folder() -> Path:
    """Return the folder of DataFrames that were given as DATA, `frames` in the cache folder also if caching is off."""
    return (cache_folder() or features_folder().with_name("images")) / "frames"


def unpacked_folder() -> Path:
    """Return the folder of unpacked archives with masks, `unpacked` in the cache folder also if caching is off."""
    return frames_folder().with_name("unpacked")


def unpacked_bytes() -> int:
    """Return the size in bytes of the unpacked archives."""
    return sum(file.stat().st_size for file in unpacked_folder().rglob("*") if file.is_file())


def usable_folder() -> Path | None:
    """Create and return the cache folder; None if caching is off or the folder cannot be written.

    Only its owner can read the folder, since it may contain images of patients.
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
    """Return the largest size in bytes of one set's images: half of the free disk, at most 32 GiB."""
    try:
        return min(MOST_BYTES, int(_SHARE_OF_FREE * shutil.disk_usage(folder).free))
    except OSError:
        return 0


def list_entries(folder: Path) -> list[CacheEntry]:
    """Return the entries of a cache folder, the least recently used first."""
    entries = []
    for index in folder.glob(f"*{INDEX}"):
        pixels = index.with_suffix(PIXELS)
        try:
            entries.append(CacheEntry(pixels, pixels.stat().st_size, index.stat().st_mtime))
        except OSError:  # another run has removed it
            continue
    return sorted(entries, key=lambda entry: entry.used)


def free_space(folder: Path, most: int = MOST_BYTES, spare: Path | None = None) -> None:
    """Remove the least recently used entries until the rest takes at most `most` bytes, and old unfinished files.

    A run that has an entry open can still read it; on Windows an open entry is not removed.

    Args:
        folder: Cache folder.
        most: Largest total size in bytes.
        spare: File of pixels to keep.
    """
    entries = list_entries(folder)
    total = sum(entry.n_bytes for entry in entries)
    for entry in entries:
        if total <= most:
            break
        if entry.pixels != spare:
            remove_entry(entry)
            total -= entry.n_bytes
    for file in folder.glob(f"*{UNFINISHED}"):
        try:
            if file.stat().st_mtime < time.time() - _ABANDONED:
                file.unlink()
        except OSError:
            continue


def remove_entry(entry: CacheEntry) -> None:
    """Remove an entry, its index first, so that no run opens a partly removed entry."""
    for file in (entry.pixels.with_suffix(INDEX), entry.pixels):
        try:
            file.unlink(missing_ok=True)
        except OSError:  # Windows refuses if the file is open elsewhere
            continue


def clear_cache(folder: Path) -> int:
    """Remove all files of paucal from a cache folder, and return the bytes that this freed."""
    entries = list_entries(folder)
    for entry in entries:
        remove_entry(entry)
    freed = sum(entry.n_bytes for entry in entries if not entry.pixels.exists())
    for pattern in (f"*{KNOWN}{INDEX}", f"*{UNFINISHED}", f"*{PIXELS}"):
        for file in folder.glob(pattern):
            file.unlink(missing_ok=True)
    return freed


def read_encoded(source: bytes | Path) -> bytes | Path:
    """Return the bytes of an encoded image, or the path of a file above 64 MiB.

    Raises:
        OSError: The path is not a regular file, or cannot be read.
    """
    if isinstance(source, bytes):
        return source
    status = source.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENODEV, "it is no regular file (a pipe or a device, for instance)")
    return source.read_bytes() if status.st_size <= _MOST_IN_MEMORY else source


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
        digests, known = np.zeros((len(stamps), DIGEST), dtype=np.uint8), np.zeros(len(stamps), dtype=bool)
        for row, stamp in enumerate(stamps):
            digest = None if stamp is None else self._digests.get(_compact(stamp))
            if digest is not None:
                digests[row], known[row] = np.frombuffer(digest, dtype=np.uint8), True
        return digests, known

    def remember(self, stamps: Sequence[Stamp | None], digests: NDArray[np.uint8]) -> None:
        """Store the digests of readable images, in place of older ones of the same paths."""
        new = {_compact(stamp): digests[row].tobytes() for row, stamp in enumerate(stamps) if stamp is not None}
        paths = {key[0] for key in new}
        self._digests = {**{key: value for key, value in self._digests.items() if key[0] not in paths}, **new}
        temporary = self.file.with_name(f".{self.file.name}.{os.getpid()}{UNFINISHED}")
        table = np.array(list(self._digests), dtype=_STAMPS)
        values = np.frombuffer(b"".join(self._digests.values()), dtype=np.uint8).reshape(-1, DIGEST)
        try:
            with open(temporary, "wb") as file:
                np.savez(file, stamps=table, digests=values)
            temporary.replace(self.file)
        except OSError:  # if the disk is full, the next run computes them again
            temporary.unlink(missing_ok=True)


def _compact(stamp: Stamp) -> _Key:
    # NumPy strips trailing zeros of byte strings.
    name = hashlib.blake2b(stamp.name.encode(errors="surrogateescape"), digest_size=16).digest().rstrip(b"\0")
    return name, stamp.size, stamp.changed


def _read_digests(file: Path) -> dict[_Key, bytes]:
    """Return the digests of a file; empty if it is damaged or missing."""
    try:
        with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as stored:
            stamps, digests = stored["stamps"], stored["digests"]
        if stamps.dtype != _STAMPS or digests.dtype != np.uint8 or digests.shape != (len(stamps), DIGEST):
            return {}
        return dict(zip(stamps.tolist(), (row.tobytes() for row in digests), strict=True))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return {}
