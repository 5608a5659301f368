"""List files: text files with a path and a class number on each line, as DomainNet's `real_train.txt`."""

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.part_names import files_of_set, part_name, train_files
from paucal.data.sources.folder import IMAGE_SUFFIXES
from paucal.data.sources.locating import ListedPath, leads_out, locate, plain_path
from paucal.data.sources.placed_rows import Row, images_of_rows, place_rows
from paucal.data.sources.several_labels import Labels
from paucal.data.splits.split import held_out_part
from paucal.reading import is_regular, read_decoded
from paucal.types import NoLabelsError, UserError

LIST_SUFFIX = ".txt"
MOST_BYTES = 256 << 20  # twice the size of a list of ImageNet's 1.3 million images
_ENDINGS = "|".join(re.escape(suffix) for suffix in IMAGE_SUFFIXES)
_LINE = re.compile(rf"(?P<path>\S.*?(?:{_ENDINGS}))(?:\s+(?P<label>\d{{1,9}}))?\s*", re.IGNORECASE)
_SHOWN = 80  # characters of a line in a message


class Line(NamedTuple):
    """One line of a list: its number, the path with forward slashes, and the class number (-1 without one)."""

    number: int
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
    notes: list[str] = []
    for part, one in lists.items():
        lines, note = _read(one, labelled)
        notes += [note] if note else []
        rows += [Row(ListedPath(line.path, part, line.number, one), names=(str(line.label),)) for line in lines]
    placed = place_rows(rows, root)
    labels = Labels((), np.full(len(placed.rows), -1, dtype=np.int64))
    if labelled:
        values, numbers = np.unique([int(row.names[0]) for row in placed.rows], return_inverse=True)
        labels = Labels(_class_names(placed.rows, values.tolist()), numbers.astype(np.int64))
    return images_of_rows(lists, placed, labels, notes)


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
        lines, _ = _read(file, labelled=False)
        place = locate([ListedPath(line.path, known[file].part, line.number, file) for line in lines], root)
        held.update(f"{place.folder}/{key}".removeprefix(here) for key in place.keys)
    own = held_out_part(images.declared)
    both = zip(images.keys, images.declared, strict=True)
    declared = ["test" if key in held or (part and part == own) else part for key, part in both]
    note = f"images of {' and '.join(file.name for file in testing)} are test images"
    return replace(images, declared=declared, notes=(*images.notes, note))


def read_lines(file: Path, labelled: bool, n_classes: int) -> list[Line]:
    """Return the lines of a list whose images lie below one folder.

    Args:
        file: the list.
        labelled: whether each line must have a class number; else those that are there are left alone.
        n_classes: how many classes there are.

    Raises:
        UserError: a line is not as described or leads out of the folder of the images, or there is none.
    """
    lines, _ = _read(file, labelled)
    for line in lines:
        if leads_out(line.path):
            raise UserError(
                f"line {line.number} of {file} leads out of the folder of the images ({line.path[:_SHOWN]!r}); "
                "list paths relative to that folder"
            )
        if line.label >= n_classes:
            raise UserError(
                f"line {line.number} of {file} has the class {line.label}; expected one from 0 to {n_classes - 1}"
            )
    return lines


def _read(file: Path, labelled: bool, most: int | None = None) -> tuple[list[Line], str]:
    """Return the lines of a list that are not blank, up to a number of them, and a note on its encoding.

    Raises:
        UserError: A line is not as described, or there is none.
    """
    text, _, note = read_decoded(file, MOST_BYTES)
    filled = ((n, line.strip()) for n, line in enumerate(io.StringIO(text, newline=None), start=1) if line.strip())
    lines = []
    for number, line in islice(filled, most):
        match = _LINE.fullmatch(line)
        if match is None or (labelled and match["label"] is None):
            expected = "a path and a class number, such as 'cat/1.jpg 0'" if labelled else "the path of an image"
            raise (NoLabelsError if match and not lines else UserError)(
                f"line {number} of {file} is {line[:_SHOWN]!r}; expected {expected}"
            )
        lines.append(Line(number, plain_path(match["path"]), int(match["label"]) if labelled else -1))
    if not lines:
        raise UserError(f"{file} lists no images; expected a path and a class number on each line")
    return lines, note


def _is_list(file: Path, root: Path | None, labelled: bool = True) -> bool:
    """Return whether a file is a list of a part whose first image is there."""
    part = part_name(file).part
    if not part or not is_regular(file) or file.stat().st_size > MOST_BYTES:
        return False
    try:
        lines, _ = _read(file, labelled, most=1)
        return bool(locate([ListedPath(line.path, part, line.number, file) for line in lines], root))
    except UserError:
        return False


def _class_names(rows: Sequence[Row], numbers: Sequence[int]) -> tuple[str, ...]:
    """Return the folders of the classes where each class has one of its own, else the numbers of the classes."""
    folders: dict[str, set[str]] = {}
    for row in rows:
        folders.setdefault(row.names[0], set()).add(row.key.rpartition("/")[0].rpartition("/")[2])
    names = ["/".join(folders[str(number)]) for number in numbers]
    one_each = all(len(found) == 1 for found in folders.values())
    if one_each and "" not in names and len(set(names)) == len(names):
        return tuple(names)
    return tuple(map(str, numbers))
