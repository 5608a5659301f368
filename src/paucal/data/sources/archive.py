"""Archives of image folders, read in place: nothing is unpacked, and no path or link out of them is followed.

A zip has an index, and a plain tar is indexed by reading it once; both then allow random access. A compressed tar
(.tar.gz) is refused, since it would have to be unpacked from its beginning for every image.
"""

import os
import stat
import tarfile
import threading
import zipfile
import zlib
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import compress
from pathlib import Path, PureWindowsPath
from typing import NamedTuple

from paucal.data.decode import UnreadableImage
from paucal.data.images import ImageSet
from paucal.data.sources.folder import Place, is_ignored, open_place
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.splits.part_names import PARTS
from paucal.data.stores import EncodedStore, ReopenedStore
from paucal.reading import require_regular
from paucal.types import UserError
from paucal.wording import counted, was

ARCHIVE_SUFFIXES = (".zip", ".tar")
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
MAX_ENTRIES = 20_000_000
MAX_IMAGE = 512 << 20  # largest unpacked size of an image; a larger one is a decompression bomb
_ENCRYPTED, _UTF8 = 1, 0x800  # bits of a zip entry's flags


class _Entry(NamedTuple):
    """A file in an archive.

    Attributes:
        name: Path within the archive.
        offset: Position of its first byte; in a zip, of its header.
        size: Number of bytes, unpacked.
        stored: Name by which `zipfile` knows the entry, which may have been decoded wrongly; "" in a tar.
    """

    name: str
    offset: int
    size: int
    stored: str = ""


class ArchiveStore(ReopenedStore, EncodedStore):
    """Images in a zip or tar file, each read on demand."""

    kept = ("_file", "_entries", "_zipped")

    def __init__(self, file: Path, entries: list[_Entry]) -> None:
        self._file, self._entries, self._zipped = file, entries, file.suffix.lower() == ".zip"
        self._begin()

    def __len__(self) -> int:
        return len(self._entries)

    def name(self, index: int) -> str:
        """Return the path within the archive."""
        return self._entries[index].name

    def source(self, index: int) -> bytes:
        """Return the bytes of an image."""
        entry = self._entries[index]
        if entry.size > MAX_IMAGE:
            raise UnreadableImage(f"image {entry.name} has more than {MAX_IMAGE:,} bytes, the limit")
        try:
            with self._lock:
                content = self._read_zip(entry) if self._zipped else self._read_tar(entry)
        except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as problem:
            raise UnreadableImage(f"image {entry.name} cannot be read from {self._file.name}: {problem}") from None
        if len(content) != entry.size:
            raise UnreadableImage(
                f"image {entry.name} has {len(content)} bytes, but {self._file.name} states {entry.size}"
            )
        return content

    def _read_zip(self, entry: _Entry) -> bytes:
        if self._archive is None or self._owner != os.getpid():  # a forked process must not share the file position
            self._archive, self._owner = zipfile.ZipFile(self._file), os.getpid()
        with self._archive.open(entry.stored) as file:
            return file.read(entry.size + 1)

    def _read_tar(self, entry: _Entry) -> bytes:
        with self._file.open("rb") as file:
            file.seek(entry.offset)
            return file.read(entry.size)

    def _begin(self) -> None:
        self._archive: zipfile.ZipFile | None = None
        self._owner = 0
        self._lock = threading.Lock()


def is_archive(file: Path) -> bool:
    """Return whether a file has the suffix of an archive."""
    return file.name.lower().endswith((*ARCHIVE_SUFFIXES, *COMPRESSED))


def open_archive(file: Path, labelled: bool = True) -> ImageSet:
    """Open a zip or tar file like the folder that it was made from.

    If all entries are in one folder (`photos.zip` with `photos/cat/1.jpg`), that folder is the root, unless it is named
    "train", "val" or "test".

    Raises:
        UserError: The archive is damaged, compressed as a whole, holds a name that leads out of it, or has no images.
    """
    entries, notes = archive_entries(file)
    images, others = (
        [entry for entry in entries if entry.name.lower().endswith(IMAGE_SUFFIXES) == is_image]
        for is_image in (True, False)
    )
    images.sort(key=lambda entry: entry.name)
    passed_over = Counter(os.path.splitext(entry.name)[1].lower() for entry in others)
    base = shared_folder([entry.name for entry in images], 2)
    entries_by_key = {entry.name.removeprefix(base): entry for entry in images}
    place = Place(
        name=file.stem,
        location=str(file.resolve()),
        store=lambda keys: ArchiveStore(file.resolve(), [entries_by_key[key] for key in keys]),
        subfolders=lambda folder: _subfolders(list(entries_by_key), folder),
    )
    image_set = open_place(place, list(entries_by_key), passed_over, labelled)
    return replace(image_set, notes=(*image_set.notes, *notes))


def archive_entries(file: Path) -> tuple[list[_Entry], tuple[str, ...]]:
    """Return the files in an archive, except hidden ones and links, and a note on the links, if there are any."""
    links: list[str] = []
    require_regular(file)
    if file.name.lower().endswith(COMPRESSED):
        raise UserError(
            f"{file} is compressed as a whole, so that single images cannot be read from it: unpack it, or save the "
            "images as .zip or plain .tar."
        )
    try:
        entries = (_zip_entries if file.suffix.lower() == ".zip" else _tar_entries)(file, links)
    except (zipfile.BadZipFile, tarfile.TarError, OSError, ValueError, EOFError, NotImplementedError) as problem:
        raise UserError(f"{file} cannot be read as an archive ({problem}); download or make it again.") from None
    entries = [entry for entry in entries if not _is_hidden(entry.name)]
    links = [name.removeprefix("./") for name in links if not _is_hidden(name)]
    if not links:
        return entries, ()
    examples = f"{min(links)}{', ...' if len(links) > 1 else ''}"
    note = f"{counted(len(links), 'link')} {was(len(links))} left out ({examples}): links in archives are not followed"
    return entries, (note,)


def _is_hidden(name: str) -> bool:
    # A tar of "." has names that begin with "./".
    return any(is_ignored(part) for part in name.split("/") if part != ".")


def _zip_entries(file: Path, links: list[str]) -> list[_Entry]:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        _refuse_many(file, len(members))
        if locked := next((member.filename for member in members if member.flag_bits & _ENCRYPTED), None):
            raise UserError(f"{file} is encrypted ({locked!r}): unpack it with its password.")
        # A link in a zip is a file that holds a path.
        is_link = [stat.S_ISLNK(member.external_attr >> 16) for member in members]
        links += [_zip_name(member) for member in compress(members, is_link)]
        return [
            _Entry(checked_name(file, _zip_name(member)), member.header_offset, member.file_size, member.filename)
            for member, link in zip(members, is_link, strict=True)
            if not link and not member.is_dir()
        ]


def _zip_name(entry: zipfile.ZipInfo) -> str:
    """Return the name of an entry with forward slashes.

    macOS writes UTF-8 without setting the flag for it, and `zipfile` then assumes code page 437.
    """
    name = entry.filename
    if not entry.flag_bits & _UTF8:
        with suppress(UnicodeError):
            name = name.encode("cp437").decode()
    return name.replace("\\", "/")


def _tar_entries(file: Path, links: list[str]) -> list[_Entry]:
    entries: dict[str, _Entry] = {}
    with tarfile.open(file, "r:") as archive:
        for number, member in enumerate(archive):
            _refuse_many(file, number)
            archive.members.clear()  # type: ignore[attr-defined]  # otherwise every header stays in memory
            if member.isreg() and not member.issparse():
                name = checked_name(file, member.name)
                entries[name] = _Entry(name, member.offset_data, member.size)  # the last entry of a name counts
            elif member.islnk() and member.linkname in entries:  # tar stores a file with two names once
                name = checked_name(file, member.name)
                entries[name] = entries[member.linkname]._replace(name=name)
            elif member.issym() or member.islnk():
                links.append(member.name)
        require_end(archive)
    return list(entries.values())


def require_end(archive: tarfile.TarFile) -> None:
    """Raise a `ReadError` if a tar file lacks the block of zeros at its end, which tarfile does not check."""
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
        raise tarfile.ReadError("it is cut off or damaged")


def checked_name(file: Path | str, name: str) -> str:
    """Return the name of an entry; raise a `UserError` if it leads out of the archive."""
    plain = name.replace("\\", "/")
    if plain.startswith("/") or PureWindowsPath(plain).drive or ".." in plain.split("/") or "\0" in plain:
        raise UserError(f"{file} holds the name {name[:80]!r}, which leads out of it: do not trust this archive")
    return name


def _refuse_many(file: Path, count: int) -> None:
    if count > MAX_ENTRIES:
        raise UserError(f"{file} has more than {MAX_ENTRIES:,} entries, the limit")


def shared_folder(names: list[str], depth: int) -> str:
    """Return the prefix of folders that all files share, up to any folder named "train" or the like.

    Every path keeps `depth` folders after the prefix.
    """
    base = ""
    while names:
        tops = {name.removeprefix(base).partition("/")[0] for name in names}
        nested = all(name.removeprefix(base).count("/") >= depth for name in names)
        if len(tops) != 1 or not nested or next(iter(tops)).lower() in PARTS:
            break
        base += f"{next(iter(tops))}/"
    return base


def _subfolders(keys: list[str], folder: str) -> list[str]:
    prefix = f"{folder}/" if folder else ""
    relative_keys = (key.removeprefix(prefix) for key in keys if key.startswith(prefix))
    return sorted({key.partition("/")[0] for key in relative_keys if "/" in key})
