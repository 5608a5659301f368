"""Labels in tables: one or several class names per cell, or an indicator column (1 or 0) for each class."""

import ast
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paucal.data.images import UNKNOWN
from paucal.types import UserError
from paucal.wording import counted, join_first_few

ONE_LABEL = "none"  # value of --label-separator that reads each whole cell as one class name
_SEPARATORS = ";|,"  # possible separators between labels in a cell
MISSING = ("nan", "-nan", "<na>", "nat", "#n/a")  # usual markers of missing values, in lower case
# Label for each text in a cell of an indicator column, in lower case.
_INDICATORS = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0, "-1": UNKNOWN, "-1.0": UNKNOWN, "": UNKNOWN}
_INDICATORS |= dict.fromkeys(MISSING, UNKNOWN)
_MAX_SHOWN = 60  # maximum number of characters of a name or cell in a message
_NUMPY_ITEM = re.compile(r"'([^']*)'|\"([^\"]*)\"|([^\s,'\"]+)")  # item of an array as NumPy prints it, without commas


@dataclass(frozen=True)
class Labels:
    """Labels of N images of K classes, in the form in which `ImageSet` stores labels, with notes for the user."""

    classes: tuple[str, ...]
    class_numbers: NDArray[np.int64]  # (N,) class numbers; -1 without a label
    multi_hot: NDArray[np.int8] | None = None  # (N, K) labels 1, 0 and -1 (unknown) of a multi-label set, or None
    notes: tuple[str, ...] = ()

    @classmethod
    def unlabelled(cls, count: int) -> "Labels":
        """Return `Labels` without classes for `count` unlabelled images."""
        return cls((), np.full(count, -1, dtype=np.int64))


def find_separator(cells: Sequence[str], user_separator: str | None = None) -> str:
    """Return the separator between several labels in the cells of a column; "" if each cell is one label.

    A character is a separator if some cell has the character between names, and splitting at the character gives fewer
    distinct names than there are distinct cells. For ";" and "|", which are rare in names, it is enough that some name
    is in several cells, and that cells (including empty cells) have different numbers of names or some name is at
    different positions.

    `user_separator` is the value of --label-separator: "none" for one label in each cell, None to detect the separator.
    """
    if user_separator is not None:
        return "" if user_separator == ONE_LABEL else user_separator
    distinct = {"" if is_missing(cell) else cell for cell in cells}
    return next((separator for separator in _SEPARATORS if _separates_names(separator, distinct)), "")


def is_missing(cell: str) -> bool:
    """Return whether a cell is empty or has a usual marker of a missing value, such as "nan"."""
    return not cell or cell.lower() in MISSING


def labels_in_lists(cells: Sequence[str]) -> list[list[str]] | None:
    """Return the labels in cells that are lists, as JSON, Python or NumPy write them; None if any cell is no list."""
    if not any(cells) or not all(re.fullmatch(r"[\[({].*[\])}]", cell) for cell in cells if cell):
        return None
    rows = [_list_items(cell) for cell in cells]
    return [items for items in rows if items is not None] if None not in rows else None


def _list_items(cell: str) -> list[str] | None:
    """Return the items of a list; None if the brackets belong to a name such as "(other)"."""
    try:
        # NumPy prints strings without commas, and Python would concatenate them.
        value = None if re.search(r"['\"]\s+['\"]", cell) else ast.literal_eval(cell)
        if isinstance(value, list | tuple | set):
            return [str(item).strip() for item in value if item is not None]
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        pass
    if cell and cell[0] != "[":
        return None
    items = [match for match in _NUMPY_ITEM.finditer(cell[1:-1]) if not (match[3] and is_missing(match[3]))]
    return [next(filter(None, match.groups()), "").strip() for match in items]


def _separates_names(separator: str, distinct_cells: Collection[str]) -> bool:
    """Return whether a character separates labels, by the conditions in `find_separator`."""
    cells = [cell for cell in distinct_cells if cell]
    names_of_cells = [split_names(cell, separator) for cell in cells]
    # If a cell consists only of separators, the character is part of a name.
    if not all(names_of_cells) or all(len(set(names)) == 1 for names in names_of_cells):
        return False
    names = [name for cell_names in names_of_cells for name in set(cell_names)]
    if len(set(names)) < len(cells):
        return True
    name_counts = {len(split_names(cell, separator)) for cell in distinct_cells}
    name_positions = {
        (index, name) for cell_names in names_of_cells for index, name in enumerate(dict.fromkeys(cell_names))
    }
    has_moved_name = len(name_positions) > len(set(names))
    return separator != "," and len(set(names)) < len(names) and (len(name_counts) > 1 or has_moved_name)


def labels_from_cells(cells: Sequence[str], separator: str) -> Labels:
    """Return the labels of images from their cells, with several labels per cell unless the separator is ""."""
    rows = [split_names(cell, separator) for cell in cells]
    return labels_from_names(rows, bool(separator), describe_separator(cells, separator))


def split_names(cell: str, separator: str) -> list[str]:
    """Return the names in a cell; the whole cell is one name if the separator is ""."""
    return [name for piece in cell.split(separator) if (name := piece.strip())] if separator else [cell]


def describe_separator(cells: Sequence[str], separator: str) -> str:
    """Return a description of the separator with an example cell, for a note; "" if the separator is ""."""
    example = max(cells, key=lambda cell: cell.count(separator)) if separator and cells else ""
    return f"such as {example[:_MAX_SHOWN]!r}, divided at {separator!r}" if separator else ""


def labels_from_names(rows: Sequence[Sequence[str]], is_multi_label: bool, source: str) -> Labels:
    """Return the labels of images from their class names: one name each, or any number if `is_multi_label`."""
    classes = tuple(sorted({name for row in rows for name in row}))
    label_by_name = {name: label for label, name in enumerate(classes)}
    if not is_multi_label:
        return Labels(classes, np.asarray([label_by_name[row[0]] for row in rows], dtype=np.int64))
    multi_hot = np.zeros((len(rows), len(classes)), dtype=np.int8)
    for index, row in enumerate(rows):
        multi_hot[index, [label_by_name[name] for name in row]] = 1
    return multi_hot_labels(classes, multi_hot, source)


def find_indicator_columns(
    rows: Sequence[Sequence[str]], width: int, used_columns: Collection[int | None]
) -> tuple[int, ...]:
    """Return the positions of the unused columns of 1 and 0, one for each class; () if there are fewer than two."""
    columns = tuple(
        index
        for index in range(width)
        if index not in used_columns
        and all(len(row) > index and row[index].strip().lower() in _INDICATORS for row in rows)
        and any(row[index].strip() for row in rows)
    )
    return columns if len(columns) > 1 else ()


def labels_from_indicators(classes: tuple[str, ...], rows: Sequence[Sequence[str]]) -> Labels:
    """Return the labels of images from the cells of the indicator columns, one column for each class.

    -1 means unknown, as in CheXpert (arXiv:1901.07031). An empty cell also means unknown, but 0 if the table has no 0.
    """
    if len(set(classes)) < len(classes):
        repeated = next(name for name in classes if classes.count(name) > 1)
        raise UserError(f"two columns of classes are called {repeated[:_MAX_SHOWN]!r}: rename or remove one column.")
    indicators = np.asarray([[_INDICATORS[cell.lower()] for cell in row] for row in rows], dtype=np.int8)
    if not (indicators == 0).any():
        indicators[np.asarray([[not cell for cell in row] for row in rows])] = 0
    source = f"{len(classes)} columns of 1 and 0 ({join_first_few(classes)})"
    if (indicators != UNKNOWN).all() and (indicators.sum(1) == 1).all():
        return Labels(classes, indicators.argmax(1).astype(np.int64), notes=(f"one label per image, from {source}",))
    return multi_hot_labels(classes, indicators, f"in {source}")


def multi_hot_labels(
    classes: tuple[str, ...], multi_hot: NDArray[np.int8], source: str, has_labels: NDArray[np.bool_] | None = None
) -> Labels:
    """Return the labels of a multi-label set from its (N, K) int8 array of 1, 0 and -1 (unknown).

    `source` describes in a note where the labels come from. The notes count the images in the (N,) mask `has_labels`;
    None for all images.
    """
    rows, notes = multi_hot if has_labels is None else multi_hot[has_labels], []
    counts = (rows == 1).sum(1)
    if len(rows):
        notes.append(f"images have several labels ({source}): {counts.mean():.2g} on average, up to {counts.max()}")
    if n_unlabelled := int((counts == 0).sum()):
        notes.append(f"{counted(n_unlabelled, 'image')} without a label: read as images of no class")
    if n_unknown := int((rows == UNKNOWN).sum()):
        notes.append(f"{counted(n_unknown, 'unknown label')}: left out of the loss and the scores")
    return Labels(classes, np.full(len(multi_hot), -1, dtype=np.int64), multi_hot, tuple(notes))
