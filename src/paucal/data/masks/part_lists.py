"""Lists of the images of each part beside images and masks, such as VOC's `ImageSets/Segmentation/train.txt`."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paucal.data.masks.matching import listed
from paucal.data.masks.naming import fold, without_suffix
from paucal.data.sources.folder import IMAGE_SUFFIXES, ignored
from paucal.data.splits.part_names import PARTS, TRAINVAL
from paucal.reading import is_regular, read_decoded
from paucal.types import UserError
from paucal.wording import counted

FOLDERS = (("imagesets", "segmentation"), ("imagesets",), ("imagesets", "main"))
MOST_BYTES = 64 << 20
_NAME = re.compile(rf"(?P<both>train[-_ ]?val(?:id(?:ation)?)?)|(?P<part>{'|'.join(PARTS)})", re.IGNORECASE)
# VOC's lists of a class have 1, 0 or -1 behind each image, those of the Oxford pets three numbers.
_NUMBERS = (re.compile(r"(.*\S)\s+(?:-1|0|1)"), re.compile(r"(.*\S)(?:\s+\d+){3}"))
_ENDINGS = "|".join(re.escape(suffix) for suffix in IMAGE_SUFFIXES)
_TWO_PATHS = re.compile(rf"(.+?(?:{_ENDINGS}))[\s,;]+\S.*", re.IGNORECASE)  # an image, and its mask or class


@dataclass(frozen=True)
class ListedParts:
    """What lists say of images.

    Attributes:
        parts: Part of each image that a list names, by key; empty where there are no lists.
        missing: Lines that name no image, each with its list, for people.
        notes: Sentences on the lists.
    """

    parts: Mapping[str, str]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_part_lists(bases: Iterable[Path], keys: Sequence[str]) -> ListedParts:
    """Read the lists of parts in `ImageSets/Segmentation`, in `ImageSets`, or beside the folders of images.

    A line names an image by its name, by its file or by a path; a second path or numbers may follow. A list is called
    as a part, in any spelling that folders may have, or "trainval" for train and val.

    Args:
        bases: Folders that may have lists in them.
        keys: Keys of the images.

    Raises:
        UserError: No line of the lists in `ImageSets` names an image, two lists are of one part, or an image is in two.
    """
    names = _Names(keys)
    parts: dict[str, str] = {}
    missing: list[str] = []
    notes: list[str] = []
    for base in bases:
        folder, files = _find(base)
        lists = {part: _resolved(file, names) for part, file in files.items()}
        shown = ", ".join(file.name for file in files.values())
        if files and not any(found for found, _ in lists.values()):
            if folder != base:
                raise UserError(f"the lists in {folder} ({shown}) name none of the images: correct or remove them.")
            notes.append(f"lists that name no image are not used: {shown}")
            continue  # a text file of such a name may be anything
        parts = _joined({part: found for part, (found, _) in lists.items()}, files, parts)
        missing += [f"{line!r} in {files[part].name}" for part, (_, lines) in lists.items() for line in lines]
        notes += [f"parts are those of the lists in {folder.name}: {shown}"] if files else []
    if missing:
        notes.append(f"{counted(len(missing), 'line')} of the lists without an image: {listed(missing)}")
    return ListedParts(parts, tuple(missing), tuple(notes))


def _find(base: Path) -> tuple[Path, dict[str, Path]]:
    """Return the folder whose lists are to be obeyed, and the list of each part.

    Raises:
        UserError: Two lists are of one part.
    """
    for names in FOLDERS:
        folder = base
        for name in names:
            folder = next((child for child in _children(folder) if fold(child.name) == name), folder / name)
        if files := _lists(folder):
            return folder, files
    return base, _lists(base)


def _lists(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in _children(folder):
        match = _NAME.fullmatch(file.stem.strip())
        if match is None or file.suffix.lower() != ".txt" or not is_regular(file):
            continue
        part = TRAINVAL if match["both"] else PARTS[match["part"].lower()]
        if part in found:
            raise UserError(f"{found[part]} and {file.name} are both lists of {part}: keep one of them.")
        found[part] = file
    return found


def _children(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if not ignored(child.name)) if folder.is_dir() else []


def _resolved(file: Path, names: "_Names") -> tuple[list[str], list[str]]:
    """Return the keys that a list names, and its lines that name none."""
    found, missing = [], []
    for line in read_decoded(file, MOST_BYTES).text.splitlines():
        if line.strip():
            key = next((key for entry in _entries(line.strip()) if (key := names.find(entry))), None)
            found.append(key) if key is not None else missing.append(line.strip()[:80])
    return found, missing


def _entries(line: str) -> Iterator[str]:
    """Yield what a line may mean as the name of an image: all of it, or what stands before a number or second path."""
    yield line
    for pattern in (_TWO_PATHS, *_NUMBERS):
        if match := pattern.fullmatch(line):
            yield match[1]


class _Names:
    """Images by every end of their paths, with their suffixes and without."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._ends: dict[str, set[str]] = defaultdict(set)
        for key in keys:
            for end in _ends(fold(key)):
                self._ends[end].add(key)
                self._ends[without_suffix(end)].add(key)

    def find(self, entry: str) -> str | None:
        """Return the key of the image that an entry of a list names, by as much of its path as fits."""
        path = fold(entry).replace("\\", "/")
        for end in _ends(path):
            for name in (end, without_suffix(end)):
                if len(found := self._ends.get(name, ())) == 1:
                    return next(iter(found))
        return None


def _ends(path: str) -> Iterator[str]:
    """Yield a path and its ends, the longest first."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    yield from ("/".join(parts[place:]) for place in range(len(parts)))


def _joined(found: Mapping[str, list[str]], files: Mapping[str, Path], before: Mapping[str, str]) -> dict[str, str]:
    """Return the part of each image; "trainval" gives what train and val lack.

    Raises:
        UserError: An image is in two lists.
    """
    parts: dict[str, str] = dict(before)
    for part in ("train", "val", "test"):
        for key in found.get(part, ()):
            if parts.setdefault(key, part) != part:
                raise UserError(f"{key!r} is in the lists of {parts[key]} and of {part}: keep it in one of them.")
    rest = "val" if "train" in found and "val" not in found else "train"
    for key in found.get(TRAINVAL, ()):
        if parts.setdefault(key, rest) == "test":
            raise UserError(f"{key!r} is in the lists of test and of {files[TRAINVAL].stem}: keep it in one of them.")
    return parts
