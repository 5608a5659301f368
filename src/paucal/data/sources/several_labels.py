"""Tables whose images have several labels, or none: several names in a cell, or a column of 1 and 0 for each class."""

import ast
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paucal.data.images import UNKNOWN
from paucal.types import UserError
from paucal.wording import counted

ONE_LABEL = "none"  # given for a separator: a cell is the name of one class, whatever it holds
_SEPARATORS = ";|,"
MISSING = ("nan", "-nan", "<na>", "nat", "#n/a")  # as programs write what they do not know, in small letters
_MARKS = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0, "-1": UNKNOWN, "-1.0": UNKNOWN, "": UNKNOWN}
_MARKS |= dict.fromkeys(MISSING, UNKNOWN)
_MOST_SHOWN = 60
_COLUMNS_SHOWN = 5
_ITEM = re.compile(r"'([^']*)'|\"([^\"]*)\"|([^\s,'\"]+)")  # of an array as NumPy prints it, which has no commas


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
    different cells; ";" and "|", which are rare in names, also where a name is in several cells and either cells, empty
    ones among them, differ in how many names they have, or a name is at different places of two cells.

    Args:
        cells: of the column.
        given: by the user: the separator, or "none" for one label in each cell; None finds out.

    Example:
        >>> found_separator(["cat;dog", "cat", ""]), found_separator(["cat; tabby", "dog"])
        (';', '')
    """
    if given is not None:
        return "" if given == ONE_LABEL else given
    different = {"" if is_missing(cell) else cell for cell in cells}
    return next((sign for sign in _SEPARATORS if _separates(sign, different)), "")


def is_missing(cell: str) -> bool:
    """Return whether a cell holds no label: it is empty, or what a program writes for a missing value."""
    return not cell or cell.lower() in MISSING


def cells_of_lists(cells: Sequence[str]) -> list[list[str]] | None:
    """Return the labels in cells that are lists in the notation of JSON, Python or NumPy; None where some are not.

    Example:
        >>> cells_of_lists(['["red", "blue"]', "['red' 'green']", "[]", "[3]", ""])
        [['red', 'blue'], ['red', 'green'], [], ['3'], []]
        >>> cells_of_lists(["[red]", "blue"])
    """
    if not any(cells) or not all(re.fullmatch(r"[\[({].*[\])}]", cell) for cell in cells if cell):
        return None
    found = [_items(cell) for cell in cells]
    return [items for items in found if items is not None] if None not in found else None


def _items(cell: str) -> list[str] | None:
    """Return what a list holds; None where brackets belong to a name, as in "(other)"."""
    try:
        # Python joins texts without a comma between them, which NumPy prints.
        value = None if re.search(r"['\"]\s+['\"]", cell) else ast.literal_eval(cell)
        if isinstance(value, list | tuple | set):
            return [str(item).strip() for item in value if item is not None]
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        pass
    if cell and cell[0] != "[":
        return None
    return [next(filter(None, found.groups()), "").strip() for found in _ITEM.finditer(cell[1:-1])]


def _separates(sign: str, different: Collection[str]) -> bool:
    cells = [cell for cell in different if cell]
    pieces = [_names(cell, sign) for cell in cells]
    if not all(pieces) or all(len(set(found)) == 1 for found in pieces):  # a cell of signs alone is a name
        return False
    names = [name for found in pieces for name in set(found)]
    if len(set(names)) < len(cells):
        return True
    lengths = {len(_names(cell, sign)) for cell in different}
    places = {(place, name) for found in pieces for place, name in enumerate(dict.fromkeys(found))}
    moved = len(places) > len(set(names))
    return sign != "," and len(set(names)) < len(names) and (len(lengths) > 1 or moved)


def _names(cell: str, separator: str) -> list[str]:
    return [name for piece in cell.split(separator) if (name := piece.strip())]


def from_cells(cells: Sequence[str], separator: str) -> Labels:
    """Return the labels that cells name, several in a cell where there is a separator.

    Args:
        cells: one for each image; without a separator none is empty.
        separator: as `found_separator` gives it.
    """
    rows = [divided(cell, separator) for cell in cells]
    return from_names(rows, bool(separator), separator_words(cells, separator))


def divided(cell: str, separator: str) -> list[str]:
    """Return the names in a cell; all of it where there is no separator."""
    return _names(cell, separator) if separator else [cell]


def separator_words(cells: Sequence[str], separator: str) -> str:
    """Return how labels are told in cells with a separator, for people; "" without one."""
    example = max(cells, key=lambda cell: cell.count(separator)) if separator and cells else ""
    return f"such as {example[:_MOST_SHOWN]!r}, divided at {separator!r}" if separator else ""


def from_names(rows: Sequence[Sequence[str]], several: bool, where: str) -> Labels:
    """Return the labels of images of which the names are known.

    Args:
        rows: Names of the classes of each image.
        several: Whether images may have several labels, or none; else each has one.
        where: How the labels are told, for people.
    """
    classes = tuple(sorted({name for row in rows for name in row}))
    number = {name: place for place, name in enumerate(classes)}
    if not several:
        return Labels(classes, np.asarray([number[row[0]] for row in rows], dtype=np.int64))
    multi_hot = np.zeros((len(rows), len(classes)), dtype=np.int8)
    for place, row in enumerate(rows):
        multi_hot[place, [number[name] for name in row]] = 1
    return _several(classes, multi_hot, where)


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
        how = f"one label for each image, from {_described(classes)}"
        return Labels(classes, marks.argmax(1).astype(np.int64), notes=(how,))
    return _several(classes, marks, f"in {_described(classes)}")


def _described(classes: Sequence[str]) -> str:
    shown = ", ".join(classes[:_COLUMNS_SHOWN]) + (", ..." if len(classes) > _COLUMNS_SHOWN else "")
    return f"{len(classes)} columns of 1 and 0 ({shown})"


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
