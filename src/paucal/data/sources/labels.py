"""Labels in tables: a name in a cell, several names in a cell, or a column of 1 and 0 for each class."""

import ast
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paucal.data.images import UNKNOWN
from paucal.types import UserError
from paucal.wording import counted, first_few

ONE_LABEL = "none"  # instead of a separator: each cell is one class name, whatever characters it holds
_SEPARATORS = ";|,"
MISSING = ("nan", "-nan", "<na>", "nat", "#n/a")  # usual markers of missing values, in lower case
_MARKS = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0, "-1": UNKNOWN, "-1.0": UNKNOWN, "": UNKNOWN}
_MARKS |= dict.fromkeys(MISSING, UNKNOWN)
_MAX_SHOWN = 60
_ITEM = re.compile(r"'([^']*)'|\"([^\"]*)\"|([^\s,'\"]+)")  # an item of an array printed by NumPy, without commas


@dataclass(frozen=True)
class Labels:
    """Labels of N images, with the fields of `ImageSet`.

    Attributes:
        classes: K names, in lexicographic order if they come from cells.
        numbers: (N,) int64 numbers of the classes, all -1 for unlabelled images or with `multi_hot`.
        multi_hot: (N, K) int8 of 1, 0 and -1 (unknown), or None.
        notes: Sentences for the user.
    """

    classes: tuple[str, ...]
    numbers: NDArray[np.int64]
    multi_hot: NDArray[np.int8] | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def none(cls, count: int) -> "Labels":
        """Return the labels of unlabelled images."""
        return cls((), np.full(count, -1, dtype=np.int64))


def find_separator(cells: Sequence[str], given: str | None = None) -> str:
    """Return the separator between several labels in the cells of a column; "" if each cell is one label.

    A character is a separator if it is between names in some cell and splitting at it gives fewer distinct names than
    distinct cells. ";" and "|", which are rare in names, also count if some name is in several cells and
    either the number of names varies over the cells (even empty ones), or some name changes its position.

    Args:
        cells: Cells of the column.
        given: Separator given by the user, or "none" for one label in each cell; None finds it.

    Example:
        >>> find_separator(["cat;dog", "cat", ""]), find_separator(["cat; tabby", "dog"])
        (';', '')
    """
    if given is not None:
        return "" if given == ONE_LABEL else given
    distinct = {"" if is_missing(cell) else cell for cell in cells}
    return next((sign for sign in _SEPARATORS if _separates_names(sign, distinct)), "")


def is_missing(cell: str) -> bool:
    """Return whether a cell is empty or holds a usual marker of a missing value, such as "nan"."""
    return not cell or cell.lower() in MISSING


def labels_in_lists(cells: Sequence[str]) -> list[list[str]] | None:
    """Return the labels in cells that are lists in the notation of JSON, Python or NumPy; None if any is not.

    Example:
        >>> labels_in_lists(['["red", "blue"]', "['red' 'green']", "[]", "[3]", ""])
        [['red', 'blue'], ['red', 'green'], [], ['3'], []]
        >>> labels_in_lists(["[red]", "blue"])
    """
    if not any(cells) or not all(re.fullmatch(r"[\[({].*[\])}]", cell) for cell in cells if cell):
        return None
    rows = [_list_items(cell) for cell in cells]
    return [items for items in rows if items is not None] if None not in rows else None


def _list_items(cell: str) -> list[str] | None:
    """Return the members of a list; None if the brackets belong to a name, as in "(other)"."""
    try:
        # NumPy prints strings without commas, and Python would concatenate them.
        value = None if re.search(r"['\"]\s+['\"]", cell) else ast.literal_eval(cell)
        if isinstance(value, list | tuple | set):
            return [str(item).strip() for item in value if item is not None]
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        pass
    if cell and cell[0] != "[":
        return None
    items = [match for match in _ITEM.finditer(cell[1:-1]) if not (match[3] and is_missing(match[3]))]
    return [next(filter(None, match.groups()), "").strip() for match in items]


def _separates_names(sign: str, distinct: Collection[str]) -> bool:
    cells = [cell for cell in distinct if cell]
    pieces = [split_names(cell, sign) for cell in cells]
    if not all(pieces) or all(len(set(names)) == 1 for names in pieces):  # a cell of only separators is a name
        return False
    names = [name for cell_names in pieces for name in set(cell_names)]
    if len(set(names)) < len(cells):
        return True
    lengths = {len(split_names(cell, sign)) for cell in distinct}
    name_positions = {(index, name) for cell_names in pieces for index, name in enumerate(dict.fromkeys(cell_names))}
    is_reordered = len(name_positions) > len(set(names))
    return sign != "," and len(set(names)) < len(names) and (len(lengths) > 1 or is_reordered)


def from_cells(cells: Sequence[str], separator: str) -> Labels:
    """Return the labels that cells name, several in a cell if there is a separator, else exactly one."""
    rows = [split_names(cell, separator) for cell in cells]
    return from_names(rows, bool(separator), separator_words(cells, separator))


def split_names(cell: str, separator: str) -> list[str]:
    """Return the names in a cell; without a separator, the whole cell."""
    return [name for piece in cell.split(separator) if (name := piece.strip())] if separator else [cell]


def separator_words(cells: Sequence[str], separator: str) -> str:
    """Describe the separator of labels in cells; "" without a separator."""
    example = max(cells, key=lambda cell: cell.count(separator)) if separator and cells else ""
    return f"such as {example[:_MAX_SHOWN]!r}, divided at {separator!r}" if separator else ""


def from_names(rows: Sequence[Sequence[str]], several: bool, where: str) -> Labels:
    """Return the labels of images from the names of their classes: one for each, or with `several` any number.

    Notes say how the labels are given: `where`.
    """
    classes = tuple(sorted({name for row in rows for name in row}))
    number = {name: index for index, name in enumerate(classes)}
    if not several:
        return Labels(classes, np.asarray([number[row[0]] for row in rows], dtype=np.int64))
    multi_hot = np.zeros((len(rows), len(classes)), dtype=np.int8)
    for index, row in enumerate(rows):
        multi_hot[index, [number[name] for name in row]] = 1
    return _multi_labels(classes, multi_hot, where)


def class_columns(rows: Sequence[Sequence[str]], width: int, known: Collection[int | None]) -> tuple[int, ...]:
    """Return the positions of the columns of 1 and 0, one per class; empty if there are fewer than two."""
    marks = tuple(
        index
        for index in range(width)
        if index not in known
        and all(len(row) > index and row[index].strip().lower() in _MARKS for row in rows)
        and any(row[index].strip() for row in rows)
    )
    return marks if len(marks) > 1 else ()


def from_columns(classes: tuple[str, ...], rows: Sequence[Sequence[str]]) -> Labels:
    """Return the labels of a table with a column for each class.

    An empty cell or -1 means that the class is unknown (as in CheXpert, arXiv:1901.07031), but in a table without any
    0 an empty cell means 0. If every image is of exactly one class, the labels are single labels.
    """
    if len(set(classes)) < len(classes):
        repeated = next(name for name in classes if classes.count(name) > 1)
        raise UserError(f"two columns of classes are called {repeated[:_MAX_SHOWN]!r}: rename or remove one.")
    marks = np.asarray([[_MARKS[cell.lower()] for cell in row] for row in rows], dtype=np.int8)
    if not (marks == 0).any():
        marks[np.asarray([[not cell for cell in row] for row in rows])] = 0
    source = f"{len(classes)} columns of 1 and 0 ({first_few(classes)})"
    if (marks != UNKNOWN).all() and (marks.sum(1) == 1).all():
        return Labels(classes, marks.argmax(1).astype(np.int64), notes=(f"one label per image, from {source}",))
    return _multi_labels(classes, marks, f"in {source}")


def _multi_labels(classes: tuple[str, ...], multi_hot: NDArray[np.int8], source: str) -> Labels:
    numbers = np.full(len(multi_hot), -1, dtype=np.int64)
    return Labels(classes, numbers, multi_hot, several_notes(multi_hot, source))


def several_notes(multi_hot: NDArray[np.int8], where: str) -> tuple[str, ...]:
    """Return notes on an (N, K) set whose images may have several labels, given in the way that `where` describes."""
    label_counts = (multi_hot == 1).sum(1)
    n_unlabelled, n_unknown = int((label_counts == 0).sum()), int((multi_hot == UNKNOWN).sum())
    notes = [f"images carry several labels ({where}): {label_counts.mean():.2g} on average, up to {label_counts.max()}"]
    if n_unlabelled:
        notes.append(f"{counted(n_unlabelled, 'image')} without a label: in none of the classes")
    if n_unknown:
        notes.append(f"{counted(n_unknown, 'label')} unknown: left out of loss and scores")
    return tuple(notes)
