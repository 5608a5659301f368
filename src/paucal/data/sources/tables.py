"""Opens the images in the rows of a table (`image_path,label`) or a list file (`cat/1.jpg 0`, without a header)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.sources.folder import splits_from_folders
from paucal.data.sources.labels import (
    Labels,
    describe_separator,
    find_separator,
    is_missing,
    labels_from_indicators,
    labels_from_names,
    labels_in_lists,
    split_names,
)
from paucal.data.sources.locating import MAX_SHOWN, ListedImage, locate_images, plain_path
from paucal.data.sources.source import SourceOptions
from paucal.data.sources.table_columns import (
    FLAG_VALUES,
    TableColumns,
    find_columns,
    refuse_repeated_columns,
    repeated_column_message,
)
from paucal.data.sources.table_reading import LIST_SUFFIX, MAX_LIST_BYTES, TableRow, read_list, read_table
from paucal.data.splits.part_names import PART_BY_WORD, files_of_set, parse_part_name, select_train_files
from paucal.data.splits.split import held_out_part
from paucal.data.stores import FileStore
from paucal.reading import is_regular
from paucal.types import UserError
from paucal.wording import counted, was_or_were


class _LocatedRows(NamedTuple):
    """One row per image; `conflicts` has two rows that differ in an extra column, by table and column position."""

    rows: list[ListedImage]
    folder: Path
    notes: list[str]
    conflicts: dict[tuple[Path, int], tuple[ListedImage, ListedImage]]


def open_tables(files: dict[str, Path], options: SourceOptions) -> ImageSet:
    """Open the CSV, TSV or JSON-lines files of the splits of one set, as returned by `find_tables`.

    The first row is the header; if there is no header, the first two columns are the path and the class. Classes are
    numbered in lexicographic order over all tables. The `split.csv` of a run is also a supported table. If a cell has
    several class names (`cat;dog`), or each class has a column of 1 and 0 (`labels.py`), the set is multi-label.
    """
    rows, columns_by_file, notes = _read_tables(files, options)
    columns, is_multi_label, label_source = next(iter(columns_by_file.values())), False, ""
    if options.labelled and not columns.indicators:
        rows, is_multi_label, label_source = _split_label_cells(rows, options.separator, notes)
    if not rows:
        needed_text = "a path and a label" if options.labelled else "a path"
        raise UserError(f"{next(iter(files.values()))} has no row with {needed_text}; give a table of images.")
    located = _locate_rows(rows, options.root, columns.box_columns)
    parts = splits_from_folders([row.key for row in located.rows])
    if {"train"} < set(parts) and all(parts) and not any(row.part for row in located.rows):
        located = located._replace(rows=[row._replace(part=p) for row, p in zip(located.rows, parts, strict=True)])
        names = sorted({row.key.split("/")[0] for row in located.rows})
        located.notes.append(f"the splits are the folders of the images ({', '.join(names)})")
    if columns.box_columns:
        located.notes.append(f"only one label per image is read; the boxes ({columns.box_columns}) are not read")
    labels = Labels.unlabelled(len(located.rows))
    if columns.indicators:
        labels = labels_from_indicators(tuple(columns.classes), [row.indicators for row in located.rows])
    elif options.labelled:
        labels = labels_from_names([row.names for row in located.rows], is_multi_label, label_source)
    return _with_extra_columns(_image_set(files, located, labels, notes), located, columns_by_file)


def _with_extra_columns(images: ImageSet, located: _LocatedRows, columns: Mapping[Path, TableColumns]) -> ImageSet:
    """Return the set with the extra columns of all tables; columns that a table lacks are empty for its images."""
    names_of = {file: [columns.names[index] for index in columns.extra_columns] for file, columns in columns.items()}
    positions = {file: {name: n for n, name in enumerate(names)} for file, names in names_of.items()}
    problems: dict[str, str] = {}
    for (file, n), (first, second) in located.conflicts.items():
        name, lines = names_of[file][n], _describe_lines(first, second)
        different = f"with different cells in the column {name!r}; keep one of the lines."
        problems[name] = f"{first.key[:MAX_SHOWN]!r} is in {lines} {different}"
    for file, names in names_of.items():
        repeated = [name for name in names if names.count(name) > 1]
        problems |= {name: repeated_column_message(file, name) for name in repeated}
    cells = {
        name: [
            row.extra_cells[positions[row.file][name]] if name in positions[row.file] else "" for row in located.rows
        ]
        for name in dict.fromkeys(name for names in names_of.values() for name in names)
    }
    return replace(images, columns=cells, column_problems=problems)


def _read_tables(
    files: dict[str, Path], options: SourceOptions
) -> tuple[list[ListedImage], dict[Path, TableColumns], list[str]]:
    """Return the rows of all tables except those with the split "unused", the columns of each table, and notes."""
    used_rows: list[ListedImage] = []
    columns: dict[Path, TableColumns] = {}
    notes: list[str] = []
    for part, file in files.items():
        rows, columns[file] = _read_table(file, options, part, notes)
        first = next(iter(columns))
        if columns[file].classes != columns[first].classes:
            raise UserError(
                f"{file} and {first.name} have different columns of classes: give both tables the same columns."
            )
        used_rows += [row for row in rows if row.part != "unused"]
        if unused := sum(row.part == "unused" for row in rows):
            notes.append(f"{counted(unused, 'unused image')} of {file.name} {was_or_were(unused)} left out")
    return used_rows, columns, notes


def _read_table(
    file: Path, options: SourceOptions, part_of_file: str, notes: list[str]
) -> tuple[list[ListedImage], TableColumns]:
    """Return the rows and the columns of a table, and append notes for the user to `notes`."""
    try:
        rows, note = read_table(file)
    except FileNotFoundError:
        raise UserError(f"{file} does not exist; check the path.") from None
    if not rows:
        raise UserError(f"{file} is empty; expected a header such as 'image_path,label', then a row for each image.")
    width = len(rows[0].cells)
    for row in rows:
        if len(row.cells) < width or any(row.cells[width:]):
            raise UserError(
                f"line {row.line} of {file} has {counted(len(row.cells), 'cell')}, but the first line has {width}: "
                "correct the line, and put quotes around names that contain the separator."
            )
    columns = find_columns(file, rows, options)
    used_columns = [columns.image, columns.label, columns.split, *(column for column, _ in columns.flags)]
    named_columns = [index for index in used_columns if index is not None and columns.names]
    refuse_repeated_columns(file, columns.names, named_columns)
    notes += [text for text in (note, *columns.notes) if text]
    extra_columns, data_rows = columns.extra_columns, rows[bool(columns.names) :]
    return [_listed_image(file, row, columns, extra_columns, part_of_file) for row in data_rows], columns


def _listed_image(
    file: Path, row: TableRow, columns: TableColumns, extra_columns: Sequence[int], part_of_file: str
) -> ListedImage:
    """Return the image that a row describes; a split in the row takes precedence over the split of the file."""
    cells, path = row.cells, row.cells[columns.image]
    label = "" if columns.label is None else cells[columns.label]
    if not path:
        raise UserError(f"line {row.line} of {file} has no path: add the path of the image, or remove the line.")
    if "\n" in path or "\n" in label:
        raise UserError(
            f'line {row.line} of {file} has a quote (") that is closed only in a later line: close the quote in line '
            f"{row.line}."
        )
    part = part_of_file
    if columns.split is not None and (word := cells[columns.split].lower()):
        if word not in PART_BY_WORD and word != "unused":
            raise UserError(
                f"line {row.line} of {file} has the split {word[:MAX_SHOWN]!r}; expected train, val or test."
            )
        part = PART_BY_WORD.get(word, word)
    if columns.flags:
        part = next((part for column, part in columns.flags if FLAG_VALUES[cells[column].lower()]), "train")
    extra_cells, indicators = (
        tuple([cells[index] for index in indices]) for indices in (extra_columns, columns.indicators)
    )
    return ListedImage(plain_path(path), part, row.line, file, label, extra_cells, indicators)


def _split_label_cells(
    rows: list[ListedImage], user_separator: str | None, notes: list[str]
) -> tuple[list[ListedImage], bool, str]:
    """Return the labelled rows with class names, whether a row may have several, and a description of the separator."""
    cells = ["" if is_missing(row.label) else row.label for row in rows]
    lists = labels_in_lists(cells) if user_separator is None else None
    separator = "" if lists is not None else find_separator(cells, user_separator)
    names = [split_names(cell, separator) for cell in cells] if lists is None else lists
    # If cells may have several names, an empty cell means that the image is in no class; "nan" means an unknown label.
    has_label = [bool(cell) or bool(separator and not row.label) for cell, row in zip(cells, rows, strict=True)]
    rows = [row._replace(names=tuple(row_names)) for row, row_names in zip(rows, names, strict=True)]
    labelled_rows = list(compress(rows, has_label))
    is_multi_label = bool(separator) or any(len(row.names) != 1 for row in labelled_rows)
    if n_unlabelled := len(rows) - len(labelled_rows):
        unlabelled = compress(rows, np.logical_not(has_label))
        cells_text = ", ".join(sorted({row.label for row in unlabelled} - {""}))
        note = f"{counted(n_unlabelled, 'row')} without a label {was_or_were(n_unlabelled)} left out"
        notes.append(f"{note} ({cells_text})" if cells_text else note)
    source = "lists in cells" if lists is not None else describe_separator(cells, separator)
    return labelled_rows, is_multi_label, source


def open_list(file: Path, options: SourceOptions) -> ImageSet:
    """Open a list file, such as DomainNet's `real_train.txt`, with the lists of the other splits in the same folder.

    Each line has a path, which may contain spaces, and a class number. A train list is opened with the val and test
    lists of the same name, and each list is a split. Any other list is opened alone, and defines no split. Labels are
    numbered over all lists, so they do not depend on classes that are missing in a split. If each class has its own
    folder of images, classes are named after the folders; otherwise the class numbers are the names.
    """
    lists = files_of_set(file, lambda other: True, "lists")
    rows: list[ListedImage] = []
    notes: list[str] = []
    for part, path in lists.items():
        list_rows, note = read_list(path, options.labelled)
        notes += [note] if note else []
        rows += [ListedImage(row.cells[0], part, row.line, path, names=(row.cells[1],)) for row in list_rows]
    located = _locate_rows(rows, options.root)
    labels = Labels.unlabelled(len(located.rows))
    if options.labelled:
        numbers, positions = np.unique([int(row.names[0]) for row in located.rows], return_inverse=True)
        folders: dict[str, set[str]] = {}  # names of the folders of the images, by class number
        for row in located.rows:
            folders.setdefault(row.names[0], set()).add(row.key.rpartition("/")[0].rpartition("/")[2])
        names = [name for number in numbers.tolist() for name in folders[str(number)]]
        has_folder_per_class = "" not in names and len(names) == len(set(names)) == len(numbers)
        classes = tuple(names) if has_folder_per_class else tuple(map(str, numbers.tolist()))
        labels = Labels(classes, positions.astype(np.int64))
    return _image_set(lists, located, labels, notes)


def find_train_list(folder: Path, root: Path | None = None) -> Path | None:
    """Return the train list in a folder (`real_train.txt`), whose first image must exist; None without such a list."""
    lists = select_train_files([file for file in sorted(folder.glob(f"[!.]*{LIST_SUFFIX}")) if _is_list(file, root)])
    if len(lists) > 1:
        names = ", ".join(file.name for file in lists)
        raise UserError(f"{folder} has lists of several data sets ({names}): give one list, such as {lists[0]}.")
    return lists[0] if lists else None


def _is_list(file: Path, root: Path | None, labelled: bool = True) -> bool:
    """Return whether a file is a list that is named after a split, and the first image in the list exists."""
    part = parse_part_name(file).part
    if not part or not is_regular(file) or file.stat().st_size > MAX_LIST_BYTES:
        return False
    try:
        rows = read_list(file, labelled, max_rows=1).rows
        return bool(locate_images([ListedImage(row.cells[0], part, row.line, file) for row in rows], root))
    except UserError:
        return False


def hold_out_listed_images(images: ImageSet, folder: Path, root: Path | None = None) -> ImageSet:
    """Return an unlabelled set in which the images in the test lists of the folder are test images.

    Without a test list, the val list is used, as in `make_split`. The test lists of all sets in the folder are used,
    since a later run may be trained on any of them.
    """
    lists = [file for file in sorted(folder.glob(f"[!.]*{LIST_SUFFIX}")) if _is_list(file, root, False)]
    names = {file: parse_part_name(file) for file in lists}
    parts: dict[tuple[str, ...], set[str]] = {}
    for name in names.values():
        parts.setdefault(name.other_words, {""}).add(name.part)  # "" is the split of images that are in no list
    test_lists = [file for file, name in names.items() if name.part == held_out_part(parts[name.other_words])]
    if not test_lists:
        return images
    folder_prefix = f"{folder.resolve()}/"
    held_out_keys: set[str] = set()
    for file in test_lists:
        rows = read_list(file, labelled=False).rows
        located = locate_images([ListedImage(row.cells[0], names[file].part, row.line, file) for row in rows], root)
        held_out_keys.update(f"{located.folder}/{key}".removeprefix(folder_prefix) for key in located.keys)
    held_out = held_out_part(images.declared_splits)
    keys_and_parts = zip(images.keys, images.declared_splits, strict=True)
    declared = ["test" if key in held_out_keys or (part and part == held_out) else part for key, part in keys_and_parts]
    note = f"images of {' and '.join(file.name for file in test_lists)} are test images"
    return replace(images, declared_splits=declared, notes=(*images.notes, note))


def _locate_rows(rows: Sequence[ListedImage], root: Path | None, boxes: str = "") -> _LocatedRows:
    """Find the image file of each row, and leave out rows that repeat an earlier row; `boxes` names box columns."""
    located = locate_images(rows, root)
    row_of_key: dict[str, ListedImage] = {}
    conflicts: dict[tuple[Path, int], tuple[ListedImage, ListedImage]] = {}
    for row, key in zip(rows, located.keys, strict=True):
        first = row_of_key.setdefault(key, row._replace(key=key))
        if (first.names, first.indicators, first.part) != (row.names, row.indicators, row.part):
            shown_key = repr(key[:MAX_SHOWN])
            if boxes:
                raise UserError(
                    f"{row.file} has several rows for {shown_key}, and has columns of boxes ({boxes}): use paucal "
                    "detect, or give each image one row."
                )
            raise UserError(
                f"{shown_key} is in {_describe_lines(first, row)} with different labels or splits; keep one of the "
                "lines."
            )
        if first.extra_cells != row.extra_cells and first.file == row.file:
            cells = zip(first.extra_cells, row.extra_cells, strict=True)
            conflicts |= {(row.file, n): (first, row) for n, (cell, other) in enumerate(cells) if cell != other}
    notes = list(located.notes)
    if repeated := len(rows) - len(row_of_key):
        notes.append(f"{counted(repeated, 'repeated row')} of {rows[0].file.name} {was_or_were(repeated)} left out")
    return _LocatedRows(list(row_of_key.values()), located.folder, notes, conflicts)


def _describe_lines(first: ListedImage, second: ListedImage) -> str:
    if first.file != second.file:
        return f"line {first.line} of {first.file} and line {second.line} of {second.file}"
    return f"lines {first.line} and {second.line} of {second.file}"


def _image_set(files: Mapping[str, Path], located: _LocatedRows, labels: Labels, notes: Sequence[str]) -> ImageSet:
    file = next(iter(files.values()))
    has_split_folders = len({path.parent for path in files.values()}) > 1  # each split has its own folder with a table
    name = parse_part_name(file)
    title = (name.title or file.resolve().parent.name) if name.part == "train" else file.stem
    keys = [row.key for row in located.rows]
    shown_files = [f"{path.parent.name}/{path.name}" if has_split_folders else path.name for path in files.values()]
    return ImageSet(
        name=file.resolve().parent.parent.name if has_split_folders else title,
        location=str(located.folder),
        classes=labels.classes,
        keys=keys,
        labels=labels.class_numbers,
        declared_splits=[row.part for row in located.rows],
        store=FileStore(located.folder, keys),
        notes=(f"read from {' and '.join(shown_files)}", *notes, *located.notes, *labels.notes),
        multi_hot=labels.multi_hot,
    )
