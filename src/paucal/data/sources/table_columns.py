"""Finds the tables that describe images, and the columns of paths, classes and splits (train, val, test) in a table."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paucal.data.sources.labels import find_indicator_columns
from paucal.data.sources.locating import FOLDERS_OF_TABLES, MAX_SHOWN
from paucal.data.sources.source import SourceOptions
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.sources.table_reading import MAX_BYTES, TABLE_SUFFIXES, TableRow, read_table
from paucal.data.splits.part_names import PART_BY_WORD, files_of_set, parse_part_name, select_train_files
from paucal.reading import is_regular
from paucal.types import UserError

MAX_COLUMNS = 16  # maximum number of extra columns that are kept, such as a patient column
# Usual names of columns, in the form that `normalise_column_name` returns.
IMAGE_COLUMNS = (
    *("image_path", "image", "path", "file_name", "filename", "file", "filepath", "img_path", "img", "image_id"),
    *("image_name", "imageid", "id", "key"),
)
LABEL_COLUMNS = (
    *("label", "labels", "class", "class_name", "classname", "category", "target", "y", "species", "breed", "choice"),
)
# Columns whose cells are read as class names even if all cells are digits.
CLEAR_NAME_COLUMNS = ("class_name", "classname", "label_name", "category_name")
NAME_COLUMNS = (*CLEAR_NAME_COLUMNS, "class", "category", "species", "breed")
SPLIT_COLUMNS = ("split", "part", "subset", "set")
# The split whose images a Boolean column marks, by the name of the column; fastai writes `is_valid`.
FLAG_COLUMNS = {"is_valid": "val", "is_val": "val", "is_validation": "val", "is_test": "test"}
FOLD_COLUMNS = ("fold", "folds", "kfold", "cv_fold")
BOX_COLUMNS = (
    *(("xmin", "ymin", "xmax", "ymax"), ("x_min", "y_min", "x_max", "y_max"), ("x1", "y1", "x2", "y2")),
    *(("left", "top", "right", "bottom"), ("x", "y", "w", "h"), ("x", "y", "width", "height"), ("bbox",), ("objects",)),
    ("region_shape_attributes",),
    *(("bbox_x", "bbox_y", "bbox_width", "bbox_height"), ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")),
)
SPLIT_CSV_COLUMNS = ["key", "label", "class", "split"]  # header of split.csv; "label" has numbers, "class" has names
# Meaning of the text in a cell of `FLAG_COLUMNS`, in lower case.
FLAG_VALUES = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False, "": False}
_SAMPLED_ROWS = 21  # number of rows from which the columns are detected


@dataclass(frozen=True)
class TableColumns:
    """Positions (from 0) of the columns of a table."""

    image: int  # position of the column of paths
    label: int | None  # position of the column of classes; None without such a column
    split: int | None  # position of the column of splits (train, val or test); None without such a column
    names: tuple[str, ...] = ()  # names of all columns; empty if the table has no header
    indicators: tuple[int, ...] = ()  # positions of the columns of 1 and 0, one for each class
    flags: tuple[tuple[int, str], ...] = ()  # (position of a Boolean column, split that it marks)
    notes: tuple[str, ...] = ()  # notes on how columns were chosen, and on columns that are not read

    @property
    def classes(self) -> list[str]:
        """Names of the indicator columns, which are the classes."""
        return [self.names[index] for index in self.indicators]

    @property
    def extra_columns(self) -> list[int]:
        """Positions of up to 16 columns except path, split and indicators, such as the label or a patient column."""
        used_columns = (self.image, self.split, *self.indicators, *(column for column, _ in self.flags))
        return [index for index in range(len(self.names)) if index not in used_columns][:MAX_COLUMNS]

    @property
    def box_columns(self) -> str:
        """Names of the columns with the coordinates of boxes, joined by commas; "" if the table has no boxes."""
        plain_names = [normalise_column_name(name) for name in self.names]
        return next((", ".join(names) for names in BOX_COLUMNS if set(names) <= set(plain_names)), "")


def refuse_repeated_columns(file: object, names: Sequence[str], used_columns: Iterable[int]) -> None:
    """Raise a UserError if another column has the same name as a column at one of the positions `used_columns`."""
    if repeated := next((names[index] for index in used_columns if names.count(names[index]) > 1), ""):
        raise UserError(repeated_column_message(file, repeated))


def repeated_column_message(file: object, name: str) -> str:
    """Return the message on several columns of the same name."""
    return f"{file} has several columns called {name[:MAX_SHOWN]!r}; rename or remove all but one."


def find_columns(file: Path, rows: Sequence[TableRow], options: SourceOptions) -> TableColumns:
    """Return the columns of a table; the first row is the header, unless the row begins with the path of an image."""
    first, label_column = rows[0].cells, options.label_column
    if first[0].lower().endswith(IMAGE_SUFFIXES) and not (options.image_column or label_column):
        return _unnamed_columns(file, rows, options.labelled)
    plain_names = [normalise_column_name(name) for name in first]
    if options.image_column:
        image = _column_position(file, first, options.image_column, "--image-column")
    else:
        image = first_position(plain_names, IMAGE_COLUMNS)
    if first[: len(SPLIT_CSV_COLUMNS)] == SPLIT_CSV_COLUMNS and label_column is None:
        label_column = "class"
    if image is None:
        raise UserError(
            f"{file} has no known column of paths; its columns are {_quote_names(first)}. Choose the column with "
            "--image-column."
        )
    cells = [row.cells for row in rows[1:]]
    split, flags, notes = _find_split_columns(plain_names, first, cells)
    columns = TableColumns(image, None, split, tuple(first), (), flags, tuple(notes))
    if not options.labelled:
        return columns
    if label_column is not None:
        return replace(columns, label=_column_position(file, first, label_column, "--label-column"))
    label = first_position(plain_names, LABEL_COLUMNS)
    if label is not None:
        name_column = _find_name_column(plain_names, cells, label)
        if name_column != label:
            name_text = f"the class names are in the column {first[name_column]!r}"
            notes.append(f"{name_text}; the column {first[label]!r} has the class numbers")
        return replace(columns, label=name_column, notes=tuple(notes))
    indicators = find_indicator_columns(cells, len(first), (image, split, *(column for column, _ in flags)))
    if not indicators or columns.box_columns:
        box_note = f" ({columns.box_columns} describe boxes: use paucal detect)" if columns.box_columns else ""
        raise UserError(
            f"{file} has no known column of classes, and no columns of 1 and 0 for each class; its columns are "
            f"{_quote_names(first)}{box_note}. Choose the class column with --label-column. To learn numbers, choose a "
            "column with 'paucal train --target'."
        )
    return replace(columns, indicators=indicators)


def find_tables(folder: Path, options: SourceOptions) -> dict[str, Path]:
    """Return the tables that describe the images of a folder, by split (or ""); empty if there is no such table.

    The folder itself and subfolders such as `annotations` are searched first, for a train table with val and test
    tables, or only one table with paths and classes. Otherwise each train/val/test folder is searched for one table.
    """
    table_folders, part_folders = (
        [entry for entry in sorted(folder.iterdir()) if entry.name.lower() in names and entry.is_dir()]
        for names in (FOLDERS_OF_TABLES, PART_BY_WORD)
    )
    for table_folder in (folder, *table_folders):
        if (file := _find_table(table_folder, options)) is not None:
            return tables_of_set(file, options)
    tables: dict[str, Path] = {}
    for subfolder in sorted(part_folders, key=lambda subfolder: PART_BY_WORD[subfolder.name.lower()] != "train"):
        part, table = PART_BY_WORD[subfolder.name.lower()], _find_table(subfolder, options)
        if table is None and "train" in tables and (same_name := subfolder / tables["train"].name).exists():
            table = same_name if is_image_table(same_name, options, must_be_readable=True) else None
        if table is not None and tables.setdefault(part, table) != table:
            raise UserError(f"{tables[part]} and {table} are both tables for {part}; keep one table.")
    return {part: tables[part] for part in ("train", "val", "test") if part in tables} if "train" in tables else {}


def _find_table(folder: Path, options: SourceOptions) -> Path | None:
    """Return the table in a folder that describes all images or the training images; None if there is no such table."""
    files = [file for file in sorted(folder.iterdir()) if file.suffix.lower() in TABLE_SUFFIXES]
    files = [file for file in files if not file.name.startswith(".") and "submission" not in file.stem.lower()]
    tables = [file for file in files if is_image_table(file, options)]
    without_part = [file for file in tables if not parse_part_name(file).part]
    candidates = without_part or select_train_files(tables) or tables[: len(tables) == 1]
    if len(candidates) > 1:
        names = ", ".join(file.name for file in candidates)
        raise UserError(f"{folder} has several tables of images ({names}); give one table, such as {candidates[0]}.")
    return candidates[0] if candidates else None


def tables_of_set(file: Path, options: SourceOptions) -> dict[str, Path]:
    """Return a table and the tables of other splits in the same folder, by split; the key of a single table is ""."""
    # A test table without labels, as in competitions, is not opened.
    return files_of_set(file, lambda other: is_image_table(other, options, must_be_readable=True), "tables")


def is_image_table(file: Path, options: SourceOptions, must_be_readable: bool = False) -> bool:
    """Return whether a file has columns of paths and classes; if it `must_be_readable`, errors are raised."""
    if not is_regular(file) or file.stat().st_size > MAX_BYTES:
        return False
    try:
        rows = read_table(file, _SAMPLED_ROWS).rows
    except (OSError, UserError):
        if must_be_readable:
            raise
        return False
    if not rows:
        return False
    names = rows[0].cells
    plain_names = [normalise_column_name(name) for name in names]
    if options.image_column is None:
        image = first_position(plain_names, IMAGE_COLUMNS)
    else:
        image = first_position(names, [options.image_column])
    if image is None:
        return False
    if options.label_column is not None:
        return options.label_column in names
    cells = [row.cells for row in rows[1:]]
    split, flags, _ = _find_split_columns(plain_names, plain_names, cells)
    used_columns = (image, split, *(column for column, _ in flags))
    return first_position(plain_names, LABEL_COLUMNS) is not None or bool(
        find_indicator_columns(cells, len(plain_names), used_columns)
    )


def normalise_column_name(name: str) -> str:
    """Return a column name in lower case, with "_" for white space and hyphens, for comparison with usual names."""
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _unnamed_columns(file: Path, rows: Sequence[TableRow], labelled: bool) -> TableColumns:
    """Return the columns of a table without a header: the first column has paths, and the second has classes."""
    first = rows[0].cells
    numbers = [cell for cell in first[1:] if re.fullmatch(r"-?\d+(\.\d+)?", cell)]
    if labelled and len(first) >= 6 and len(numbers) >= 4:  # a path, a class and four coordinates
        raise UserError(
            f"{file} has no column names, and its rows look like boxes ({', '.join(first)[:MAX_SHOWN]}): use paucal "
            "detect, or give a table with a path and a class in each row."
        )
    return TableColumns(0, 1 if len(first) > 1 and labelled else None, None)


def _find_split_columns(
    plain_names: Sequence[str], names: Sequence[str], cells: Sequence[Sequence[str]]
) -> tuple[int | None, tuple[tuple[int, str], ...], list[str]]:
    """Return the position of the column of splits, or else the `TableColumns.flags`, and notes for the user."""
    split = first_position(plain_names, SPLIT_COLUMNS)
    flags, notes = [], []
    for index, name in enumerate(plain_names):
        if name not in FLAG_COLUMNS:
            continue
        if split is None and all(len(row) <= index or row[index].lower() in FLAG_VALUES for row in cells):
            flags.append((index, FLAG_COLUMNS[name]))
            notes.append(f"the split is in the column {names[index]!r}")
        else:
            reason = "expected only true and false, and no other column with the split"
            notes.append(f"the column {names[index]!r} is not read: {reason}")
    folds = [names[index] for index, name in enumerate(plain_names) if name in FOLD_COLUMNS]
    return split, tuple(flags), [*notes, *(f"the column {name!r} is not read: use --folds" for name in folds)]


def _find_name_column(plain_names: Sequence[str], cells: Sequence[Sequence[str]], label: int) -> int:
    """Return the position of the label column, or of a column with one name for each of its numbers."""
    numbers = [row[label] for row in cells if len(row) > label]
    if not all(re.fullmatch(r"\d*(\.0)?", number) for number in numbers):
        return label
    for index, name in enumerate(plain_names):
        if name not in NAME_COLUMNS or index == label:
            continue
        pairs = {(row[label], row[index]) for row in cells if len(row) > max(label, index)}
        distinct_numbers, distinct_names = {number for number, _ in pairs}, {text for _, text in pairs}
        has_names = name in CLEAR_NAME_COLUMNS or not any(text.isdigit() for text in distinct_names)
        if has_names and len(pairs) == len(distinct_numbers) == len(distinct_names):
            return index
    return label


def _column_position(file: Path, names: Sequence[str], column: str, flag: str) -> int:
    if column not in names:
        raise UserError(f"{flag}: {file} has no column {column!r}; its columns are {_quote_names(names)}.")
    return list(names).index(column)


def _quote_names(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:MAX_SHOWN]) for name in names[:12])


def first_position(names: Sequence[str], usual_names: Sequence[str]) -> int | None:
    """Return the position in `names` of the first of `usual_names` that `names` contains; None if it contains none."""
    return next((names.index(name) for name in usual_names if name in names), None)
