"""Where the images of a table or a list lie: the folder that its paths are relative to, one for each part."""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from paucal.data.images import spread
from paucal.data.part_names import tells_part
from paucal.data.sources.file_finder import FileFinder, unescaped
from paucal.data.sources.folder import IMAGE_FOLDERS
from paucal.types import UserError
from paucal.wording import counted

FOLDERS_OF_TABLES = (
    *("annotations", "annotation", "labels", "label", "lists", "list", "splits", "split"),
    *("tables", "csv", "metadata", "meta"),
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/+\S", re.IGNORECASE)
_OUT = re.compile(r"/|[A-Za-z]:|(?:.*/)?\.\.(?:/|$)|[^\0]*\0", re.DOTALL)
_LOOKED_AT = 32  # rows that tell the folder
_SHOWN = 80


class ListedPath(NamedTuple):
    """The path of an image as a table or a list has it.

    Attributes:
        path: Path with forward slashes.
        part: Part that the image belongs to, or "".
        line: Number of the line.
        file: Table or list.
    """

    path: str
    part: str
    line: int
    file: Path


class Located(NamedTuple):
    """Where images lie: a folder, their paths below it, and notes on how they were found."""

    folder: Path
    keys: list[str]
    notes: list[str]


def plain_path(text: str) -> str:
    r"""Return a path with forward slashes and without what changes nothing, so that one image has one spelling.

    Example:
        >>> plain_path(".\\a\\b//./c.png")
        'a/b/c.png'
    """
    path = unescaped(text.strip()).replace("\\", "/")
    path = re.sub(r"/(\./|/)+", "/", path) if "//" in path or "/./" in path else path
    return path.removeprefix("./")


def locate(listed: Sequence[ListedPath], root: Path | None) -> Located:
    """Return where listed images lie; those of a part may have a folder of their own.

    Args:
        listed: Paths of all images.
        root: Folder that the paths are relative to; None looks in the folder of the file, in the one above, and in
            folders of images or of the part below them.

    Raises:
        UserError: A path is a URL, leads out of the folder of the images or stands for several files, or none of the
            images that were looked for is there.
    """
    groups: dict[tuple[Path, str], list[int]] = {}
    for place, one in enumerate(listed):
        groups.setdefault((one.file, one.part), []).append(place)
    finders: dict[Path, FileFinder] = {}
    folders, keys, notes, respelt = [Path()] * len(listed), [""] * len(listed), [], 0
    for (file, part), places in groups.items():
        rows = [listed[place] for place in places]
        finder, prefix = _choose_folder(rows, list(_candidates(file, part, root, finders)), root)
        if prefix:
            notes.append(f"paths in {file.name} begin with {prefix!r}, which was taken for {finder.root}")
        begins = _begins(finder.root, root)
        for place, row in zip(places, rows, strict=True):
            path = _relative(row.path, begins).removeprefix(prefix)
            if leads_out(path):
                _refuse(row, rows)
            key = _only(row, finder.find(path)) or path
            folders[place], keys[place] = finder.root, key
            respelt += not key.startswith(path)
    if respelt:
        notes.append(f"{counted(respelt, 'path')} and names of files differ in case, Unicode form or encoding")
    base = Path(os.path.commonpath(set(folders)))
    below = {folder: "" if folder == base else f"{folder.relative_to(base).as_posix()}/" for folder in set(folders)}
    return Located(base, [below[folder] + key for folder, key in zip(folders, keys, strict=True)], notes)


def leads_out(path: str) -> bool:
    """Return whether a path is absolute or climbs, in the notation of any system."""
    return _OUT.match(path) is not None


def _candidates(file: Path, part: str, root: Path | None, finders: dict[Path, FileFinder]) -> Iterator[FileFinder]:
    """Yield the folders that the paths of a part may be relative to, the likeliest first."""
    here = file.resolve().parent
    bases = [here, here.parent] if root is None else [root.resolve()]
    entered = bases if here.name.lower() in FOLDERS_OF_TABLES or root is not None else bases[:1]
    for folder in dict.fromkeys([*bases, *(below for base in entered for below in _below(base, file, part, finders))]):
        yield finders.setdefault(folder, FileFinder(folder))


def _below(folder: Path, file: Path, part: str, finders: dict[Path, FileFinder], depth: int = 2) -> list[Path]:
    """Return the folders of images, of the part and of the table's own name below a folder, and its only one."""
    names = finders.setdefault(folder, FileFinder(folder)).folders()
    known = (*IMAGE_FOLDERS, file.stem.lower(), *(("train",) if part == "" else ()))
    found = [folder / name for name in names if name.lower() in known or tells_part(name, part)]
    if depth > 1:
        found += [inner for one in found for inner in _below(one, file, part, finders, depth - 1)]
        found += [folder / names[0]] if len(names) == 1 else []
    return found


def _choose_folder(
    rows: Sequence[ListedPath], candidates: Sequence[FileFinder], root: Path | None
) -> tuple[FileFinder, str]:
    """Return the folder that has most of the images, and the beginning of the paths that stands for it elsewhere.

    Raises:
        UserError: None has any.
    """
    looked = [rows[place] for place in spread(len(rows), _LOOKED_AT)]
    best, most = None, 0
    for finder in candidates:
        paths = [_relative(row.path, _begins(finder.root, root)) for row in looked]
        there = sum(not leads_out(path) and bool(finder.find(path)) for path in paths)
        if there > most:
            best, most = finder, there
        if there == len(looked):
            break
    if best is not None:
        return best, ""
    url = next((row for row in rows if _URL.match(row.path)), None)
    if url is not None:
        shown = url.path[:_SHOWN].replace(":/", "://", 1)
        raise UserError(f"line {url.line} of {url.file} has the URL {shown!r}: fetch the images, and give their paths.")
    for finder in candidates if root is not None else ():
        if prefix := _foreign_prefix([row.path for row in rows], finder):
            return finder, prefix
    if leads_out(rows[0].path):
        _refuse(rows[0], rows)
    searched = " nor in ".join(str(finder.root) for finder in candidates)
    raise UserError(
        f"{rows[0].path[:_SHOWN]!r}, the first image of {rows[0].file}, is not in {searched}; "
        "name the folder that the paths begin in with --data-root"
    )


def _foreign_prefix(paths: Sequence[str], finder: FileFinder) -> str:
    """Return what all absolute paths begin with on another machine, where what follows is there; "" for nothing."""
    pieces = paths[0].split("/")
    for count in range(1, len(pieces)):
        if leads_out(paths[0]) and finder.find("/".join(pieces[count:])):
            prefix = "/".join(pieces[:count]) + "/"
            return prefix if all(path.startswith(prefix) for path in paths) else ""
    return ""


def _begins(folder: Path, root: Path | None) -> list[str]:
    """Return how absolute paths below a folder begin: with the folder, or with the root as it was given."""
    known = [folder, *(() if root is None else (root, root.absolute()))]
    return list(dict.fromkeys(f"{one.as_posix().rstrip('/')}/" for one in known))


def _relative(path: str, begins: Sequence[str]) -> str:
    """Return a path without what an absolute one begins with; as it is where it begins otherwise."""
    return next((path.removeprefix(begin) for begin in begins if path.startswith(begin)), path)


def _only(row: ListedPath, found: Sequence[str]) -> str:
    if len(found) > 1:
        names = " and ".join(found[:2])
        raise UserError(f"{row.path[:_SHOWN]!r} in line {row.line} of {row.file} fits {names}: name one of the files.")
    return found[0] if found else ""


def _refuse(row: ListedPath, rows: Sequence[ListedPath]) -> NoReturn:
    """Say that a path leads out of the folder of the images, and into which where all of them lead into one."""
    folders = [one.path.split("/")[:-1] for one in rows]
    abroad = all(leads_out(one.path) for one in rows)
    shared = "/".join(os.path.commonprefix(folders)) if abroad else ""  # noqa: RUF071 (of lists of names)
    advice = "give paths relative to one folder, and name it with --data-root"
    if shared and ".." not in shared.split("/"):
        here = os.path.isdir(shared)
        advice = f"all paths lie in {shared}: give --data-root {shlex.quote(shared)}" if here else (
            f"all paths lie in {shared}, which is not on this machine: name what it is here with --data-root"
        )  # fmt: skip
    raise UserError(
        f"line {row.line} of {row.file} leads out of the folder of the images ({row.path[:_SHOWN]!r}); {advice}."
    )
