"""Finds the image files named in tables and lists that may come from another machine or operating system."""

import os
import re
import shlex
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple, NoReturn
from urllib.parse import unquote

from paucal.data.classes import valid_text
from paucal.data.images import evenly_spaced
from paucal.data.sources.folder import IMAGE_FOLDERS
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.splits.part_names import split_of_folder
from paucal.types import UserError
from paucal.wording import counted

# Usual names of folders with tables or lists, in lower case.
FOLDERS_OF_TABLES = (
    *("annotations", "annotation", "labels", "label", "lists", "list", "splits", "split"),
    *("tables", "csv", "metadata", "meta"),
)
_ESCAPED_BYTE = re.compile(r"\\udc([89a-f][0-9a-f])")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/+\S", re.IGNORECASE)
# An absolute path (of any operating system), a path with "..", or a path with a zero byte.
_OUTSIDE_PATH = re.compile(r"/|[A-Za-z]:|(?:.*/)?\.\.(?:/|$)|[^\0]*\0", re.DOTALL)
# Label Studio adds a prefix to the names of uploaded files, and writes the path of a local file as a URL.
UPLOAD_PREFIX = re.compile(r"[0-9a-f]{8}-(?=.)")
_LABEL_STUDIO_URL = re.compile(r"/data/(?:upload/\d+/|local-files/\?d=)")
_SAMPLED_ROWS = 32  # rows whose images are looked up to find the folder that the paths are relative to
MAX_SHOWN = 80  # maximum number of characters of a path, cell or name in a message


class ListedImage(NamedTuple):
    """A row of a table or list, which describes one image."""

    path: str  # path in the row, with forward slashes
    part: str  # split of the image; "" if the table assigns no split
    line: int  # number of the row in its file, from 1
    file: Path
    label: str = ""
    extra_cells: tuple[str, ...] = ()  # cells of the columns in `TableColumns.extra_columns`, such as a patient column
    indicators: tuple[str, ...] = ()  # cells of the indicator columns: 1 or 0 for each class
    names: tuple[str, ...] = ()  # names of the image's classes, split from `label`
    key: str = ""  # path from the common folder of all images; "" if the file is not located yet


class LocatedImages(NamedTuple):
    """The common folder of all images, the paths of the images relative to this folder, and notes for the user."""

    folder: Path
    keys: list[str]
    notes: list[str]


def locate_images(listed_images: Sequence[ListedImage], root: Path | None) -> LocatedImages:
    """Find the image files of rows; the paths of each split (train, val or test) may be relative to another folder.

    Paths are relative to `root` or a subfolder of `root`. If `root` is None, paths are relative to the folder of the
    table, to the parent of that folder, or to a subfolder of these folders that is named after images or the split.
    """
    groups: dict[tuple[Path, str], list[int]] = {}
    for index, row in enumerate(listed_images):
        groups.setdefault((row.file, row.part), []).append(index)
    finders: dict[Path, FileFinder] = {}
    folders, keys, notes, n_respelt = [Path()] * len(listed_images), [""] * len(listed_images), [], 0
    for (file, part), indices in groups.items():
        rows = [listed_images[index] for index in indices]
        finder, prefix = _choose_folder(rows, list(_candidates(file, part, root, finders)), root)
        if prefix:
            notes.append(f"paths in {file.name} begin with {prefix!r}, which was replaced by {finder.root}")
        absolute_prefixes = _absolute_prefixes(finder.root, root)
        for index, row in zip(indices, rows, strict=True):
            path = _strip_prefix(row.path, absolute_prefixes).removeprefix(prefix)
            if leads_out(path):
                _refuse_outside(row, rows)
            files = finder.find(path)
            if len(files) > 1:
                raise UserError(
                    f"{row.path[:MAX_SHOWN]!r} in line {row.line} of {row.file} matches {files[0]} and {files[1]}: "
                    "give the exact name of one of these files."
                )
            folders[index], keys[index] = finder.root, files[0] if files else path
            n_respelt += not keys[index].startswith(path)
    if n_respelt:
        path_text = counted(n_respelt, "path differs from the file name", "paths differ from the file names")
        notes.append(f"{path_text} in case, Unicode form or encoding")
    base = Path(os.path.commonpath(set(folders)))
    prefixes = {folder: "" if folder == base else f"{folder.relative_to(base).as_posix()}/" for folder in set(folders)}
    return LocatedImages(base, [prefixes[folder] + key for folder, key in zip(folders, keys, strict=True)], notes)


def plain_path(text: str) -> str:
    r"""Return a path with forward slashes and without "./" or "//", so that each image has one spelling.

    Example:
        >>> plain_path(".\\a\\b//./c.png")
        'a/b/c.png'
    """
    path = unescape(text.strip()).replace("\\", "/")
    path = re.sub(r"/(\./|/)+", "/", path) if "//" in path or "/./" in path else path
    return path.removeprefix("./")


def leads_out(path: str) -> bool:
    """Return whether a path is absolute or contains "..", in the notation of any operating system."""
    return _OUTSIDE_PATH.match(path) is not None


def _candidates(file: Path, part: str, root: Path | None, finders: dict[Path, "FileFinder"]) -> Iterator["FileFinder"]:
    """Yield a finder for each folder that the paths of a split may be relative to, the most likely folder first."""
    table_folder = file.resolve().parent
    bases = [table_folder, table_folder.parent] if root is None else [root.resolve()]
    # The parent of the table's folder may have unrelated subfolders, unless the table's folder is named after tables.
    searched = bases if table_folder.name.lower() in FOLDERS_OF_TABLES or root is not None else bases[:1]
    subfolders = (subfolder for base in searched for subfolder in _likely_subfolders(base, file, part, finders))
    for folder in dict.fromkeys([*bases, *subfolders]):
        yield finders.setdefault(folder, FileFinder(folder))


def _likely_subfolders(
    folder: Path, file: Path, part: str, finders: dict[Path, "FileFinder"], depth: int = 2
) -> list[Path]:
    """Return subfolders, to `depth` levels, named after images, the split or the table, or without siblings."""
    names = finders.setdefault(folder, FileFinder(folder)).subfolders()
    usual_names = (*IMAGE_FOLDERS, file.stem.lower(), *(("train",) if part == "" else ()))
    folders = [
        folder / name for name in names if name.lower() in usual_names or (part and split_of_folder(name) == part)
    ]
    if depth == 1:
        return folders
    inner_folders = [_likely_subfolders(subfolder, file, part, finders, depth - 1) for subfolder in folders]
    return [*folders, *chain(*inner_folders), *([folder / names[0]] if len(names) == 1 else [])]


def _choose_folder(
    rows: Sequence[ListedImage], candidates: Sequence["FileFinder"], root: Path | None
) -> tuple["FileFinder", str]:
    """Return the candidate with most images of a sample, and the prefix to remove from paths of another machine."""
    sample = [rows[index] for index in evenly_spaced(len(rows), _SAMPLED_ROWS)]
    best, best_count = None, 0
    for finder in candidates:
        prefixes = _absolute_prefixes(finder.root, root)
        paths = [_strip_prefix(row.path, prefixes) for row in sample]
        count = sum(not leads_out(path) and bool(finder.find(path)) for path in paths)
        if count > best_count:
            best, best_count = finder, count
        if count == len(sample):
            break
    if best is not None:
        return best, ""
    if url := next((row for row in rows if _URL.match(row.path)), None):
        url_text = url.path[:MAX_SHOWN].replace(":/", "://", 1)
        raise UserError(
            f"line {url.line} of {url.file} has the URL {url_text!r}: download the images, and replace the URLs by "
            "paths."
        )
    for finder in candidates if root is not None else ():
        if prefix := _foreign_prefix([row.path for row in rows], finder):
            return finder, prefix
    if leads_out(rows[0].path):
        _refuse_outside(rows[0], rows)
    searched = " nor in ".join(str(finder.root) for finder in candidates)
    raise UserError(
        f"{rows[0].path[:MAX_SHOWN]!r}, the first image of {rows[0].file}, is not in {searched}; "
        "use --data-root to give the folder that the paths are relative to."
    )


def _foreign_prefix(paths: Sequence[str], finder: "FileFinder") -> str:
    """Return the shortest prefix without which the first path is found, if all paths begin with it; else ""."""
    pieces = paths[0].split("/")
    for count in range(1, len(pieces)):
        if leads_out(paths[0]) and finder.find("/".join(pieces[count:])):
            prefix = "/".join(pieces[:count]) + "/"
            return prefix if all(path.startswith(prefix) for path in paths) else ""
    return ""


def _absolute_prefixes(folder: Path, root: Path | None) -> list[str]:
    """Return prefixes that make paths absolute: the folder, the root as the user wrote it, and the absolute root."""
    spellings = [folder, *(() if root is None else (root, root.absolute()))]
    return list(dict.fromkeys(f"{path.as_posix().rstrip('/')}/" for path in spellings))


def _strip_prefix(path: str, prefixes: Sequence[str]) -> str:
    if prefix := next((prefix for prefix in prefixes if path.startswith(prefix)), ""):
        return path.removeprefix(prefix)
    url_start = _LABEL_STUDIO_URL.match(path)
    return unquote(path[url_start.end() :]) if url_start else path


def _refuse_outside(row: ListedImage, rows: Sequence[ListedImage]) -> NoReturn:
    """Raise a UserError for a row whose path leads out of the images' folder; name the folder that all `rows` share."""
    folders = [other.path.split("/")[:-1] for other in rows]
    all_outside = all(leads_out(other.path) for other in rows)
    shared = "/".join(os.path.commonprefix(folders)) if all_outside else ""  # noqa: RUF071 (of lists of names)
    advice = "write paths relative to one folder, and give this folder with --data-root"
    if shared and ".." not in shared.split("/"):
        advice = f"all paths are in {shared}, which is not on this machine: use --data-root to give their folder here"
        if os.path.isdir(shared):
            advice = f"all paths are in {shared}: use --data-root {shlex.quote(shared)}"
    raise UserError(
        f"line {row.line} of {row.file} has a path outside of the folder of the images ({row.path[:MAX_SHOWN]!r}); "
        f"{advice}."
    )


class FileFinder:
    """Finds files in a folder by relative paths, which may have been written on another operating system.

    The search stops at the first of these steps that finds a file: the exact name; names that differ from the path only
    in case, in Unicode form or in bytes that are not UTF-8; images whose names differ only in the suffix; all steps
    again, without the prefix that Label Studio adds to the names of uploaded files.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._listings: dict[str, _FolderListing | None] = {}
        self._folders: dict[str, str | None] = {"": ""}

    def find(self, path: str) -> list[str]:
        """Return the paths, relative to the root, of all files that `path` may refer to."""
        folder_path, _, name = path.rpartition("/")
        folder = self._find_folder(folder_path)
        if folder is None:
            return []
        prefix, listing = f"{folder}/" if folder else "", self._listing(folder)
        if listing is None:  # there is no permission to list the folder, but the files may still be readable
            return [f"{prefix}{name}"] if os.path.isfile(self.root / folder / name) else []
        if name in listing.files:
            return [f"{prefix}{name}"]
        key = comparison_key(name)
        matches = listing.files_by_key.get(key) or listing.images_by_stem.get(key, [])
        if not matches and UPLOAD_PREFIX.match(name):
            return self.find(f"{folder_path}/{UPLOAD_PREFIX.sub('', name, count=1)}".lstrip("/"))
        return [prefix + match for match in matches]

    def subfolders(self) -> Sequence[str]:
        """Return the sorted names of the folders in the root, except hidden folders."""
        listing = self._listing("")
        return sorted(name for name in listing.folders if not name.startswith(".")) if listing else []

    def _find_folder(self, path: str) -> str | None:
        """Return the path of the only folder that `path` may refer to; None if no folder or several folders match."""
        if path not in self._folders:
            parent_path, _, name = path.rpartition("/")
            folder = self._find_folder(parent_path)
            listing = None if folder is None else self._listing(folder)
            matches: list[str] = []
            if listing is not None:
                similar = (other for other in listing.folders if comparison_key(other) == comparison_key(name))
                matches = [name] if name in listing.folders else list(similar)
            elif folder is not None and os.path.isdir(self.root / folder / name):  # the parent cannot be listed
                matches = [name]
            self._folders[path] = f"{folder}/{matches[0]}".lstrip("/") if len(matches) == 1 else None
        return self._folders[path]

    def _listing(self, folder: str) -> "_FolderListing | None":
        """Return the names in a folder; None if there is no permission to list the folder."""
        if folder not in self._listings:
            problems: list[OSError] = []
            _, folders, files = next(os.walk(self.root / folder, onerror=problems.append), ("", [], []))
            is_unlisted = any(isinstance(problem, PermissionError) for problem in problems)
            self._listings[folder] = None if is_unlisted else _FolderListing(files, folders)
        return self._listings[folder]


class _FolderListing:
    """Names of the files and folders in one folder."""

    def __init__(self, files: Iterable[str], folders: Iterable[str]) -> None:
        self.files, self.folders = frozenset(files), frozenset(folders)

    @cached_property
    def files_by_key(self) -> dict[str, list[str]]:
        return self._group_by_key({name: name for name in self.files})

    @cached_property
    def images_by_stem(self) -> dict[str, list[str]]:
        parts = {name: os.path.splitext(name) for name in self.files}
        return self._group_by_key(
            {name: stem for name, (stem, suffix) in parts.items() if suffix.lower() in IMAGE_SUFFIXES}
        )

    def _group_by_key(self, compared: dict[str, str]) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for name in sorted(compared):
            groups.setdefault(comparison_key(compared[name]), []).append(name)
        return groups


def fold_name(name: str) -> str:
    """Return the folded form of a name, which is equal for names that differ only in case or Unicode form."""
    # Lower case may compose other characters than upper case, so folding can leave the normal form.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def comparison_key(name: str) -> str:
    """Return a key that ignores case, Unicode form, and bytes (or their escapes in tables) that are not UTF-8."""
    return fold_name(valid_text(unescape(name)))


def unescape(name: str) -> str:
    r"""Return a name with the bytes that are not UTF-8, which paucal writes as escapes such as `\udce9`.

    Example:
        >>> unescape(r"caf\udce9") == "caf\udce9"
        True
    """
    return _ESCAPED_BYTE.sub(lambda match: chr(0xDC00 + int(match[1], 16)), name) if "\\" in name else name
