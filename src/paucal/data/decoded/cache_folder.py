"""The cache folder of decoded images, shards and features; without NumPy, so that `paucal cache` starts quickly."""

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

CACHE_VARIABLE = "PAUCAL_IMAGE_CACHE"  # environment variable with the path of the cache folder
OFF = "off"  # value of this environment variable that turns caching off
PIXELS_SUFFIX, INDEX_SUFFIX, UNFINISHED_SUFFIX = ".pixels", ".npz", ".tmp"
DIGESTS_SUFFIX = ".known"  # suffix of files of digests, followed by `INDEX_SUFFIX`
SHARDS = "shards"  # subfolder of downloaded shards and stored indices
STORED_RUNS = "runs"  # subfolder of local copies of runs that are on object storage
MAX_BYTES = 32 << 30  # largest total size of the decoded images
_MAX_DISK_FRACTION = 0.5  # largest fraction of the free disk space that the images of one set may take up
_MAX_UNFINISHED_AGE = 24 * 3600  # seconds after which an unfinished file is removed


@dataclass(frozen=True)
class CacheEntry:
    """The file with the decoded images of one set; `last_used` is in seconds since 1970."""

    pixels_path: Path
    n_bytes: int
    last_used: float


def features_folder() -> Path:
    """Return the folder of stored features: `paucal/features` in `XDG_CACHE_HOME`, or else in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "paucal" / "features"


def cache_folder() -> Path | None:
    """Return the folder for decoded images: `PAUCAL_IMAGE_CACHE`, else in the user's cache folder; None if "off"."""
    setting = os.environ.get(CACHE_VARIABLE, "").strip()
    if setting.lower() == OFF:
        return None
    return Path(setting).expanduser() if setting else features_folder().with_name("images")


def dataframes_folder() -> Path:
    """Return the folder for DataFrames that were passed as DATA: `frames` in the cache folder, even without caching."""
    return (cache_folder() or features_folder().with_name("images")) / "frames"


def unpacked_archives_folder() -> Path:
    """Return the folder of unpacked archives with masks: `unpacked` in the cache folder, even if caching is off."""
    return dataframes_folder().with_name("unpacked")


def folder_bytes(folder: Path) -> int:
    """Return the size in bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def usable_cache_folder() -> Path | None:
    """Create and return the cache folder, readable only by the user; None if caching is off or it cannot be written."""
    folder = cache_folder()
    if folder is None:
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def usable_disk_bytes(folder: Path) -> int:
    """Return how many bytes the images of one set may take up: half of the free disk space, at most 32 GiB."""
    try:
        return min(MAX_BYTES, int(_MAX_DISK_FRACTION * shutil.disk_usage(folder).free))
    except OSError:
        return 0


def list_entries(folder: Path) -> list[CacheEntry]:
    """Return the entries of a cache folder, the least recently used entry first."""
    entries = []
    for index in folder.glob(f"*{INDEX_SUFFIX}"):
        pixels_path = index.with_suffix(PIXELS_SUFFIX)
        try:
            entries.append(CacheEntry(pixels_path, pixels_path.stat().st_size, index.stat().st_mtime))
        except OSError:  # another run has removed the entry
            continue
    return sorted(entries, key=lambda entry: entry.last_used)


def evict_entries(folder: Path, max_bytes: int = MAX_BYTES, kept_pixels_path: Path | None = None) -> None:
    """Remove old unfinished files, and the least recently used entries until all take up at most `max_bytes`."""
    entries = list_entries(folder)
    total = sum(entry.n_bytes for entry in entries)
    for entry in entries:
        if total <= max_bytes:
            break
        if entry.pixels_path != kept_pixels_path:
            remove_entry(entry)  # a run that has opened the entry can still read it
            total -= entry.n_bytes
    for file in folder.glob(f"*{UNFINISHED_SUFFIX}"):
        try:
            if file.stat().st_mtime < time.time() - _MAX_UNFINISHED_AGE:
                file.unlink()
        except OSError:
            continue


def remove_entry(entry: CacheEntry) -> None:
    """Remove the files of an entry, the index first, so that no run opens a partly removed entry."""
    for file in (entry.pixels_path.with_suffix(INDEX_SUFFIX), entry.pixels_path):
        try:
            file.unlink(missing_ok=True)
        except OSError:  # Windows refuses to remove a file that another process has open
            continue


def clear_cache(folder: Path) -> int:
    """Remove decoded images, digests and unfinished files from a cache folder; return the freed bytes of images."""
    entries = list_entries(folder)
    for entry in entries:
        remove_entry(entry)
    freed = sum(entry.n_bytes for entry in entries if not entry.pixels_path.exists())
    for pattern in (f"*{DIGESTS_SUFFIX}{INDEX_SUFFIX}", f"*{UNFINISHED_SUFFIX}", f"*{PIXELS_SUFFIX}"):
        for file in folder.glob(pattern):
            file.unlink(missing_ok=True)
    return freed


def clear_downloaded_shards(folder: Path) -> int:
    """Remove downloaded shards and their stored indices from a cache folder; return the number of freed bytes."""
    total = folder_bytes(folder / SHARDS)
    shutil.rmtree(folder / SHARDS, ignore_errors=True)
    return total - folder_bytes(folder / SHARDS)


def clear_stored_runs(folder: Path) -> int:
    """Remove local copies of runs that are on object storage; return the number of freed bytes."""
    total = folder_bytes(folder / STORED_RUNS)
    for run_cache in (folder / STORED_RUNS).glob("*"):
        # Copies of running runs, and copies with checkpoints that could not be uploaded, are kept.
        if not (run_cache / "run" / "lock.json").exists() and not any(run_cache.glob("unsent*")):
            shutil.rmtree(run_cache, ignore_errors=True)
    return total - folder_bytes(folder / STORED_RUNS)
