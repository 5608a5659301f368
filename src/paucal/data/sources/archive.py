"""Zip and tar archives of image folders, which are read without unpacking them to disk.

A zip file has an index, and an uncompressed tar file is indexed by reading the file once; then images can be read in
any order. A compressed tar file (.tar.gz) is refused, since the file would have to be unpacked from its beginning for
every image. Symbolic links are not followed, and archives with paths that lead out of the archive are refused.
"""

import os
import stat
import tarfile
import threading
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import compress
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

from paucal.data.decode import UnreadableImage
from paucal.data.images import ImageSet
from paucal.data.sources.folder import ImageContainer, is_ignored, open_container
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.splits.part_names import PART_BY_WORD
from paucal.data.stores import EncodedStore
from paucal.reading import require_regular
from paucal.types import UserError
from paucal.wording import counted, was_or_were

ARCHIVE_SUFFIXES = (".zip", ".tar")
COMPRESSED_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
MAX_ENTRIES = 20_000_000  # maximum number of files in an archive
MAX_IMAGE_BYTES = 512 << 20  # maximum unpacked size of an image; a larger file may be a decompression bomb
_ENCRYPTED_FLAG, _UTF8_FLAG = 1, 0x800  # bits of a zip entry's flags


class _Entry(NamedTuple):
    """A file in an archive."""

    name: str
    offset: int  # byte position of the content (tar) or the header (zip)
    size: int  # uncompressed size in bytes
    zip_name: str = ""  # name by which `zipfile` finds the entry, perhaps with wrongly decoded letters


class ArchiveStore(EncodedStore):
    """Images in a zip or tar file, which are read when needed; a process that unpickles the store opens the file."""

    def __init__(self, file: Path, entries: list[_Entry]) -> None:
        super().__init__([entry.name for entry in entries])
        self._file, self._entries, self._zipped = file, entries, file.suffix.lower() == ".zip"
        self._archive: zipfile.ZipFile | None = None
        self._process_id = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return ArchiveStore, (self._file, self._entries)

    def source(self, index: int) -> bytes:
        """Return the encoded bytes of an image."""
        entry = self._entries[index]
        if entry.size > MAX_IMAGE_BYTES:
            raise UnreadableImage(f"image {entry.name} is larger than the limit of {MAX_IMAGE_BYTES:,} bytes")
        try:
            with self._lock:
                content = self._read(entry)
        except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as problem:
            raise UnreadableImage(f"image {entry.name} cannot be read from {self._file.name}: {problem}") from None
        if len(content) != entry.size:
            raise UnreadableImage(
                f"image {entry.name} has {len(content)} bytes, but {entry.size} bytes according to {self._file.name}"
            )
        return content

    def _read(self, entry: _Entry) -> bytes:
        if not self._zipped:
            with self._file.open("rb") as tar_file:
                tar_file.seek(entry.offset)
                return tar_file.read(entry.size)
        # The file is opened again in a forked process, which must not share the file position with its parent.
        if self._archive is None or self._process_id != os.getpid():
            self._archive, self._process_id = zipfile.ZipFile(self._file), os.getpid()
        with self._archive.open(entry.zip_name) as file:
            return file.read(entry.size + 1)


def is_archive(file: Path) -> bool:
    """Return whether a file has the suffix of an archive, such as ".zip" or ".tar.gz"."""
    return file.name.lower().endswith((*ARCHIVE_SUFFIXES, *COMPRESSED_SUFFIXES))


def open_archive(file: Path, labelled: bool = True) -> ImageSet:
    """Open a zip or tar file like the folder that it was made from.

    If all images are in one folder that is not named after a split (`photos/` in `photos.zip`), it is the root.
    """
    entries, notes = archive_entries(file)
    images = [entry for entry in entries if entry.name.lower().endswith(IMAGE_SUFFIXES)]
    images.sort(key=lambda entry: entry.name)
    other_names = [entry.name for entry in entries if not entry.name.lower().endswith(IMAGE_SUFFIXES)]
    other_suffixes = Counter(os.path.splitext(name)[1].lower() for name in other_names)
    root = shared_folder([entry.name for entry in images], 2)
    entries_by_key = {entry.name.removeprefix(root): entry for entry in images}

    def list_subfolders(folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        relative_keys = (key.removeprefix(prefix) for key in entries_by_key if key.startswith(prefix))
        return sorted({key.partition("/")[0] for key in relative_keys if "/" in key})

    container = ImageContainer(
        name=file.stem,
        location=str(file.resolve()),
        make_store=lambda keys: ArchiveStore(file.resolve(), [entries_by_key[key] for key in keys]),
        list_subfolders=list_subfolders,
    )
    image_set = open_container(container, list(entries_by_key), other_suffixes, labelled, file.resolve())
    return replace(image_set, notes=(*image_set.notes, *notes))


def archive_entries(file: Path) -> tuple[list[_Entry], tuple[str, ...]]:
    """Return the files in an archive, and a note if links were left out; hidden files are left out too."""
    links: list[str] = []
    require_regular(file)
    if file.name.lower().endswith(COMPRESSED_SUFFIXES):
        raise UserError(
            f"{file} is compressed as a whole, so single images cannot be read: unpack the file, or save the images as "
            ".zip or uncompressed .tar."
        )
    try:
        entries = (_zip_entries if file.suffix.lower() == ".zip" else _tar_entries)(file, links)
    except (zipfile.BadZipFile, tarfile.TarError, OSError, ValueError, EOFError, NotImplementedError) as problem:
        raise UserError(
            f"{file} cannot be read as an archive ({problem}); download or create the archive again."
        ) from None
    entries = [entry for entry in entries if not _is_hidden(entry.name)]
    links = [name.removeprefix("./") for name in links if not _is_hidden(name)]
    if not links:
        return entries, ()
    examples = f"{min(links)}{', ...' if len(links) > 1 else ''}"
    left_out = f"{counted(len(links), 'link')} {was_or_were(len(links))} left out ({examples})"
    return entries, (f"{left_out}: links in archives are not followed",)


def _is_hidden(name: str) -> bool:
    # In a tar file of the folder ".", all paths begin with "./".
    return any(is_ignored(folder) for folder in name.split("/") if folder != ".")


def _zip_entries(file: Path, links: list[str]) -> list[_Entry]:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        _refuse_too_many_entries(file, len(members))
        if encrypted := next((member.filename for member in members if member.flag_bits & _ENCRYPTED_FLAG), None):
            raise UserError(f"{file} is encrypted ({encrypted!r}): unpack the archive with its password.")
        # In a zip file, a symbolic link is stored as a file whose content is the path of the target.
        is_link = [stat.S_ISLNK(member.external_attr >> 16) for member in members]
        links += [_zip_name(member) for member in compress(members, is_link)]
        return [
            _Entry(require_safe_name(file, _zip_name(member)), member.header_offset, member.file_size, member.filename)
            for member, link in zip(members, is_link, strict=True)
            if not link and not member.is_dir()
        ]


def _zip_name(entry: zipfile.ZipInfo) -> str:
    """Return the path of an entry with forward slashes."""
    name = entry.filename
    if not entry.flag_bits & _UTF8_FLAG:  # macOS writes UTF-8 without the flag, and `zipfile` decodes code page 437
        with suppress(UnicodeError):
            name = name.encode("cp437").decode()
    return name.replace("\\", "/")


def _tar_entries(file: Path, links: list[str]) -> list[_Entry]:
    entries: dict[str, _Entry] = {}
    with tarfile.open(file, "r:") as archive:
        for member in tar_members(archive, file):
            if member.isreg() and not member.issparse():
                name = require_safe_name(file, member.name)
                # If a name occurs several times, the last entry replaces earlier ones, as when tar unpacks the file.
                entries[name] = _Entry(name, member.offset_data, member.size)
            elif member.islnk() and member.linkname in entries:  # a hard link: another name for the same file
                name = require_safe_name(file, member.name)
                entries[name] = entries[member.linkname]._replace(name=name)
            elif member.issym() or member.islnk():
                links.append(member.name)
    return list(entries.values())


def tar_members(archive: tarfile.TarFile, file: Path | str) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar file; raise a UserError, which names `file`, if there are too many."""
    for number, member in enumerate(archive, start=1):
        _refuse_too_many_entries(file, number)
        archive.members.clear()  # type: ignore[attr-defined]  # otherwise every header stays in memory
        yield member
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
        raise tarfile.ReadError("the file is truncated or damaged")  # `tarfile` itself does not check this


def require_safe_name(file: Path | str, name: str) -> str:
    """Return the path `name` of an entry in `file`; raise a `UserError` if the path is absolute or contains ".."."""
    plain = name.replace("\\", "/")
    if plain.startswith("/") or PureWindowsPath(plain).drive or ".." in plain.split("/") or "\0" in plain:
        problem = f"{file} contains the path {name[:80]!r}, which is absolute or leads to a parent folder"
        raise UserError(f"{problem}: do not trust this file.")
    return name


def _refuse_too_many_entries(file: Path | str, count: int) -> None:
    if count > MAX_ENTRIES:
        raise UserError(f"{file} has more entries than the limit of {MAX_ENTRIES:,}: split the file.")


def shared_folder(names: list[str], depth: int) -> str:
    """Return the longest path of folders that all file paths begin with, ending in a slash; "" if there is none.

    The result contains no folder named after a split, and leaves at least `depth` - 1 folders of each path.
    """
    shared = ""
    while names:
        next_folders = {name.removeprefix(shared).partition("/")[0] for name in names}
        are_nested = all(name.removeprefix(shared).count("/") >= depth for name in names)
        if len(next_folders) != 1 or not are_nested or next(iter(next_folders)).lower() in PART_BY_WORD:
            break
        shared += f"{next(iter(next_folders))}/"
    return shared
