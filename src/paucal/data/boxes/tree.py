"""The files of a set of images with boxes, in a folder or in an archive."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from paucal.data.sources.archive import ArchiveStore, archive_entries, shared_folder
from paucal.data.sources.folder import find_files
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.stores import EncodedStore, FileStore
from paucal.reading import decode_text, is_regular, parse_json, read_bytes
from paucal.types import UserError

MAX_LIST_BYTES = 1 << 26
PEEKED = 1 << 22  # bytes at the start and at the end of a file that are searched to recognise it


@dataclass(frozen=True)
class Tree:
    """The files of a set, except hidden files.

    Attributes:
        shown: Location as the user wrote it, for messages.
        name: Short name of the set for messages.
        location: Resolved location, as in `ImageSet.location`.
        files: Paths relative to the location, with forward slashes, sorted.
        read: Function that returns the bytes of a file, up to a given number.
        peek: Function that returns a given number of bytes from the start and from the end of a file.
        store: Function that builds the store of the images with given paths.
        is_inside: Function that returns whether a file lies within the location, not behind a link out of it.
        notes: Sentences on what was left out.
    """

    shown: str
    name: str
    location: str
    files: tuple[str, ...]
    read: Callable[[str, int], bytes]
    peek: Callable[[str, int], bytes]
    store: Callable[[list[str]], EncodedStore]
    is_inside: Callable[[str], bool]
    notes: tuple[str, ...] = ()

    @cached_property
    def images(self) -> tuple[str, ...]:
        """Paths of the images."""
        return tuple(path for path in self.files if path.lower().endswith(IMAGE_SUFFIXES))

    def ending(self, *suffixes: str) -> list[str]:
        """Return the files with any of the suffixes, in upper or lower case."""
        return [path for path in self.files if path.lower().endswith(suffixes)]

    def text(self, path: str, max_bytes: int) -> tuple[str, list[str]]:
        """Return the text of a file of at most `max_bytes` bytes, and a note if its encoding was guessed."""
        text, _, note = decode_text(self.read(path, max_bytes), self.place_of(path))
        return text, [note] if note else []

    def lines(self, path: str, blank: bool = False) -> tuple[list[str], list[str]]:
        """Return the lines of a text file without outer white space, and a note if its encoding was guessed.

        Empty lines are left out unless `blank`, so that lines can be counted.
        """
        text, notes = self.text(path, MAX_LIST_BYTES)
        lines = [line.strip() for line in re.split(r"\r\n|\r|\n", text)]
        return [line for line in lines if line or blank], notes

    def json(self, path: str, max_bytes: int, advice: str) -> tuple[Any, list[str]]:
        """Return the content of a JSON file, and a note if its encoding was guessed.

        Raises:
            UserError: The file is larger or is not JSON; `advice` ends the message.
        """
        text, notes = self.text(path, max_bytes)
        try:
            return parse_json(text), notes
        except ValueError as problem:
            raise UserError(f"{self.place_of(path)!r} cannot be read ({problem}): {advice}.") from None

    def place_of(self, path: str) -> str:
        """Return the name of a file for messages."""
        return str(Path(self.shown, path))


def open_tree(path: Path) -> Tree:
    """List the files of a folder or an archive."""
    return folder_tree(path) if path.is_dir() else _archive_tree(path)


def folder_tree(root: Path, files: Sequence[str] | None = None) -> Tree:
    """List the files below a folder, or only the given files."""
    real_root = root.resolve()
    return Tree(
        shown=str(root),
        name=real_root.name,
        location=str(real_root),
        files=tuple(sorted(find_files(root)) if files is None else files),
        read=lambda path, max_bytes: read_bytes(root / path, max_bytes),
        peek=lambda path, count: _peek_ends(root / path, count),
        store=lambda keys: FileStore(root, keys),
        is_inside=lambda path: (root / path).resolve().is_relative_to(real_root),
    )


def _archive_tree(file: Path) -> Tree:
    listed_entries, notes = archive_entries(file)
    entries = {entry.name.replace("\\", "/"): entry for entry in listed_entries}
    base = shared_folder(list(entries), 1)
    files = {path.removeprefix(base): entry for path, entry in sorted(entries.items())}

    def read(path: str, max_bytes: int) -> bytes:
        if files[path].size > max_bytes:
            raise UserError(f"{path!r} in {str(file)!r} has more than {max_bytes:,} bytes, the limit.")
        return ArchiveStore(file, [files[path]]).source(0)

    def peek(path: str, count: int) -> bytes:
        content = read(path, files[path].size)
        return content if len(content) <= 2 * count else content[:count] + content[-count:]

    return Tree(
        shown=str(file),
        name=file.stem,
        location=str(file.resolve()),
        files=tuple(files),
        read=read,
        peek=peek,
        store=lambda keys: ArchiveStore(file.resolve(), [files[key] for key in keys]),
        is_inside=lambda path: True,
        notes=notes,
    )


def ascii_bytes(content: bytes) -> bytes:
    """Return the bytes of a text without byte order mark, and without the zeros of UTF-16 and UTF-32."""
    return content.replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe")


def mentions(content: bytes, name: str) -> bool:
    """Return whether JSON seems to have an entry of this name."""
    return f'"{name}"'.encode() in ascii_bytes(content)


def _peek_ends(file: Path, count: int) -> bytes:
    if not is_regular(file):  # reading a pipe would block
        return b""
    try:
        with file.open("rb") as content:
            start = content.read(count)
            content.seek(max(len(start), content.seek(0, 2) - count))
            return start + content.read(count)
    except OSError:
        return b""
