"""Finds the tables that describe images, and their columns of paths, classes, parts, or marks of a class."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paucal.data.sources.labels import class_columns
from paucal.data.sources.locating import FOLDERS_OF_TABLES
from paucal.data.sources.source import SourceOptions
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.sources.table_rows import MAX_BYTES, TABLE_SUFFIXES, TableRow, read_table
from paucal.data.splits.part_names import PARTS, files_of_set, part_name, train_files
from paucal.reading import is_regular
from paucal.types import UserError

MAX_COLUMNS = 16  # maximum number of columns kept besides path, class and part
IMAGE_COLUMNS = (
    *("image_path", "image", "path", "file_name", "filename", "file", "filepath", "img_path", "img", "image_id"),
    *("image_name", "imageid", "id", "key"),
)
LABEL_COLUMNS = (
    *("label", "labels", "class", "class_name", "classname", "category", "target", "y", "species", "breed", "choice"),
)
SURE_NAME_COLUMNS = ("class_name", "classname", "label_name", "category_name")
NAME_COLUMNS = (*SURE_NAME_COLUMNS, "class", "category", "species", "breed")
SPLIT_COLUMNS = ("split", "part", "subset", "set")
# The first entry is the column name that fastai uses.
FLAG_COLUMNS = {"is_valid": "val", "is_val": "val", "is_validation": "val", "is_test": "test"}
FOLD_COLUMNS = ("fold", "folds", "kfold", "cv_fold")
BOX_COLUMNS = (
    *(("xmin", "ymin", "xmax", "ymax"), ("x_min", "y_min", "x_max", "y_max"), ("x1", "y1", "x2", "y2")),
    *(("left", "top", "right", "bottom"), ("x", "y", "w", "h"), ("x", "y", "width", "height"), ("bbox",), ("objects",)),
    ("region_shape_attributes",),
    *(("bbox_x", "bbox_y", "bbox_width", "bbox_height"), ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")),
)
SPLIT_CSV_COLUMNS = ["key", "label", "class", "split"]  # header of split.csv: "label" is a number, "class" a name
FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False, "": False}
_SAMPLED_ROWS = 21  # number of rows that decide whether a table has a column for each class
_SHOWN = 80  # maximum number of characters of a name in a message


@dataclass(frozen=True)
class Columns:
    """Positions of the columns of a table.

    Attributes:
        image: Column of the paths.
        label: Column of the classes; None if there is none.
        split: Column of the parts; None if there is none.
        names: Names of all columns; empty without a header.
        marks: Columns of 1 and 0, one for each class.
        flags: Columns that mark the images of a part, each with its part.
        notes: Sentences on columns that were chosen from several, or are not read.
    """

    image: int
    label: int | None
    split: int | None
    names: tuple[str, ...] = ()
    marks: tuple[int, ...] = ()
    flags: tuple[tuple[int, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def classes(self) -> list[str]:
        """Names of the columns of single classes."""
        return [self.names[index] for index in self.marks]

    @property
    def others(self) -> list[int]:
        """Positions of up to 16 columns that are neither path nor part, such as a patient column."""
        used_columns = (self.image, self.split, *self.marks, *(column for column, _ in self.flags))
        return [index for index in range(len(self.names)) if index not in used_columns][:MAX_COLUMNS]

    @property
    def boxes(self) -> str:
        """Names of the columns of boxes; "" if there are none."""
        plain = [plain_column(name) for name in self.names]
        return next((", ".join(names) for names in BOX_COLUMNS if set(names) <= set(plain)), "")


def refuse_repeated_columns(place: object, names: Sequence[str], used: Iterable[int]) -> None:
    """Refuse a table in which one of the columns at the positions `used` has the name of another one."""
    if repeated := next((names[index] for index in used if names.count(names[index]) > 1), ""):
        raise UserError(repeated_column_text(place, repeated))


def repeated_column_text(place: object, name: str) -> str:
    """Return the message about several columns of one name."""
    return f"{place} has several columns called {name[:_SHOWN]!r}; rename or remove all but one."


def find_columns(file: Path, rows: Sequence[TableRow], options: SourceOptions) -> Columns:
    """Return the columns of a table; its first row has their names unless it describes an image."""
    first, label_column = rows[0].cells, options.label_column
    if first[0].lower().endswith(IMAGE_SUFFIXES) and not (options.image_column or label_column):
        return _unnamed_columns(file, rows, options.labelled)
    plain = [plain_column(name) for name in first]
    if options.image_column:
        image = _column_position(file, first, options.image_column, "--image-column")
    else:
        image = first_position(plain, IMAGE_COLUMNS)
    if first[: len(SPLIT_CSV_COLUMNS)] == SPLIT_CSV_COLUMNS and label_column is None:
        label_column = "class"
    if image is None:
        raise UserError(
            f"{file} has no known column of paths (its columns: {_quote_names(first)}): name it by --image-column."
        )
    cells = [row.cells for row in rows[1:]]
    split, flags, notes = _part_columns(plain, first, cells)
    columns = Columns(image, None, split, tuple(first), (), flags, tuple(notes))
    if not options.labelled:
        return columns
    if label_column is not None:
        return replace(columns, label=_column_position(file, first, label_column, "--label-column"))
    label = first_position(plain, LABEL_COLUMNS)
    if label is not None:
        name_column = _names_of_numbers(plain, cells, label)
        if name_column != label:
            notes.append(f"the classes are in the column {first[name_column]!r}; {first[label]!r} has their numbers")
        return replace(columns, label=name_column, notes=tuple(notes))
    marks = class_columns(cells, len(first), (image, split, *(column for column, _ in flags)))
    if not marks or columns.boxes:
        box_note = f"; {columns.boxes} describe boxes, use paucal detect" if columns.boxes else ""
        raise UserError(
            f"{file} has no known column of classes, and no column of 1 and 0 for each class (its columns: "
            f"{_quote_names(first)}{box_note}): name it by --label-column, or in paucal train a column of numbers by "
            "--target."
        )
    return replace(columns, marks=marks)


def find_tables(folder: Path, options: SourceOptions) -> dict[str, Path]:
    """Return the tables that describe the images of a folder, by their parts; empty if there is no such table.

    They are the train table and its companions, or the only table with a path and a class, in the folder or in a
    subfolder called `annotations` or the like; or one table in each train/val/test folder.
    """
    table_folders, part_folders = (
        [entry for entry in sorted(folder.iterdir()) if entry.name.lower() in names and entry.is_dir()]
        for names in (FOLDERS_OF_TABLES, PARTS)
    )
    for place in (folder, *table_folders):
        if (file := _find_table(place, options)) is not None:
            return tables_of_set(file, options)
    tables: dict[str, Path] = {}
    for subfolder in sorted(part_folders, key=lambda subfolder: PARTS[subfolder.name.lower()] != "train"):
        part, table = PARTS[subfolder.name.lower()], _find_table(subfolder, options)
        if table is None and "train" in tables and (namesake := subfolder / tables["train"].name).exists():
            table = namesake if describes_images(namesake, options, refuse=True) else None
        if table is not None and tables.setdefault(part, table) != table:
            raise UserError(f"{tables[part]} and {table} are both tables of {part}; keep one.")
    return {part: tables[part] for part in ("train", "val", "test") if part in tables} if "train" in tables else {}


def _find_table(folder: Path, options: SourceOptions) -> Path | None:
    files = [file for file in sorted(folder.iterdir()) if file.suffix.lower() in TABLE_SUFFIXES]
    files = [file for file in files if not file.name.startswith(".") and "submission" not in file.stem.lower()]
    tables = [file for file in files if describes_images(file, options)]
    without_part = [file for file in tables if not part_name(file).part]
    candidates = without_part or train_files(tables) or tables[: len(tables) == 1]
    if len(candidates) > 1:
        names = ", ".join(file.name for file in candidates)
        raise UserError(f"{folder} has several tables of images ({names}); name one of them, such as {candidates[0]}.")
    return candidates[0] if candidates else None


def tables_of_set(file: Path, options: SourceOptions) -> dict[str, Path]:
    """Return a table and the tables of other parts beside it, by part; the key is "" for a single table."""
    # The test table of a competition has no labels.
    return files_of_set(file, lambda other: describes_images(other, options, refuse=True), "tables")


def describes_images(file: Path, options: SourceOptions, refuse: bool = False) -> bool:
    """Return whether a file has a column of paths, and either a column of classes or a column for each class.

    An unreadable file is an error if `refuse`, since it belongs to a set; otherwise it does not describe images.
    """
    if not is_regular(file) or file.stat().st_size > MAX_BYTES:
        return False
    try:
        rows = read_table(file, _SAMPLED_ROWS).rows
    except (OSError, UserError):
        if refuse:
            raise
        return False
    if not rows:
        return False
    names = rows[0].cells
    plain = [plain_column(name) for name in names]
    if options.image_column is None:
        image = first_position(plain, IMAGE_COLUMNS)
    else:
        image = first_position(names, [options.image_column])
    if image is None:
        return False
    if options.label_column is not None:
        return options.label_column in names
    cells = [row.cells for row in rows[1:]]
    split, flags, _ = _part_columns(plain, plain, cells)
    used_columns = (image, split, *(column for column, _ in flags))
    return first_position(plain, LABEL_COLUMNS) is not None or bool(class_columns(cells, len(plain), used_columns))


def plain_column(name: str) -> str:
    """Return a column name in the form in which names are compared."""
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _unnamed_columns(file: Path, rows: Sequence[TableRow], labelled: bool) -> Columns:
    """Return the columns of a table without a header: the path, then the class."""
    first = rows[0].cells
    numbers = [cell for cell in first[1:] if re.fullmatch(r"-?\d+(\.\d+)?", cell)]
    if labelled and len(first) >= 6 and len(numbers) >= 4:
        raise UserError(
            f"{file} has no column names, and its rows look like boxes ({', '.join(first)[:_SHOWN]}): use paucal "
            "detect, or write rows of a path and a class."
        )
    return Columns(0, 1 if len(first) > 1 and labelled else None, None)


def _part_columns(
    plain: Sequence[str], names: Sequence[str], cells: Sequence[Sequence[str]]
) -> tuple[int | None, tuple[tuple[int, str], ...], list[str]]:
    """Return the column of parts, or else the flag columns, and notes on columns that are not read."""
    split = first_position(plain, SPLIT_COLUMNS)
    flags = [
        (index, FLAG_COLUMNS[name])
        for index, name in enumerate(plain)
        if name in FLAG_COLUMNS and all(len(row) <= index or row[index].lower() in FLAGS for row in cells)
    ]
    flags = flags if split is None else []
    read = [index for index, _ in flags]
    notes = [f"the parts are in the column {names[index]!r}" for index in read]
    unread = [names[index] for index, name in enumerate(plain) if name in FLAG_COLUMNS and index not in read]
    reason = "expected true and false, without another column of parts"
    notes += [f"the column {name!r} is not read: {reason}" for name in unread]
    folds = [names[index] for index, name in enumerate(plain) if name in FOLD_COLUMNS]
    return split, tuple(flags), [*notes, *(f"the column {name!r} is not read: use --folds" for name in folds)]


def _names_of_numbers(plain: Sequence[str], cells: Sequence[Sequence[str]], label: int) -> int:
    """Return the column of class names if the column `label` has class numbers and there is one; else `label`."""
    numbers = [row[label] for row in cells if len(row) > label]
    if not all(re.fullmatch(r"\d*(\.0)?", number) for number in numbers):
        return label
    for index, name in enumerate(plain):
        if name not in NAME_COLUMNS or index == label:
            continue
        pairs = {(row[label], row[index]) for row in cells if len(row) > max(label, index)}
        distinct = {number for number, _ in pairs}, {text for _, text in pairs}
        is_named = name in SURE_NAME_COLUMNS or not any(text.isdigit() for text in distinct[1])
        if is_named and len(pairs) == len(distinct[0]) == len(distinct[1]):
            return index
    return label


def _column_position(file: Path, names: Sequence[str], wanted: str, flag: str) -> int:
    if wanted not in names:
        raise UserError(f"{flag}: {file} has no column {wanted!r}; it has {_quote_names(names)}.")
    return list(names).index(wanted)


def _quote_names(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:_SHOWN]) for name in names[:12])


def first_position(names: Sequence[str], known: Sequence[str]) -> int | None:
    """Return the position of the first known name that is among the names; None if none is."""
    return next((names.index(name) for name in known if name in names), None)
