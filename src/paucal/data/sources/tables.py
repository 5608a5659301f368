"""Images described row by row: tables such as `image_path,label`, and lists such as `cat/1.jpg 0`.

A list is a table without a header; its two columns are a path and a class number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.sources.folder import parts_of
from paucal.data.sources.labels import (
    Labels,
    find_separator,
    from_columns,
    from_names,
    is_missing,
    labels_in_lists,
    separator_words,
    split_names,
)
from paucal.data.sources.locating import ListedImage, locate, plain_path
from paucal.data.sources.source import SourceOptions
from paucal.data.sources.table_columns import (
    FLAGS,
    Columns,
    find_columns,
    refuse_repeated_columns,
    repeated_column_text,
)
from paucal.data.sources.table_rows import LIST_SUFFIX, MAX_LIST_BYTES, TableRow, read_list, read_table
from paucal.data.splits.part_names import PARTS, files_of_set, part_name, train_files
from paucal.data.splits.split import held_out_part
from paucal.data.stores import FileStore
from paucal.reading import is_regular
from paucal.types import UserError
from paucal.wording import counted, was

_SHOWN = 80  # maximum number of characters of a cell in a message


class _Tables(NamedTuple):
    """Rows of all tables of a set, the columns of each table, and notes on how the tables were read."""

    rows: list[ListedImage]
    columns: list[Columns]
    notes: list[str]


class _PlacedRows(NamedTuple):
    """Rows with their image keys, one row per image; the folder of the images; notes; and rows with different cells.

    `differing` has the numbers of further columns in which two rows of an image differ, each with those rows.
    """

    rows: list[ListedImage]
    folder: Path
    notes: list[str]
    differing: dict[tuple[Path, int], tuple[ListedImage, ListedImage]]


def open_tables(files: dict[str, Path], options: SourceOptions) -> ImageSet:
    """Open the CSV, TSV or JSON-lines files of the parts of one set.

    The first row is the header; without a header the first two columns are the path and the class. Classes are
    numbered in lexicographic order over all tables. The `split.csv` of a run is such a table too. Images may have
    several labels, or none, if a cell names several (`cat;dog`) or each class has a column of 1 and 0 (`labels.py`).

    Args:
        files: Table of each part, as `find_tables` returns them; the key is "" for a table on its own.
        options: Options of the tables.
    """
    tables, several, where_labels = _name_classes(_read_tables(files, options), options)
    if not tables.rows:
        needed_text = "a path and a label" if options.labelled else "a path"
        raise UserError(f"{next(iter(files.values()))} has no row with {needed_text}; give a table of images.")
    columns = tables.columns[0]
    placed = _locate_rows(tables.rows, options.root, columns.boxes)
    rows, notes = _with_parts_of_folders(placed.rows)
    if columns.boxes:
        notes.append(f"the boxes ({columns.boxes}) are not read, only one label per image")
    placed = placed._replace(rows=rows, notes=[*placed.notes, *notes])
    labels = Labels.none(len(rows))
    if columns.marks:
        labels = from_columns(tuple(columns.classes), [row.marks for row in rows])
    elif options.labelled:
        labels = from_names([row.names for row in rows], several, where_labels)
    images = _image_set(files, placed, labels, tables.notes)
    return _with_further_columns(images, placed, dict(zip(files.values(), tables.columns, strict=True)))


def _with_further_columns(images: ImageSet, placed: _PlacedRows, columns: Mapping[Path, Columns]) -> ImageSet:
    """Return the images with the further columns of their tables, in which the rows of other tables are empty."""
    names_of = {file: [columns.names[index] for index in columns.others] for file, columns in columns.items()}
    numbers = {file: {name: n for n, name in enumerate(names)} for file, names in names_of.items()}
    problems = {
        names_of[file][n]: f"{first.key[:_SHOWN]!r} is in {_lines_of(first, second)} with different cells in the "
        f"column {names_of[file][n]!r}; keep one of the lines."
        for (file, n), (first, second) in placed.differing.items()
    }
    for file, names in names_of.items():
        repeated = [name for name in names if names.count(name) > 1]
        problems |= {name: repeated_column_text(file, name) for name in repeated}
    cells = {
        name: [row.others[numbers[row.file][name]] if name in numbers[row.file] else "" for row in placed.rows]
        for name in dict.fromkeys(name for names in names_of.values() for name in names)
    }
    return replace(images, columns=cells, column_problems=problems)


def _read_tables(files: dict[str, Path], options: SourceOptions) -> _Tables:
    """Return the rows of all tables except those that are marked as unused."""
    tables = _Tables([], [], [])
    for part, file in files.items():
        rows, columns = _read_table(file, options, part, tables.notes)
        if tables.columns and columns.classes != tables.columns[0].classes:
            first = next(iter(files.values())).name
            raise UserError(f"{file} has other columns of classes than {first}: give both the same columns.")
        tables.rows.extend(row for row in rows if row.part != "unused")
        tables.columns.append(columns)
        if unused := sum(row.part == "unused" for row in rows):
            tables.notes.append(f"{counted(unused, 'unused image')} of {file.name} {was(unused)} left out")
    return tables


def _read_table(
    file: Path, options: SourceOptions, own_part: str, notes: list[str]
) -> tuple[list[ListedImage], Columns]:
    try:
        rows, note = read_table(file)
    except FileNotFoundError:
        raise UserError(f"{file} does not exist; check the path.") from None
    if not rows:
        raise UserError(f"{file} is empty; expected a row of names such as 'image_path,label', then a row per image.")
    width = len(rows[0].cells)
    for row in rows:
        if len(row.cells) < width or any(row.cells[width:]):
            raise UserError(
                f"line {row.line} of {file} has {counted(len(row.cells), 'cell')}, but the first has {width}: correct "
                "it, and put quotes around names that contain the separator."
            )
    columns = find_columns(file, rows, options)
    used = [columns.image, columns.label, columns.split, *(column for column, _ in columns.flags)]
    refuse_repeated_columns(file, columns.names, [index for index in used if index is not None and columns.names])
    notes += [text for text in (note, *columns.notes) if text]
    others = columns.others
    return [_listed_image(file, row, columns, others, own_part) for row in rows[bool(columns.names) :]], columns


def _listed_image(file: Path, row: TableRow, columns: Columns, others: Sequence[int], own_part: str) -> ListedImage:
    cells, path = row.cells, row.cells[columns.image]
    label = "" if columns.label is None else cells[columns.label]
    if not path:
        raise UserError(f"line {row.line} of {file} has no path: give one, or remove the line.")
    if "\n" in path or "\n" in label:
        raise UserError(
            f'line {row.line} of {file} has a quote (") that is only closed lines later: close it in its line.'
        )
    part = own_part
    if columns.split is not None and (word := cells[columns.split].lower()):
        if word not in PARTS and word != "unused":
            raise UserError(f"line {row.line} of {file} has the part {word[:_SHOWN]!r}; expected train, val or test.")
        part = PARTS.get(word, word)
    if columns.flags:
        part = next((part for column, part in columns.flags if FLAGS[cells[column].lower()]), "train")
    further, marks = (tuple([cells[index] for index in indices]) for indices in (others, columns.marks))
    return ListedImage(plain_path(path), part, row.line, file, label, further, marks)


def _name_classes(tables: _Tables, options: SourceOptions) -> tuple[_Tables, bool, str]:
    """Return the rows with labels, with class names; whether a row may have several; and how labels are given."""
    if not options.labelled or tables.columns[0].marks:
        return tables, True, ""
    cells = ["" if is_missing(row.label) else row.label for row in tables.rows]
    lists = labels_in_lists(cells) if options.separator is None else None
    separator = "" if lists is not None else find_separator(cells, options.separator)
    names = [split_names(cell, separator) for cell in cells] if lists is None else lists
    # If cells may have several names, an empty cell means "no class", and a cell of "nan" means "unknown".
    is_known = [bool(cell) or bool(separator and not row.label) for cell, row in zip(cells, tables.rows, strict=True)]
    rows = [row._replace(names=tuple(row_names)) for row, row_names in zip(tables.rows, names, strict=True)]
    labelled_rows = list(compress(rows, is_known))
    several = bool(separator) or any(len(row.names) != 1 for row in labelled_rows)
    notes = tables.notes
    if n_unlabelled := len(rows) - len(labelled_rows):
        unlabelled = compress(rows, np.logical_not(is_known))
        cells_text = ", ".join(sorted({row.label for row in unlabelled} - {""}))
        text = f"{counted(n_unlabelled, 'row')} without a label {was(n_unlabelled)} left out"
        notes = [*notes, f"{text} ({cells_text})" if cells_text else text]
    where = "lists in cells" if lists is not None else separator_words(cells, separator)
    return _Tables(labelled_rows, tables.columns, notes), several, where


def _with_parts_of_folders(rows: list[ListedImage]) -> tuple[list[ListedImage], list[str]]:
    """Return rows with the parts of the tables, or else with the parts of the image folders and a note."""
    keys = [row.key for row in rows]
    folders = parts_of(keys)
    if any(row.part for row in rows) or not all(folders) or not {"train"} < set(folders):
        return rows, []
    rows = [row._replace(part=part) for row, part in zip(rows, folders, strict=True)]
    return rows, [f"the parts are the folders of the images ({', '.join(sorted({k.split('/')[0] for k in keys}))})"]


def open_list(file: Path, options: SourceOptions) -> ImageSet:
    """Open a list file, such as DomainNet's `real_train.txt`, with the lists that belong to it.

    A line holds a path, which may contain spaces, and the number of its class. A train list (`real_train.txt`,
    `train.txt`) is opened together with the val and test lists of the same name beside it, which are then the parts;
    any other list has all of its images and declares no part. Classes are numbered once over all lists, in
    the order of the numbers in the lists, so labels do not depend on classes that are missing in a part. A class has
    the name of its image folder if there is one folder per class and one class per folder; otherwise its name is its
    number.

    Raises:
        UserError: A line is not of this form or leads out of the root, an image is listed with two parts or labels, or
            the first image does not exist.
    """
    lists = files_of_set(file, lambda other: True, "lists")
    rows: list[ListedImage] = []
    notes: list[str] = []
    for part, path in lists.items():
        list_rows, note = read_list(path, options.labelled)
        notes += [note] if note else []
        rows += [ListedImage(row.cells[0], part, row.line, path, names=(row.cells[1],)) for row in list_rows]
    placed = _locate_rows(rows, options.root)
    labels = Labels.none(len(placed.rows))
    if options.labelled:
        values, numbers = np.unique([int(row.names[0]) for row in placed.rows], return_inverse=True)
        labels = Labels(_classes_of_numbers(placed.rows, values.tolist()), numbers.astype(np.int64))
    return _image_set(lists, placed, labels, notes)


def _classes_of_numbers(rows: Sequence[ListedImage], numbers: Sequence[int]) -> tuple[str, ...]:
    """Return the folders of the classes if each class has its own, otherwise the numbers of the classes."""
    folders: dict[str, set[str]] = {}
    for row in rows:
        folders.setdefault(row.names[0], set()).add(row.key.rpartition("/")[0].rpartition("/")[2])
    names = [name for number in numbers for name in folders[str(number)]]
    has_one_each = "" not in names and len(names) == len(set(names)) == len(numbers)
    return tuple(names) if has_one_each else tuple(map(str, numbers))


def find_train_list(folder: Path, root: Path | None = None) -> Path | None:
    """Return the list file that describes the images of a folder, or None.

    Its name must be that of a train list, its first line must be as `open_list` expects, and the image in that line
    must be where `open_list` searches for it.
    """
    lists = train_files([file for file in sorted(folder.glob(f"[!.]*{LIST_SUFFIX}")) if _is_list(file, root)])
    if len(lists) > 1:
        names = ", ".join(file.name for file in lists)
        raise UserError(f"{folder} has lists of several data sets ({names}): give one list, such as {lists[0]}.")
    return lists[0] if lists else None


def _is_list(file: Path, root: Path | None, labelled: bool = True) -> bool:
    """Return whether a file is a list of a part whose first image exists."""
    part = part_name(file).part
    if not part or not is_regular(file) or file.stat().st_size > MAX_LIST_BYTES:
        return False
    try:
        rows = read_list(file, labelled, max_rows=1).rows
        return bool(locate([ListedImage(row.cells[0], part, row.line, file) for row in rows], root))
    except UserError:
        return False


def hold_out_listed(images: ImageSet, folder: Path, root: Path | None = None) -> ImageSet:
    """Return an unlabelled set of a folder's images, in which the images of its test lists are declared "test".

    As in `open_list` and `make_split`, the val list beside a train list counts as a test list if there is no other. All
    sets of lists are used, since a later run may be trained on any of them.
    """
    lists = [file for file in sorted(folder.glob(f"[!.]*{LIST_SUFFIX}")) if _is_list(file, root, False)]
    names = {file: part_name(file) for file in lists}
    parts: dict[tuple[str, ...], set[str]] = {}
    for name in names.values():
        parts.setdefault(name.others, {""}).add(name.part)  # "" for unlisted images below the folder
    testing = [file for file, name in names.items() if name.part == held_out_part(parts[name.others])]
    if not testing:
        return images
    folder_prefix = f"{folder.resolve()}/"
    held_out_keys: set[str] = set()
    for file in testing:
        rows = read_list(file, labelled=False).rows
        located = locate([ListedImage(row.cells[0], names[file].part, row.line, file) for row in rows], root)
        held_out_keys.update(f"{located.folder}/{key}".removeprefix(folder_prefix) for key in located.keys)
    held_out = held_out_part(images.declared)
    keys_and_parts = zip(images.keys, images.declared, strict=True)
    declared = ["test" if key in held_out_keys or (part and part == held_out) else part for key, part in keys_and_parts]
    note = f"images of {' and '.join(file.name for file in testing)} are test images"
    return replace(images, declared=declared, notes=(*images.notes, note))


def _locate_rows(rows: Sequence[ListedImage], root: Path | None, boxes: str = "") -> _PlacedRows:
    """Find the files of all rows, and leave out rows that repeat an earlier one; `boxes` names columns of boxes."""
    located = locate(rows, root)
    row_of_key: dict[str, ListedImage] = {}
    differing: dict[tuple[Path, int], tuple[ListedImage, ListedImage]] = {}
    for row, key in zip(rows, located.keys, strict=True):
        first = row_of_key.setdefault(key, row._replace(key=key))
        if (first.names, first.marks, first.part) != (row.names, row.marks, row.part):
            raise _conflict_error(key, first, row, boxes)
        if first.others != row.others and first.file == row.file:
            cells = zip(first.others, row.others, strict=True)
            differing |= {(row.file, n): (first, row) for n, (one, other) in enumerate(cells) if one != other}
    notes = list(located.notes)
    if repeated := len(rows) - len(row_of_key):
        notes.append(f"{counted(repeated, 'repeated row')} of {rows[0].file.name} {was(repeated)} left out")
    return _PlacedRows(list(row_of_key.values()), located.folder, notes, differing)


def _conflict_error(key: str, first: ListedImage, second: ListedImage, boxes: str) -> UserError:
    if boxes:
        return UserError(
            f"{second.file} has several rows for {key[:_SHOWN]!r}, and columns of boxes ({boxes}): use paucal "
            "detect, or give each image one row."
        )
    return UserError(
        f"{key[:_SHOWN]!r} is in {_lines_of(first, second)} with different labels or parts; keep one of the lines."
    )


def _lines_of(first: ListedImage, second: ListedImage) -> str:
    if first.file != second.file:
        return f"line {first.line} of {first.file} and line {second.line} of {second.file}"
    return f"lines {first.line} and {second.line} of {second.file}"


def _image_set(files: Mapping[str, Path], placed: _PlacedRows, labels: Labels, notes: Sequence[str]) -> ImageSet:
    """Return the images of all rows as one set, in the parts that the rows declare."""
    file, in_folders = next(iter(files.values())), len({path.parent for path in files.values()}) > 1
    name = part_name(file)
    title = (name.title or file.resolve().parent.name) if name.part == "train" else file.stem
    keys = [row.key for row in placed.rows]
    files_text = " and ".join(f"{path.parent.name}/{path.name}" if in_folders else path.name for path in files.values())
    return ImageSet(
        name=file.resolve().parent.parent.name if in_folders else title,
        location=str(placed.folder),
        classes=labels.classes,
        keys=keys,
        labels=labels.numbers,
        declared=[row.part for row in placed.rows],
        store=FileStore(placed.folder, keys),
        notes=(f"read from {files_text}", *notes, *placed.notes, *labels.notes),
        multi_hot=labels.multi_hot,
    )
