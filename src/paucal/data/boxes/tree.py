"""`Tree`: the files of a data set with boxes or masks, in a folder or in an archive."""

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

MAX_LIST_BYTES = 1 << 26  # size of the largest text file that is read line by line
PEEK_BYTES = 1 << 22  # bytes at the start and at the end of a JSON file that are read to recognise its layout


@dataclass(frozen=True)
class Tree:
    """The files of a data set, except hidden files."""

    shown_root: str  # path of the folder or archive as the user wrote it, for messages
    name: str
    location: str  # absolute path of the folder or archive, as in `ImageSet.location`
    files: tuple[str, ...]  # sorted paths relative to the location, with forward slashes
    read: Callable[[str, int], bytes]  # (path, limit) -> bytes of a file; raises a UserError above `limit` bytes
    peek: Callable[[str, int], bytes]  # (path, count) -> first and last `count` bytes of a file; b"" if unreadable
    make_store: Callable[[list[str]], EncodedStore]  # (paths) -> store of the images at these paths
    is_inside: Callable[[str], bool]  # (path) -> whether a file is inside the location after links are followed
    notes: tuple[str, ...] = ()  # notes on files that were left out

    @cached_property
    def images(self) -> tuple[str, ...]:
        """Paths of the images."""
        return tuple(path for path in self.files if path.lower().endswith(IMAGE_SUFFIXES))

    def files_ending(self, *suffixes: str) -> list[str]:
        """Return the files whose names end in any of the (lower-case) suffixes, regardless of case."""
        return [path for path in self.files if path.lower().endswith(suffixes)]

    def read_text(self, path: str, max_bytes: int, notes: list[str] | None = None) -> str:
        """Return the text of a file; append a note to `notes` if the encoding is guessed.

        A file of more than `max_bytes` bytes is refused.
        """
        text, _, note = decode_text(self.read(path, max_bytes), self.shown_path(path))
        if note and notes is not None:
            notes.append(note)
        return text

    def read_lines(self, path: str, notes: list[str] | None = None, keep_blank: bool = False) -> list[str]:
        """Return the stripped lines of a text file, as `read_text` reads it.

        Empty lines are left out unless `keep_blank` is True, which is needed if the position of a line matters.
        """
        lines = [line.strip() for line in re.split(r"\r\n|\r|\n", self.read_text(path, MAX_LIST_BYTES, notes))]
        return [line for line in lines if line or keep_blank]

    def read_json(self, path: str, max_bytes: int, advice: str, notes: list[str] | None = None) -> Any:
        """Return the content of a JSON file, as `read_text` reads it; `advice` says what to do about invalid JSON."""
        text = self.read_text(path, max_bytes, notes)
        try:
            return parse_json(text)
        except ValueError as problem:
            raise UserError(f"{self.shown_path(path)!r} cannot be read ({problem}): {advice}.") from None

    def shown_path(self, path: str) -> str:
        """Return the path of a file as messages show it, with the location as the user wrote it."""
        return str(Path(self.shown_root, path))


def folder_tree(root: Path, files: Sequence[str] | None = None) -> Tree:
    """Return the tree of a folder, with all files below the folder or only with `files`."""
    real_root = root.resolve()

    def peek(path: str, count: int) -> bytes:
        if not is_regular(root / path):  # reading a pipe would block
            return b""
        try:
            with (root / path).open("rb") as content:
                start = content.read(count)
                content.seek(max(len(start), content.seek(0, 2) - count))
                return start + content.read(count)
        except OSError:
            return b""

    return Tree(
        shown_root=str(root),
        name=real_root.name,
        location=str(real_root),
        files=tuple(sorted(find_files(root)) if files is None else files),
        read=lambda path, max_bytes: read_bytes(root / path, max_bytes),
        peek=peek,
        make_store=lambda keys: FileStore(root, keys),
        is_inside=lambda path: (root / path).resolve().is_relative_to(real_root),
    )


def open_tree(location: Path) -> Tree:
    """Return the tree of a folder or an archive."""
    if location.is_dir():
        return folder_tree(location)
    listed_entries, notes = archive_entries(location)
    entries = {entry.name.replace("\\", "/"): entry for entry in listed_entries}
    root = shared_folder(list(entries), 1)
    files = {path.removeprefix(root): entry for path, entry in sorted(entries.items())}

    def read(path: str, max_bytes: int) -> bytes:
        if files[path].size > max_bytes:
            raise UserError(f"{path!r} in {str(location)!r} has more than {max_bytes:,} bytes, the limit.")
        return ArchiveStore(location, [files[path]]).source(0)

    def peek(path: str, count: int) -> bytes:
        content = read(path, files[path].size)
        return content if len(content) <= 2 * count else content[:count] + content[-count:]

    return Tree(
        shown_root=str(location),
        name=location.stem,
        location=str(location.resolve()),
        files=tuple(files),
        read=read,
        peek=peek,
        make_store=lambda keys: ArchiveStore(location.resolve(), [files[key] for key in keys]),
        is_inside=lambda path: True,
        notes=notes,
    )


def ascii_bytes(content: bytes) -> bytes:
    """Return encoded text without the byte order mark and without the zero bytes of UTF-16 and UTF-32."""
    return content.replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe")


def contains_json_key(content: bytes, *names: str) -> bool:
    """Return whether the bytes of a JSON file contain any of the entries' names in quotes."""
    text = ascii_bytes(content)
    return any(f'"{name}"'.encode() in text for name in names)
