"""Tables whose images have several labels, or none: several names in a cell, or a column of 1 and 0 for each class."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paucal.data.images import UNKNOWN
from paucal.types import UserError
from paucal.wording import counted

ONE_LABEL = "none"  # given for a separator: a cell is the name of one class, whatever it holds
_SEPARATORS = ";|,"
_MARKS = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0, "-1": UNKNOWN, "-1.0": UNKNOWN, "": UNKNOWN}
_MOST_SHOWN = 60


@dataclass(frozen=True)
class Labels:
    """What a table says of its images, in the terms of `ImageSet`.

    Attributes:
        classes: names, in lexicographic order where they come from cells.
        numbers: (N,) int64, -1 for all where `multi_hot` is there.
        multi_hot: (N, K) int8 of 1, 0 and -1 (unknown), or None.
        notes: sentences for people.
    """

    classes: tuple[str, ...]
    numbers: NDArray[np.int64]
    multi_hot: NDArray[np.int8] | None = None
    notes: tuple[str, ...] = ()


def found_separator(cells: Sequence[str], given: str | None = None) -> str:
    """Return what stands between several labels in the cells of a column; "" where each cell is one label.

    A sign is taken for a separator where it stands between names in some cell, and makes fewer names than there are
    different cells; ";" and "|", which are rare in names, also where a name is in several cells and cells differ in how
    many names they have.

    Args:
        cells: of the column.
        given: by the user: the separator, or "none" for one label in each cell; None finds out.

    Example:
        >>> found_separator(["cat;dog", "cat", ""]), found_separator(["cat; tabby", "dog"])
        (';', '')
    """
    if given is not None:
        return "" if given == ONE_LABEL else given
    different = set(cells) - {""}
    return next((sign for sign in _SEPARATORS if _separates(sign, different)), "")


def _separates(sign: str, cells: Collection[str]) -> bool:
    pieces = [_names(cell, sign) for cell in cells]
    if not all(pieces) or all(len(set(found)) == 1 for found in pieces):  # a cell of signs alone is a name
        return False
    names = [name for found in pieces for name in set(found)]
    if len(set(names)) < len(cells):
        return True
    return sign != "," and len(set(names)) < len(names) and len({len(found) for found in pieces}) > 1


def _names(cell: str, separator: str) -> list[str]:
    return [name for piece in cell.split(separator) if (name := piece.strip())]


def from_cells(cells: Sequence[str], separator: str) -> Labels:
    """Return the labels that cells name, several in a cell where there is a separator.

    Args:
        cells: one for each image; without a separator none is empty.
        separator: as `found_separator` gives it.
    """
    rows = [_names(cell, separator) if separator else [cell] for cell in cells]
    classes = tuple(sorted({name for row in rows for name in row}))
    number = {name: place for place, name in enumerate(classes)}
    if not separator:
        return Labels(classes, np.asarray([number[row[0]] for row in rows], dtype=np.int64))
    multi_hot = np.zeros((len(rows), len(classes)), dtype=np.int8)
    for place, row in enumerate(rows):
        multi_hot[place, [number[name] for name in row]] = 1
    example = max(cells, key=lambda cell: cell.count(separator))
    return _several(classes, multi_hot, f"such as {example[:_MOST_SHOWN]!r}, divided at {separator!r}")


def class_columns(rows: Sequence[Sequence[str]], width: int, known: Collection[int | None]) -> tuple[int, ...]:
    """Return the positions of columns of 1 and 0, one for each class; none where there are fewer than two.

    Args:
        rows: cells below the names of the columns.
        width: number of columns.
        known: positions of columns that hold something else.
    """
    free = [place for place in range(width) if place not in known]
    found = [
        place
        for place in free
        if rows and all(len(row) > place and row[place].strip().lower() in _MARKS for row in rows)
        and any(row[place].strip() for row in rows)
    ]  # fmt: skip
    return tuple(found) if len(found) > 1 else ()


def from_columns(classes: tuple[str, ...], rows: Sequence[Sequence[str]]) -> Labels:
    """Return the labels of a table with a column for each class.

    An empty cell, or one of -1, says nothing of the class (as in CheXpert, arXiv:1901.07031); where the table has no 0
    at all an empty one means 0. Where every image is of just one class it has one label.

    Args:
        classes: the names of the columns.
        rows: (N, K) cells.

    Raises:
        UserError: two columns have the same name.
    """
    if len(set(classes)) < len(classes):
        twice = next(name for name in classes if classes.count(name) > 1)
        raise UserError(f"two columns of classes are called {twice[:_MOST_SHOWN]!r}: rename or remove one")
    marks = np.asarray([[_MARKS[cell.lower()] for cell in row] for row in rows], dtype=np.int8)
    if not (marks == 0).any():
        marks[np.asarray([[not cell for cell in row] for row in rows])] = 0
    if (marks != UNKNOWN).all() and (marks.sum(1) == 1).all():
        how = f"one label for each image, from {len(classes)} columns of 1 and 0"
        return Labels(classes, marks.argmax(1).astype(np.int64), notes=(how,))
    return _several(classes, marks, f"in {len(classes)} columns of 1 and 0")


def _several(classes: tuple[str, ...], multi_hot: NDArray[np.int8], where: str) -> Labels:
    return Labels(
        classes, np.full(len(multi_hot), -1, dtype=np.int64), multi_hot, several_notes(multi_hot, where)
    )  # fmt: skip


def several_notes(multi_hot: NDArray[np.int8], where: str) -> tuple[str, ...]:
    """Return what people should know about a set whose images may have several labels.

    Args:
        multi_hot: (N, K) of 1, 0 and -1.
        where: how the labels are told.
    """
    shown = (multi_hot == 1).sum(1)
    bare, open_cells = int((shown == 0).sum()), int((multi_hot == UNKNOWN).sum())
    notes = [f"images carry several labels ({where}): {shown.mean():.2g} on average, up to {shown.max()}"]
    if bare:
        notes.append(f"{counted(bare, 'image')} without a label: of none of the classes")
    if open_cells:
        notes.append(f"{counted(open_cells, 'label')} unknown: left out of loss and scores")
    return tuple(notes)
