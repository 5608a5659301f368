"""Archives of images and masks, unpacked once into the cache: masks are read from files."""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from paucal.data.decoded.cache_folder import free_bytes, unpacked_folder
from paucal.data.sources.archive import COMPRESSED, ArchiveStore, archive_entries, shared_folder
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.types import UserError

# Images, masks, lists of parts and of classes, and COCO's panoptic JSON.
KEPT = (*IMAGE_SUFFIXES, ".txt", ".csv", ".json")


def unpack(archive: Path) -> Path:
    """Return the folder with the images and lists of a zip or tar file; it is unpacked unless the cache has it."""
    if archive.name.lower().endswith(COMPRESSED):
        raise UserError(f"{str(archive)!r} is compressed as a whole: unpack it, and give the folder.")
    stat = archive.resolve().stat()
    digest = hashlib.sha256(f"{archive.resolve()} {stat.st_size} {stat.st_mtime_ns} {KEPT}".encode()).hexdigest()[:32]
    folder = unpacked_folder() / digest
    if folder.is_dir():
        return folder
    entries = {entry.name.replace("\\", "/"): entry for entry in archive_entries(archive)}
    entries = {name: entry for name, entry in entries.items() if name.lower().endswith(KEPT)}
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    total, free_space = sum(entry.size for entry in entries.values()), free_bytes(folder.parent)
    if total > free_space:
        raise UserError(
            f"{str(archive)!r} has {total / 2**30:.3g} GiB of images and masks, and the cache has room for "
            f"{free_space / 2**30:.3g}: unpack it elsewhere, and give the folder."
        )
    base, store = shared_folder(list(entries), 1), ArchiveStore(archive.resolve(), list(entries.values()))
    target = Path(tempfile.mkdtemp(dir=folder.parent, prefix="unfinished-"))
    try:
        for index, name in enumerate(entries):
            path = target / name.removeprefix(base)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(store.source(index))
        if not folder.is_dir():  # another process may have been faster
            os.replace(target, folder)
    finally:
        shutil.rmtree(target, ignore_errors=True)
    return folder
