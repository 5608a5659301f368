"""The files of a set of images with boxes: those below a folder, or those in an archive."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from paucal.data.sources.archive import ARCHIVE_SUFFIXES, COMPRESSED, ArchiveStore, archive_entries, shared_folder
from paucal.data.sources.folder import IMAGE_SUFFIXES, find_files
from paucal.data.stores import EncodedStore, FileStore
from paucal.reading import DecodedText, decode_text, is_regular, read_bytes
from paucal.types import UserError

PEEKED = 1 << 22  # bytes at the beginning and at the end of a file that are looked through for what it holds


@dataclass(frozen=True)
class Tree:
    """The files of a set, hidden ones left out.

    Attributes:
        shown: Name of the place in messages, as the user wrote it.
        name: Short name for people.
        location: Place as `ImageSet.location` has it.
        files: Paths relative to the place, with forward slashes, sorted.
        read: Returns the bytes of a file, of which there may be so many.
        peek: Returns so many bytes from the beginning and from the end of a file.
        store: Makes the store of the images with given paths.
        is_inside: Whether a file lies within the place, and not behind a link that leads out of it.
    """

    shown: str
    name: str
    location: str
    files: tuple[str, ...]
    read: Callable[[str, int], bytes]
    peek: Callable[[str, int], bytes]
    store: Callable[[list[str]], EncodedStore]
    is_inside: Callable[[str], bool]

    @cached_property
    def images(self) -> tuple[str, ...]:
        """Paths of the images."""
        return tuple(path for path in self.files if path.lower().endswith(IMAGE_SUFFIXES))

    def ending(self, *suffixes: str) -> list[str]:
        """Return the files whose names end so, in any case."""
        return [path for path in self.files if path.lower().endswith(suffixes)]

    def text(self, path: str, most: int) -> DecodedText:
        """Return the text of a file, see `decode_text`.

        Raises:
            UserError: The file is larger, or is no text.
        """
        return decode_text(self.read(path, most), self.place_of(path))

    def place_of(self, path: str) -> str:
        """Return how a file is called in messages."""
        return str(Path(self.shown, path))


def open_tree(place: Path) -> Tree:
    """List the files of a folder or an archive.

    Raises:
        UserError: The archive is damaged or compressed as a whole.
    """
    return folder_tree(place) if place.is_dir() else _archive_tree(place)


def is_archive(file: Path) -> bool:
    """Return whether a file is called like an archive."""
    return file.name.lower().endswith((*ARCHIVE_SUFFIXES, *COMPRESSED))


def folder_tree(root: Path, files: Sequence[str] | None = None) -> Tree:
    """List the files below a folder, or take some of them for all there are.

    Raises:
        UserError: A folder cannot be read.
    """
    inside = root.resolve()
    return Tree(
        shown=str(root),
        name=inside.name,
        location=str(inside),
        files=tuple(sorted(find_files(root)) if files is None else files),
        read=lambda path, most: read_bytes(root / path, most),
        peek=lambda path, count: _ends_of(root / path, count),
        store=lambda keys: FileStore(root, keys),
        is_inside=lambda path: (root / path).resolve().is_relative_to(inside),
    )


def _archive_tree(file: Path) -> Tree:
    entries = {one.name.replace("\\", "/"): one for one in archive_entries(file)}
    base = shared_folder(list(entries), 1)
    found = {path.removeprefix(base): entry for path, entry in sorted(entries.items())}

    def read(path: str, most: int) -> bytes:
        if found[path].size > most:
            raise UserError(f"{path!r} in {str(file)!r} has more than {most:,} bytes, the most that are read.")
        return ArchiveStore(file, [found[path]]).source(0)

    def peek(path: str, count: int) -> bytes:
        content = read(path, found[path].size)
        return content if len(content) <= 2 * count else content[:count] + content[-count:]

    def store(keys: list[str]) -> ArchiveStore:
        return ArchiveStore(file.resolve(), [found[key] for key in keys])

    return Tree(
        shown=str(file),
        name=file.stem,
        location=str(file.resolve()),
        files=tuple(found),
        read=read,
        peek=peek,
        store=store,
        is_inside=lambda path: True,
    )


def plain(content: bytes) -> bytes:
    """Return bytes of a text as if each of its ASCII characters was one byte, and without a byte order mark."""
    return content.replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe")


def mentions(content: bytes, name: str) -> bool:
    """Return whether JSON seems to have an entry of a name."""
    return f'"{name}"'.encode() in plain(content)


def _ends_of(file: Path, count: int) -> bytes:
    if not is_regular(file):  # a pipe would be waited for
        return b""
    try:
        with file.open("rb") as content:
            start = content.read(count)
            content.seek(max(len(start), content.seek(0, 2) - count))
            return start + content.read(count)
    except OSError:
        return b""
