"""The cache folder: where decoded images, shards and features are stored, how large they are, and how to remove them.

NumPy is not loaded here, so that `paucal cache` answers at once.
"""

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "PAUCAL_IMAGE_CACHE"
OFF = "off"
PIXELS, INDEX, KNOWN, UNFINISHED = ".pixels", ".npz", ".known", ".tmp"
SHARDS = "shards"  # subfolder of downloaded shards and stored indices
STORED_RUNS = "runs"  # subfolder of the copies of runs on object storage
MAX_BYTES = 32 << 30
_SHARE_OF_FREE = 0.5
_ABANDONED = 24 * 3600  # age in seconds at which an unfinished file is removed


@dataclass(frozen=True)
class CacheEntry:
    """The decoded images of one set: file, size of the file, and time of its last use in seconds since 1970."""

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
    return Path(setting).expanduser() if setting else features_folder().with_name("images")


def frames_folder() -> Path:
    """Return the folder of DataFrames that were given as DATA: `frames` in the cache folder, even if caching is off."""
    return (cache_folder() or features_folder().with_name("images")) / "frames"


def unpacked_folder() -> Path:
    """Return the folder of unpacked archives with masks: `unpacked` in the cache folder, even if caching is off."""
    return frames_folder().with_name("unpacked")


def folder_bytes(folder: Path) -> int:
    """Return the size in bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


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
        return min(MAX_BYTES, int(_SHARE_OF_FREE * shutil.disk_usage(folder).free))
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


def free_space(folder: Path, max_bytes: int = MAX_BYTES, spare: Path | None = None) -> None:
    """Remove old unfinished files, and the least recently used entries until the rest takes at most `max_bytes`.

    The entry whose pixels are the file `spare` is kept. A run that has an entry open can still read it; on Windows an
    open entry is not removed.
    """
    entries = list_entries(folder)
    total = sum(entry.n_bytes for entry in entries)
    for entry in entries:
        if total <= max_bytes:
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


def clear_fetched(folder: Path) -> int:
    """Remove downloaded shards and stored indices from a cache folder, and return the bytes that this freed."""
    total = folder_bytes(folder / SHARDS)
    shutil.rmtree(folder / SHARDS, ignore_errors=True)
    return total - folder_bytes(folder / SHARDS)


def clear_stored_runs(folder: Path) -> int:
    """Remove copies of runs on object storage, and return the bytes that this freed.

    Runs that are being written, and states that could not be sent, stay.
    """
    total = folder_bytes(folder / STORED_RUNS)
    for run_cache in (folder / STORED_RUNS).glob("*"):
        if not (run_cache / "run" / "lock.json").exists() and not any(run_cache.glob("unsent*")):
            shutil.rmtree(run_cache, ignore_errors=True)
    return total - folder_bytes(folder / STORED_RUNS)
