"""Files below a folder by their names as a table or a list has them, which may come from another system."""

import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from paucal.data.class_names import valid_text
from paucal.data.sources.suffixes import IMAGE_SUFFIXES

_ESCAPED_BYTE = re.compile(r"\\udc([89a-f][0-9a-f])")


class _Names:
    """What lies in one folder.

    Args:
        files: Names of the files.
        folders: Names of the folders.
    """

    def __init__(self, files: Iterable[str], folders: Iterable[str]) -> None:
        self.files, self.folders = frozenset(files), frozenset(folders)

    @cached_property
    def alike(self) -> dict[str, list[str]]:
        """The files by what is left where spellings differ."""
        return _grouped((likeness(name), name) for name in sorted(self.files))

    @cached_property
    def stems(self) -> dict[str, list[str]]:
        """The images by that of their names without the ending."""
        split = ((*os.path.splitext(name), name) for name in sorted(self.files))
        return _grouped((likeness(stem), name) for stem, ending, name in split if ending.lower() in IMAGE_SUFFIXES)


class FileFinder:
    """Finds the files below a folder by relative paths.

    A name is taken as it is written where there is such a file. Else it stands for the files whose names differ from it
    in Unicode form, in case or in bytes that are not UTF-8, or else for the images of that name with any ending.

    Args:
        root: Folder that the paths are relative to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._listed: dict[str, _Names | None] = {}
        self._folders: dict[str, str | None] = {"": ""}

    def find(self, path: str) -> list[str]:
        """Return the relative paths of the files that a path may stand for; none where there is no such file."""
        above, _, name = path.rpartition("/")
        folder = self._folder(above)
        if folder is None:
            return []
        prefix, names = f"{folder}/" if folder else "", self._names(folder)
        if names is None:  # may be entered, and not listed
            return [f"{prefix}{name}"] if os.path.isfile(self.root / folder / name) else []
        if name in names.files:
            return [f"{prefix}{name}"]
        return [prefix + one for one in names.alike.get(likeness(name)) or names.stems.get(likeness(name), [])]

    def folders(self, path: str = "") -> Sequence[str]:
        """Return the names of the folders in a folder, sorted, hidden ones left out."""
        names = self._names(path)
        return [] if names is None else sorted(name for name in names.folders if not name.startswith("."))

    def _folder(self, path: str) -> str | None:
        """Return the folder that a path stands for; None where there is none, or several are alike."""
        if path not in self._folders:
            above, _, name = path.rpartition("/")
            folder = self._folder(above)
            names = None if folder is None else self._names(folder)
            found: list[str] = []
            if names is not None:
                alike = likeness(name)
                found = [name] if name in names.folders else [one for one in names.folders if likeness(one) == alike]
            elif folder is not None and os.path.isdir(self.root / folder / name):  # may be entered, and not listed
                found = [name]
            self._folders[path] = f"{folder}/{found[0]}".lstrip("/") if len(found) == 1 else None
        return self._folders[path]

    def _names(self, folder: str) -> _Names | None:
        if folder not in self._listed:
            self._listed[folder] = _list(self.root / folder)
        return self._listed[folder]


def likeness(name: str) -> str:
    """Return what names have in common that differ in Unicode form, in case or in bytes that are not UTF-8 alone."""
    return unicodedata.normalize("NFC", valid_text(unescaped(name))).casefold()


def unescaped(name: str) -> str:
    r"""Return a name with the bytes that are not UTF-8, which files that paucal writes have as escapes.

    Example:
        >>> unescaped(r"caf\udce9") == "caf\udce9"
        True
    """
    return _ESCAPED_BYTE.sub(lambda found: chr(0xDC00 + int(found[1], 16)), name) if "\\" in name else name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads nowhere
        return False


def _list(folder: Path) -> _Names | None:
    files, folders = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                (folders if _is_folder(entry) else files).append(entry.name)
    except PermissionError:
        return None
    except OSError:
        pass
    return _Names(files, folders)


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, name in pairs:
        found.setdefault(key, []).append(name)
    return found
