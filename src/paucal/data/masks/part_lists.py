"""Lists of the images of each split (train, val, test), such as VOC's `ImageSets/Segmentation/train.txt`."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from paucal.data.masks.naming import without_suffix
from paucal.data.sources.folder import is_ignored
from paucal.data.sources.locating import fold_name
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.splits.part_names import PART_BY_WORD, TRAINVAL
from paucal.reading import is_regular, read_decoded
from paucal.types import UserError
from paucal.wording import counted, join_first_few

FOLDERS = (("imagesets", "segmentation"), ("imagesets",), ("imagesets", "main"))
MAX_BYTES = 64 << 20  # maximum size of a list
_LIST_NAME = re.compile(rf"(?P<both>train[-_ ]?val(?:id(?:ation)?)?)|(?P<part>{'|'.join(PART_BY_WORD)})", re.IGNORECASE)
# VOC's lists for a class have 1, 0 or -1 after each image; Oxford Pets' lists have three numbers after each image.
_BEFORE_NUMBERS = (re.compile(r"(.*\S)\s+(?:-1|0|1)"), re.compile(r"(.*\S)(?:\s+\d+){3}"))
_SUFFIXES = "|".join(re.escape(suffix) for suffix in IMAGE_SUFFIXES)
# Path of an image, then the path of a mask or a class.
_BEFORE_PATH = re.compile(rf"(.+?(?:{_SUFFIXES}))[\s,;]+\S.*", re.IGNORECASE)


class ListedParts(NamedTuple):
    """Splits of images, as list files declare them."""

    parts: Mapping[str, str]  # split ("train", "val" or "test") of each listed image, by the key of the image
    unmatched_lines: list[str]  # lines that match no image, each with the name of the list
    notes: list[str]


def read_part_lists(bases: Iterable[Path], keys: Sequence[str]) -> ListedParts:
    """Read the lists of images in the folders `bases`, or in `ImageSets/Segmentation` or `ImageSets` inside them.

    Each line has the name, the file name or the path of an image, and perhaps a second path or numbers. A list is named
    after a split, with the same spellings as for folders, or "trainval" for training and validation images together.
    """
    index = _ImageIndex(keys)
    parts: dict[str, str] = {}
    unmatched_lines: list[str] = []
    notes: list[str] = []
    for base in bases:
        folder, files = _find_lists(base)
        other_lines: list[str] = []
        lists = {part: _read_list(file, index, other_lines) for part, file in files.items()}
        file_names = ", ".join(file.name for file in files.values())
        if files and not any(lists.values()):
            if folder != base:
                raise UserError(
                    f"the lists in {folder} ({file_names}) contain none of the images: correct or remove the lists."
                )
            notes.append(f"lists that contain none of the images are not used: {file_names}")
            continue  # a text file with the name of a split may have other content
        for part in ("train", "val", "test"):
            for key in lists.get(part, ()):
                if parts.setdefault(key, part) != part:
                    raise UserError(f"{key!r} is in the lists for {parts[key]} and {part}: keep the image in one list.")
        # Images that are only in a list "trainval" are val images if there is a list "train" but no list "val".
        trainval_part = "val" if "train" in lists and "val" not in lists else "train"
        for key in lists.get(TRAINVAL, ()):
            if parts.setdefault(key, trainval_part) == "test":
                raise UserError(
                    f"{key!r} is in the lists for test and {files[TRAINVAL].stem}: keep the image in one list."
                )
        unmatched_lines += other_lines
        notes += [f"splits are from the lists in {folder.name}: {file_names}"] if files else []
    if unmatched_lines:
        count = counted(len(unmatched_lines), "line")
        notes.append(f"{count} of the lists without a matching image: {join_first_few(unmatched_lines)}")
    return ListedParts(parts, unmatched_lines, notes)


def _find_lists(base: Path) -> tuple[Path, dict[str, Path]]:
    """Return the folder whose lists are used, and the list file of each split."""
    for names in FOLDERS:
        folder = base
        for name in names:
            folder = next((child for child in _list_children(folder) if fold_name(child.name) == name), folder / name)
        if files := _find_lists_in_folder(folder):
            return folder, files
    return base, _find_lists_in_folder(base)


def _find_lists_in_folder(folder: Path) -> dict[str, Path]:
    lists: dict[str, Path] = {}
    for file in _list_children(folder):
        match = _LIST_NAME.fullmatch(file.stem.strip())
        if match is None or file.suffix.lower() != ".txt" or not is_regular(file):
            continue
        part = TRAINVAL if match["both"] else PART_BY_WORD[match["part"].lower()]
        if part in lists:
            raise UserError(f"{lists[part]} and {file.name} are both lists for {part}: keep one of these files.")
        lists[part] = file
    return lists


def _list_children(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if not is_ignored(child.name)) if folder.is_dir() else []


def _read_list(file: Path, index: "_ImageIndex", unmatched_lines: list[str]) -> list[str]:
    """Return the keys of the images in a list; append the lines that match no image to `unmatched_lines`."""
    keys = []
    for line in read_decoded(file, MAX_BYTES).text.splitlines():
        if line.strip():
            matches = (pattern.fullmatch(line.strip()) for pattern in (_BEFORE_PATH, *_BEFORE_NUMBERS))
            entries = (line.strip(), *(match[1] for match in matches if match))
            key = next((key for entry in entries if (key := index.find(entry))), None)
            if key is not None:
                keys.append(key)
            else:
                unmatched_lines.append(f"{line.strip()[:80]!r} in {file.name}")
    return keys


class _ImageIndex:
    """Index of images by the ends of their paths (`b.png`, `a/b.png`), with and without suffix."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys_by_ending: dict[str, set[str]] = defaultdict(set)
        for key in keys:
            for end in _path_endings(fold_name(key)):
                self._keys_by_ending[end].add(key)
                self._keys_by_ending[without_suffix(end)].add(key)

    def find(self, entry: str) -> str | None:
        """Return the key of the image that shares the longest end of its path with a list entry; None if not unique."""
        path = fold_name(entry).replace("\\", "/")
        for end in _path_endings(path):
            for name in (end, without_suffix(end)):
                if len(keys := self._keys_by_ending.get(name, ())) == 1:
                    return next(iter(keys))
        return None


def _path_endings(path: str) -> Iterator[str]:
    """Yield the ends of a path ("a/b.png", "b.png"), the longest first."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    yield from ("/".join(parts[index:]) for index in range(len(parts)))
