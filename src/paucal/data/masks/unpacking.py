"""Archives of images and masks, unpacked once into the cache folder, since masks are read from files."""

import hashlib
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from paucal.data.decoded.cache_folder import unpacked_archives_folder, usable_disk_bytes
from paucal.data.sources.archive import COMPRESSED_SUFFIXES, ArchiveStore, archive_entries, shared_folder
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.reading import is_regular
from paucal.types import UserError

# Suffixes of images, masks, lists of splits, lists of classes, and COCO's panoptic JSON files.
UNPACKED_SUFFIXES = (*IMAGE_SUFFIXES, ".txt", ".csv", ".json")


def unpack(archive: Path) -> tuple[Path, tuple[str, ...]]:
    """Unpack the images, masks and lists of a zip or tar file, unless the cache folder already contains these files.

    Returns:
        The folder with the files, and notes on files that were left out.
    """
    if archive.name.lower().endswith(COMPRESSED_SUFFIXES):
        raise UserError(f"{str(archive)!r} is compressed as a whole: unpack it, and give the folder.")
    stat = archive.resolve().stat()
    digest = hashlib.sha256(
        f"{archive.resolve()} {stat.st_size} {stat.st_mtime_ns} {UNPACKED_SUFFIXES}".encode()
    ).hexdigest()[:32]
    folder = unpacked_archives_folder() / digest
    listed_entries, notes = archive_entries(archive)
    entries = {entry.name.replace("\\", "/"): entry for entry in listed_entries}
    entries = {name: entry for name, entry in entries.items() if name.lower().endswith(UNPACKED_SUFFIXES)}
    base = shared_folder(list(entries), 1)
    sizes = {folder / name.removeprefix(base): entry.size for name, entry in entries.items()}
    if _is_complete(folder, sizes):
        return folder, notes
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    total, free_space = sum(entry.size for entry in entries.values()), usable_disk_bytes(folder.parent)
    if total > free_space:
        raise UserError(
            f"{str(archive)!r} contains {total / 2**30:.3g} GiB of images and masks, but only "
            f"{free_space / 2**30:.3g} GiB are free in the cache folder: unpack the archive elsewhere, and give the "
            "folder."
        )
    store = ArchiveStore(archive.resolve(), list(entries.values()))
    with TemporaryDirectory(dir=folder.parent, prefix="unfinished-", ignore_cleanup_errors=True) as target:
        for index, name in enumerate(entries):
            path = Path(target, name.removeprefix(base))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(store.source(index))
        if not _is_complete(folder, sizes):  # if complete, another process has unpacked the archive
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # another process may have finished in between
                os.replace(target, folder)
    if not _is_complete(folder, sizes):
        raise UserError(
            f"{str(archive)!r} cannot be unpacked into {folder}: unpack the archive into another folder yourself, and "
            "give that folder."
        )
    return folder, notes


def _is_complete(folder: Path, sizes: Mapping[Path, int]) -> bool:
    """Return whether all files exist with the expected sizes; some systems delete files that are unused for weeks."""
    return folder.is_dir() and all(is_regular(file) and file.stat().st_size == size for file, size in sizes.items())
