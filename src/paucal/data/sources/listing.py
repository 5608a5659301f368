"""List files: text files with a path and a class number on each line, as DomainNet's `real_train.txt`."""

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.part_names import files_of_set, part_name, set_title, train_files
from paucal.data.sources.folder import IMAGE_SUFFIXES
from paucal.data.sources.locating import ListedPath, leads_out, locate, plain_path
from paucal.data.sources.stores import FileStore
from paucal.data.splits.split import held_out_part
from paucal.reading import is_regular, read_decoded
from paucal.types import NoLabelsError, UserError

LIST_SUFFIX = ".txt"
MOST_BYTES = 256 << 20  # twice the size of a list of ImageNet's 1.3 million images
_ENDINGS = "|".join(re.escape(suffix) for suffix in IMAGE_SUFFIXES)
_LINE = re.compile(rf"(?P<path>\S.*?(?:{_ENDINGS}))(?:\s+(?P<label>\d{{1,9}}))?\s*", re.IGNORECASE)
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
    lists = files_of_set(file, lambda other: True, "lists")
    rows: list[Row] = []
    listed: list[ListedPath] = []
    notes: list[str] = []
    for part, one in lists.items():
        text, note = _read(one)
        notes += [note] if note else []
        for number, row in _rows(one, text, labelled):
            rows.append(row)
            listed.append(ListedPath(row.path, part, number, one))
    place = locate(listed, root)
    kept, repeated = _distinct(place.keys, rows, listed, list(lists.values()))
    keys, rows = [place.keys[i] for i in kept], [rows[i] for i in kept]
    labels = np.asarray([row.label for row in rows], dtype=np.int64)
    values, numbers = np.unique(labels, return_inverse=True)
    classes = _class_names(keys, labels.tolist(), values.tolist()) if labelled else ()
    return ImageSet(
        name=set_title(file),
        location=str(place.folder),
        classes=classes,
        keys=keys,
        labels=numbers.astype(np.int64) if labelled else np.full(len(keys), -1, dtype=np.int64),
        declared=[listed[i].part for i in kept],
        store=FileStore(place.folder, keys),
        notes=(f"read from {' and '.join(path.name for path in lists.values())}", *notes, *place.notes, *repeated),
    )


def find_train_list(folder: Path, root: Path | None = None) -> Path | None:
    """Return the list file that describes the images of a folder, or None.

    It must be a train list by its name, its first line must be as `open_listing` expects, and the image there must be
    where `open_listing` looks for it.

    Raises:
        UserError: there are several; one has to be named.
    """
    found = train_files([file for file in sorted(folder.glob(f"[!.]*{LIST_SUFFIX}")) if _is_list(file, root)])
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
    lists = [file for file in sorted(folder.glob(f"[!.]*{LIST_SUFFIX}")) if _is_list(file, root, False)]
    known = {file: part_name(file) for file in lists}
    parts: dict[tuple[str, ...], set[str]] = {}
    for name in known.values():
        parts.setdefault(name.others, {""}).add(name.part)  # "" for what is below the folder and not listed
    testing = [file for file, name in known.items() if name.part == held_out_part(parts[name.others])]
    if not testing:
        return images
    here = f"{folder.resolve()}/"
    held: set[str] = set()
    for file in testing:
        rows = _rows(file, _read(file)[0], labelled=False)
        place = locate([ListedPath(row.path, known[file].part, number, file) for number, row in rows], root)
        held.update(f"{place.folder}/{key}".removeprefix(here) for key in place.keys)
    own = held_out_part(images.declared)
    both = zip(images.keys, images.declared, strict=True)
    declared = ["test" if key in held or (part and part == own) else part for key, part in both]
    note = f"images of {' and '.join(file.name for file in testing)} are test images"
    return replace(images, declared=declared, notes=(*images.notes, note))


def read_rows(file: Path, labelled: bool, n_classes: int | None = None) -> list[Row]:
    """Return the lines of a list.

    Args:
        file: the list.
        labelled: whether each line must have a class number; else those that are there are left alone.
        n_classes: how many classes there are; None where the list itself tells.

    Raises:
        UserError: a line is not as described or leads out of the folder of the images, or there is none.
    """
    found = _rows(file, _read(file)[0], labelled)
    for number, row in found:
        if leads_out(row.path):
            raise UserError(
                f"line {number} of {file} leads out of the folder of the images ({row.path[:_SHOWN]!r}); "
                "list paths relative to that folder"
            )
        if n_classes is not None and row.label >= n_classes:
            raise UserError(
                f"line {number} of {file} has the class {row.label}; expected one from 0 to {n_classes - 1}"
            )
    return [row for _, row in found]


def _read(file: Path) -> tuple[str, str]:
    """Return the text of a list, and a note on its encoding."""
    found = read_decoded(file, MOST_BYTES)
    return found.text, found.note


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of the lines that are not blank."""
    lines = io.StringIO(text, newline=None)
    yield from ((number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip())


def _rows(file: Path, text: str, labelled: bool) -> list[tuple[int, Row]]:
    """Return the number and the content of each line.

    Raises:
        UserError: A line is not as described, or there is none.
    """
    rows = []
    for number, line in _lines(text):
        row = _row(line, labelled)
        if row is None:
            expected = "a path and a class number, such as 'cat/1.jpg 0'" if labelled else "the path of an image"
            only_paths = labelled and not rows and _row(line, labelled=False) is not None
            raise (NoLabelsError if only_paths else UserError)(
                f"line {number} of {file} is {line[:_SHOWN]!r}; expected {expected}"
            )
        rows.append((number, row))
    if not rows:
        raise UserError(f"{file} lists no images; expected a path and a class number on each line")
    return rows


def _row(line: str, labelled: bool) -> Row | None:
    match = _LINE.fullmatch(line)
    if match is None or (labelled and match["label"] is None):
        return None
    return Row(plain_path(match["path"]), int(match["label"]) if labelled else -1)


def _is_list(file: Path, root: Path | None, labelled: bool = True) -> bool:
    """Return whether a file is a list of a part whose first image is there."""
    part = part_name(file).part
    if not part or not is_regular(file) or file.stat().st_size > MOST_BYTES:
        return False
    try:
        number, line = next(_lines(_read(file)[0]), (0, ""))
        row = _row(line, labelled)
        return row is not None and bool(locate([ListedPath(row.path, part, number, file)], root))
    except UserError:
        return False


def _distinct(
    keys: Sequence[str], rows: Sequence[Row], listed: Sequence[ListedPath], lists: Sequence[Path]
) -> tuple[list[int], list[str]]:
    """Return the positions of the rows that repeat no other, and a note on the others.

    Raises:
        UserError: Rows of one image differ.
    """
    seen: dict[str, int] = {}
    for place, key in enumerate(keys):
        other = seen.setdefault(key, place)
        if (rows[other].label, listed[other].part) != (rows[place].label, listed[place].part):
            raise UserError(
                f"{key!r} is listed twice in {' and '.join(path.name for path in lists)}, with different parts or "
                "classes; keep one of the lines"
            )
    repeated = len(keys) - len(seen)
    return list(seen.values()), [f"{repeated} lines repeat an earlier one and were left out"] if repeated else []


def _class_names(keys: Sequence[str], labels: Sequence[int], values: list[int]) -> tuple[str, ...]:
    folders: dict[int, set[str]] = {}
    for key, label in zip(keys, labels, strict=True):
        folders.setdefault(label, set()).add(key.rpartition("/")[0].rpartition("/")[2])
    names = ["/".join(folders[value]) for value in values]
    one_each = all(len(folders[value]) == 1 for value in values)
    if one_each and "" not in names and len(set(names)) == len(names):
        return tuple(names)
    return tuple(map(str, values))
