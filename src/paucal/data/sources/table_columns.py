"""Which column of a table holds the path, the class, the part, or a 1 and 0 for each class."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paucal.data.sources.several_labels import class_columns
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.sources.table_rows import TableRow
from paucal.types import UserError

MOST_COLUMNS = 16  # kept beside path, class and part
IMAGE_COLUMNS = (
    *("image_path", "image", "path", "file_name", "filename", "file", "filepath", "img_path", "img", "image_id"),
    *("image_name", "imageid", "id", "key"),
)
LABEL_COLUMNS = ("label", "labels", "class", "class_name", "classname", "category", "target", "y", "species", "breed")
SURE_NAME_COLUMNS = ("class_name", "classname", "label_name", "category_name")
NAME_COLUMNS = (*SURE_NAME_COLUMNS, "class", "category", "species", "breed")
SPLIT_COLUMNS = ("split", "part", "subset", "set")
FLAG_COLUMNS = {
    "is_valid": "val",
    "is_val": "val",
    "is_validation": "val",
    "is_test": "test",
}  # fastai writes the first
FOLD_COLUMNS = ("fold", "folds", "kfold", "cv_fold")
BOX_COLUMNS = (
    *(("xmin", "ymin", "xmax", "ymax"), ("x_min", "y_min", "x_max", "y_max"), ("x1", "y1", "x2", "y2")),
    *(("left", "top", "right", "bottom"), ("x", "y", "w", "h"), ("x", "y", "width", "height"), ("bbox",), ("objects",)),
    *(("bbox_x", "bbox_y", "bbox_width", "bbox_height"), ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")),
)
OF_A_RUN = ["key", "label", "class", "split"]  # split.csv: its labels are numbers, its classes names
FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False, "": False}
_SHOWN = 80


@dataclass(frozen=True)
class Columns:
    """Positions of the columns of a table.

    Attributes:
        image: Column of the paths.
        label: Column of the classes; None where there is none.
        split: Column of the parts; None where there is none.
        names: Names of all columns; empty where the first row is an image.
        marks: Columns of 1 and 0, one for each class.
        flags: Columns that say whether an image is of a part, with that part.
        notes: Sentences on columns that were chosen among several, or are not read.
    """

    image: int
    label: int | None
    split: int | None
    names: tuple[str, ...] = ()
    marks: tuple[int, ...] = ()
    flags: tuple[tuple[int, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def others(self) -> list[int]:
        """Positions of a few columns that are neither path nor part, such as that of a patient."""
        known = (self.image, self.split, *self.marks, *(place for place, _ in self.flags))
        found = [place for place in range(len(self.names)) if place not in known]
        return found[:MOST_COLUMNS]

    @property
    def boxes(self) -> str:
        """Names of the columns of boxes; "" where there are none."""
        plain = [_plain(name) for name in self.names]
        return next((", ".join(names) for names in BOX_COLUMNS if set(names) <= set(plain)), "")


def find_columns(
    file: Path, rows: Sequence[TableRow], labelled: bool, image_column: str | None, label_column: str | None
) -> Columns:
    """Return the columns of a table, whose first row has their names unless it is an image.

    Args:
        file: Path of the table, for messages.
        rows: All rows.
        labelled: Whether classes are wanted.
        image_column: Name of the column of the paths; None finds it.
        label_column: Name of the column of the classes; None finds it.

    Raises:
        UserError: There are no such columns.
    """
    first = rows[0].cells
    if first[0].lower().endswith(IMAGE_SUFFIXES) and not (image_column or label_column):
        return _of_unnamed(file, rows, labelled)
    plain = [_plain(name) for name in first]
    image = _position(file, first, image_column, "--image-column") if image_column else _first(plain, IMAGE_COLUMNS)
    if first[: len(OF_A_RUN)] == OF_A_RUN and label_column is None:
        label_column = "class"
    if image is None:
        raise UserError(
            f"{file} has no column of paths that is known (its columns: {_listed(first)}): name it by --image-column"
        )
    cells = [row.cells for row in rows[1:]]
    split, flags, notes = _parts(plain, first, cells)
    found = Columns(image, None, split, tuple(first), (), flags, tuple(notes))
    if not labelled:
        return found
    if label_column is not None:
        return replace(found, label=_position(file, first, label_column, "--label-column"))
    label = _first(plain, LABEL_COLUMNS)
    if label is not None:
        named = _names_of_numbers(plain, cells, label)
        told = [f"the classes are in the column {first[named]!r}; {first[label]!r} has their numbers"] * (
            named != label
        )
        return replace(found, label=named, notes=(*notes, *told))
    marks = class_columns(cells, len(first), (image, split, *(place for place, _ in flags)))
    if not marks:
        what = f"; {found.boxes} describe boxes, which paucal detect learns" if found.boxes else ""
        raise UserError(
            f"{file} has no column of classes that is known, and no column of 1 and 0 for each class (its columns: "
            f"{_listed(first)}{what}): name it by --label-column"
        )
    return replace(found, marks=marks)


def has_labels(rows: Sequence[TableRow], image_column: str | None = None, label_column: str | None = None) -> bool:
    """Return whether the first rows of a table have columns for paths and classes, or a column for each class.

    Args:
        rows: Some rows of the table, the names of its columns first.
        image_column: As in `find_columns`.
        label_column: As in `find_columns`.
    """
    if not rows:
        return False
    names = rows[0].cells
    plain = [_plain(name) for name in names]
    image = _first(plain, IMAGE_COLUMNS) if image_column is None else _first(names, [image_column])
    if image is None:
        return False
    if label_column is not None:
        return label_column in names
    cells = [row.cells for row in rows[1:]]
    split, flags, _ = _parts(plain, plain, cells)
    known = (image, split, *(place for place, _ in flags))
    return _first(plain, LABEL_COLUMNS) is not None or bool(class_columns(cells, len(plain), known))


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _of_unnamed(file: Path, rows: Sequence[TableRow], labelled: bool) -> Columns:
    """Return the columns of a table without names: the path, then the class."""
    first = rows[0].cells
    numbers = [cell for cell in first[1:] if re.fullmatch(r"-?\d+(\.\d+)?", cell)]
    if labelled and len(first) >= 6 and len(numbers) >= 4:
        raise UserError(
            f"{file} has no names of columns, and its rows look like boxes ({', '.join(first)[:_SHOWN]}): paucal "
            "detect learns boxes; to classify, write rows of a path and a class."
        )
    return Columns(0, 1 if len(first) > 1 and labelled else None, None)


def _parts(
    plain: Sequence[str], names: Sequence[str], cells: Sequence[Sequence[str]]
) -> tuple[int | None, tuple[tuple[int, str], ...], list[str]]:
    """Return the column of parts, else those that say whether an image is of a part, and notes on what is not read."""
    split = _first(plain, SPLIT_COLUMNS)
    flags = [
        (place, FLAG_COLUMNS[name])
        for place, name in enumerate(plain)
        if name in FLAG_COLUMNS and all(len(row) <= place or row[place].lower() in FLAGS for row in cells)
    ]
    read = [place for place, _ in flags if split is None]
    notes = [f"the parts are in the column {names[place]!r}" for place in read]
    unread = [names[place] for place, name in enumerate(plain) if name in FLAG_COLUMNS and place not in read]
    notes += [f"the column {name!r} is not read: expected true and false, and no column of parts" for name in unread]
    folds = [names[place] for place, name in enumerate(plain) if name in FOLD_COLUMNS]
    notes += [f"the column {name!r} is not read: --folds cuts folds" for name in folds]
    return split, () if split is not None else tuple(flags), notes


def _names_of_numbers(plain: Sequence[str], cells: Sequence[Sequence[str]], label: int) -> int:
    """Return the column of the names of classes that the column `label` numbers; `label` where there is none."""
    numbers = [row[label] for row in cells if len(row) > label]
    if not all(re.fullmatch(r"\d*(\.0)?", number) for number in numbers):
        return label
    for place, name in enumerate(plain):
        if name not in NAME_COLUMNS or place == label:
            continue
        pairs = {(row[label], row[place]) for row in cells if len(row) > max(label, place)}
        different = {number for number, _ in pairs}, {text for _, text in pairs}
        named = name in SURE_NAME_COLUMNS or not any(text.isdigit() for text in different[1])
        if named and len(pairs) == len(different[0]) == len(different[1]):
            return place
    return label


def _position(file: Path, names: Sequence[str], wanted: str, flag: str) -> int:
    if wanted not in names:
        raise UserError(f"{flag}: {file} has no column {wanted!r}; it has {_listed(names)}")
    return list(names).index(wanted)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:_SHOWN]) for name in names[:12])


def _first(names: Sequence[str], known: Sequence[str]) -> int | None:
    return next((names.index(name) for name in known if name in names), None)
