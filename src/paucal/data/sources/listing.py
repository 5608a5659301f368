"""List files: text files with a path and a class number on each line, as DomainNet's `real_train.txt`."""

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PureWindowsPath
from typing import NamedTuple

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.sources.folder import IMAGE_SUFFIXES, PARTS
from paucal.data.sources.stores import FileStore
from paucal.data.splits.split import held_out_part
from paucal.reading import is_regular, read_text
from paucal.types import UserError

LIST_SUFFIX = ".txt"
MOST_BYTES = 256 << 20  # twice the size of a list of ImageNet's 1.3 million images
_ENDINGS = "|".join(re.escape(suffix) for suffix in IMAGE_SUFFIXES)
_LINE = re.compile(rf"(?P<path>\S.*?(?:{_ENDINGS}))(?:\s+(?P<label>\d{{1,9}}))?\s*", re.IGNORECASE)
_NAME = re.compile(rf"(?:(?P<set>.*)[-_.])?(?P<part>{'|'.join(PARTS)})", re.IGNORECASE)
_SHOWN = 80  # characters of a line in a message


class Row(NamedTuple):
    """One image of a list: its path, forward slashes, and its class number (-1 without one)."""

    path: str
    label: int


def open_listing(file: Path, labelled: bool = True, root: Path | None = None) -> ImageSet:
    """Open a list file, with the lists that belong to it.

    A line holds a path, which may contain spaces, and the number of its class. A train list (`real_train.txt`,
    `train.txt`) is opened together with the val and test lists of the same name beside it, which are then the parts;
    any other list stands for all of its own images and declares no part. Classes are numbered once over all lists, in
    the order of the numbers in the lists, so a class that one part lacks shifts no label. A class is called like the
    folder of its images where that is one folder per class and one class per folder, else by its number.

    Args:
        file: the list.
        labelled: False takes the paths alone; lines need no number then.
        root: folder that the paths are relative to; None for the folder of the list, or the one above, whichever has
            the first image.

    Raises:
        UserError: a line is not as described or leads out of the root, an image is listed with two parts or labels, or
            the first image is not there.
    """
    lists = _together(file)
    rows, declared, notes = _merge(lists, labelled)
    folder = _root(file, rows[0].path, root)
    if folder is None:
        searched = " nor in ".join(map(str, _candidates(file, root)))
        raise UserError(
            f"{rows[0].path!r}, the first image of {file}, is not in {searched}; "
            "name the folder that the paths begin in with --data-root"
        )
    keys = [row.path for row in rows]
    labels = np.asarray([row.label for row in rows], dtype=np.int64)
    values, numbers = np.unique(labels, return_inverse=True)
    classes = _class_names(rows, values.tolist()) if labelled else ()
    return ImageSet(
        name=_set_name(file),
        location=str(folder),
        classes=classes,
        keys=keys,
        labels=numbers.astype(np.int64) if labelled else np.full(len(keys), -1, dtype=np.int64),
        declared=declared,
        store=FileStore(folder, keys),
        notes=(f"read from {' and '.join(path.name for path in lists.values())}", *notes),
    )


def find_train_list(folder: Path, root: Path | None = None) -> Path | None:
    """Return the list file that describes the images of a folder, or None.

    It must be a train list by its name, its first line must be as `open_listing` expects, and the image there must be
    where `open_listing` looks for it.

    Raises:
        UserError: there are several; one has to be named.
    """
    found = [file for file in sorted(folder.glob(f"*{LIST_SUFFIX}")) if _part(file) == "train" and _is_list(file, root)]
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise UserError(f"{folder} has the lists of several sets ({names}); name one of them, such as {found[0]}")
    return found[0] if found else None


def hold_out_listed(images: ImageSet, folder: Path, root: Path | None = None) -> ImageSet:
    """Return an unlabelled set of a folder's images with those declared "test" that a list in the folder tests with.

    Which lists do so is as in `open_listing` and `make_split`: a test list, else the val list beside a train list. All
    sets of lists count, whichever of them a later run may be trained on.

    Args:
        images: every image below the folder.
        folder: which may have list files.
        root: as in `open_listing`.

    Raises:
        UserError: a line of such a list is no path.
    """
    lists = [file for file in sorted(folder.glob(f"*{LIST_SUFFIX}")) if _part(file) and _is_list(file, root, False)]
    parts: dict[str | None, set[str]] = {}
    for file in lists:
        parts.setdefault(_set_of(file), {""}).add(_part(file))  # "" for what is below the folder and not listed
    testing = [file for file in lists if _part(file) == held_out_part(parts[_set_of(file)])]
    if not testing:
        return images
    here = f"{folder.resolve()}/"
    held: set[str] = set()
    for file in testing:
        rows = read_rows(file, labelled=False)
        base = _root(file, rows[0].path, root)
        held.update(f"{base}/{row.path}".removeprefix(here) for row in rows)
    own = held_out_part(images.declared)
    both = zip(images.keys, images.declared, strict=True)
    declared = ["test" if key in held or (part and part == own) else part for key, part in both]
    note = f"images of {' and '.join(file.name for file in testing)} are test images"
    return replace(images, declared=declared, notes=(*images.notes, note))


def _part(file: Path) -> str:
    match = _NAME.fullmatch(file.stem)
    return PARTS[match["part"].lower()] if match else ""


def _set_of(file: Path) -> str | None:
    match = _NAME.fullmatch(file.stem)
    return (match["set"] or "") if match else None


def _set_name(file: Path) -> str:
    return (_set_of(file) or file.resolve().parent.name) if _part(file) == "train" else file.stem


def _together(file: Path) -> dict[str, Path]:
    """Return the lists to open by part, in the order train, val, test; "" for a list on its own."""
    if _part(file) != "train":
        return {"": file}
    beside = [path for path in sorted(file.parent.glob(f"*{LIST_SUFFIX}")) if _set_of(path) == _set_of(file)]
    lists: dict[str, Path] = {"train": file}
    for path in beside:
        part = _part(path)
        if part == "train":
            continue
        if part in lists:
            raise UserError(f"{path} and {lists[part].name} are both lists for {part}; keep one of them")
        lists[part] = path
    if len(lists) == 1:
        return {"": file}
    return {part: lists[part] for part in ("train", "val", "test") if part in lists}


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of the lines that are not blank."""
    # File names on Linux may be any bytes; surrogateescape keeps them as they are.
    text = io.StringIO(read_text(file, MOST_BYTES, encoding="utf-8-sig", errors="surrogateescape"), newline=None)
    yield from ((number, line.strip()) for number, line in enumerate(text, start=1) if line.strip())


def _row(line: str, labelled: bool) -> Row | None:
    match = _LINE.fullmatch(line)
    if match is None or (labelled and match["label"] is None):
        return None
    path = re.sub(r"/(\./|/)+", "/", match["path"].removeprefix("./"))  # one spelling for one image
    return Row(path, int(match["label"]) if labelled else -1)


def _is_list(file: Path, root: Path | None, labelled: bool = True) -> bool:
    if not is_regular(file) or file.stat().st_size > MOST_BYTES:
        return False
    first = next(_lines(file), None)
    row = _row(first[1], labelled) if first else None
    return row is not None and not _leads_out(row.path) and _root(file, row.path, root) is not None


def _leads_out(path: str) -> bool:
    """Whether a path of a list is absolute or climbs, in the notation of any system."""
    return path.startswith(("/", "\\")) or bool(PureWindowsPath(path).drive) or ".." in re.split(r"[/\\]", path)


def read_rows(file: Path, labelled: bool, n_classes: int | None = None) -> list[Row]:
    """Return the lines of a list.

    Args:
        file: the list.
        labelled: whether each line must have a class number; else those that are there are left alone.
        n_classes: how many classes there are; None where the list itself tells.

    Raises:
        UserError: a line is not as described or leads out of the folder of the images, or there is none.
    """
    rows = []
    for number, line in _lines(file):
        row = _row(line, labelled)
        if row is None:
            expected = "a path and a class number, such as 'cat/1.jpg 0'" if labelled else "the path of an image"
            raise UserError(f"line {number} of {file} is {line[:_SHOWN]!r}; expected {expected}")
        if _leads_out(row.path):
            raise UserError(
                f"line {number} of {file} leads out of the folder of the images ({row.path[:_SHOWN]!r}); "
                "list paths relative to that folder"
            )
        if n_classes is not None and row.label >= n_classes:
            raise UserError(
                f"line {number} of {file} has the class {row.label}; expected one from 0 to {n_classes - 1}"
            )
        rows.append(row)
    if not rows:
        raise UserError(f"{file} lists no images; expected a path and a class number on each line")
    return rows


def _merge(lists: dict[str, Path], labelled: bool) -> tuple[list[Row], list[str], list[str]]:
    """Return all rows without repetitions, their parts, and what there is to say about them."""
    seen: dict[Row, str] = {}
    labels: dict[str, int] = {}
    repeated = 0
    for part, file in lists.items():
        for row in read_rows(file, labelled):
            if seen.setdefault(row, part) != part or labels.setdefault(row.path, row.label) != row.label:
                raise UserError(
                    f"{row.path!r} is listed twice in {' and '.join(path.name for path in lists.values())}, with "
                    "different parts or classes; keep one of the lines"
                )
            repeated += 1
    repeated -= len(seen)
    notes = [f"{repeated} lines repeat an earlier one and were left out"] if repeated else []
    return list(seen), list(seen.values()), notes


def _root(file: Path, first: str, root: Path | None) -> Path | None:
    """Return the folder that the first image is in; both candidates are absolute."""
    return next((folder for folder in _candidates(file, root) if (folder / first).is_file()), None)


def _candidates(file: Path, root: Path | None) -> list[Path]:
    return [root.resolve()] if root else [file.resolve().parent, file.resolve().parent.parent]


def _class_names(rows: list[Row], values: list[int]) -> tuple[str, ...]:
    folders: dict[int, set[str]] = {}
    for row in rows:
        folders.setdefault(row.label, set()).add(row.path.rpartition("/")[0].rpartition("/")[2])
    names = ["/".join(folders[value]) for value in values]
    one_each = all(len(folders[value]) == 1 for value in values)
    if one_each and "" not in names and len(set(names)) == len(names):
        return tuple(names)
    return tuple(map(str, values))
