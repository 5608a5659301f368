"""Where decoded images lie on the disk, how much there may be, and which go first."""

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "PAUCAL_IMAGE_CACHE"
OFF = "off"
PIXELS, INDEX, KNOWN, UNFINISHED = ".pixels", ".npz", ".known", ".tmp"
MOST_BYTES = 32 << 30
_SHARE_OF_FREE = 0.5
_FORGOTTEN = 24 * 3600  # seconds after which an unfinished file is nobody's any more


@dataclass(frozen=True)
class Kept:
    """The decoded images of a set, on disk.

    Attributes:
        pixels: the file that holds them.
        n_bytes: what they take.
        used: when a run last opened them, in seconds since 1970.
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


def kept(folder: Path) -> list[Kept]:
    """Return what lies in a folder, what was used longest ago first."""
    found = []
    for index in folder.glob(f"*{INDEX}"):
        pixels = index.with_suffix(PIXELS)
        try:
            found.append(Kept(pixels, pixels.stat().st_size, index.stat().st_mtime))
        except OSError:  # another run has removed it
            continue
    return sorted(found, key=lambda one: one.used)


def make_room(folder: Path, most: int = MOST_BYTES, spare: Path | None = None) -> None:
    """Remove what was used longest ago until the rest takes no more than `most` bytes, and what was left unfinished.

    A run that has images open keeps them, on systems where a file may be removed while it is read; elsewhere they stay.

    Args:
        folder: of the cache.
        most: bytes.
        spare: the pixels that stay in any case.
    """
    entries = kept(folder)
    total = sum(one.n_bytes for one in entries)
    for one in entries:
        if total <= most:
            break
        if one.pixels != spare:
            remove(one)
            total -= one.n_bytes
    for file in folder.glob(f"*{UNFINISHED}"):
        try:
            if file.stat().st_mtime < time.time() - _FORGOTTEN:
                file.unlink()
        except OSError:
            continue


def remove(one: Kept) -> None:
    """Remove an entry; its index first, so that nobody opens it half gone."""
    for file in (one.pixels.with_suffix(INDEX), one.pixels):
        try:
            file.unlink(missing_ok=True)
        except OSError:  # open elsewhere, on Windows
            continue


def clear(folder: Path) -> int:
    """Remove everything that paucal has put into a folder, and return the bytes that this freed."""
    entries = kept(folder)
    for one in entries:
        remove(one)
    freed = sum(one.n_bytes for one in entries if not one.pixels.exists())
    for pattern in (f"*{KNOWN}{INDEX}", f"*{UNFINISHED}", f"*{PIXELS}"):
        for file in folder.glob(pattern):
            file.unlink(missing_ok=True)
    return freed
