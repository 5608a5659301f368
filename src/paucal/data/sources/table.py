"""Tables: CSV, TSV and JSON lines with a row for each image, such as `image_path,label` with an optional `split`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.part_names import PARTS
from paucal.data.sources.folder import parts_of
from paucal.data.sources.locating import ListedPath, plain_path
from paucal.data.sources.options import SourceOptions
from paucal.data.sources.placed_rows import Row, images_of_rows, place_rows
from paucal.data.sources.several_labels import (
    Labels,
    cells_of_lists,
    divided,
    found_separator,
    from_columns,
    from_names,
    is_missing,
    separator_words,
)
from paucal.data.sources.table_columns import FLAGS, Columns, find_columns
from paucal.data.sources.table_rows import TableRow, read_table
from paucal.types import UserError
from paucal.wording import counted, was

_SHOWN = 80


class _Rows(NamedTuple):
    """The rows of tables, the columns of each table, and what there is to say about them."""

    rows: list[Row]
    columns: list[Columns]
    notes: list[str]


def open_tables(files: dict[str, Path], options: SourceOptions) -> ImageSet:
    """Open CSV or TSV files or JSON lines of the parts of one set.

    The first row names the columns; without such a row the first two columns are the path and the class. Classes are
    numbered in lexicographic order over all tables. The `split.csv` of a run is such a table as well. Images may have
    several labels, or none, where a cell names several (`cat;dog`) or where each class has a column of 1 and 0:
    `several_labels.py`.

    Args:
        files: Table of each part, as `table_files.py` finds them; "" for one on its own.
        options: How they are opened.

    Raises:
        UserError: There are no such columns, a path leads out of the root, an image is in two rows that differ, a part
            has no known name, or the images are not there.
    """
    first = next(iter(files.values()))
    found = _collect(files, options)
    kept, several, where = _with_names(found, options)
    if not kept.rows:
        raise UserError(f"{first} has no row with a path{' and a label' * options.labelled}; give a table of images")
    columns = kept.columns[0]
    placed = place_rows(kept.rows, options.root, columns.boxes)
    rows, told = _with_parts_of_folders(placed.rows)
    told += [f"the boxes ({columns.boxes}) are not read: each image has one label here"] if columns.boxes else []
    labels = Labels((), np.full(len(rows), -1, dtype=np.int64))
    if columns.marks:
        labels = from_columns(tuple(_marked(columns)), [row.marks for row in rows])
    elif options.labelled:
        labels = from_names([row.names for row in rows], several, where)
    images = images_of_rows(files, placed._replace(rows=rows, notes=[*placed.notes, *told]), labels, kept.notes)
    return replace(images, columns=_other_columns(kept.columns, rows))


def _collect(files: dict[str, Path], options: SourceOptions) -> _Rows:
    """Return the rows of all tables but those that are marked as unused."""
    found = _Rows([], [], [])
    for part, file in files.items():
        rows, columns = _read(file, options, part, found.notes)
        if found.columns and _marked(columns) != _marked(found.columns[0]):
            raise UserError(
                f"{file} has other columns of classes than {next(iter(files.values())).name}: give both the same"
            )
        found.rows.extend(row for row in rows if row.listed.part != "unused")
        found.columns.append(columns)
        if unused := sum(row.listed.part == "unused" for row in rows):
            found.notes.append(f"{counted(unused, 'unused image')} of {file.name} {was(unused)} left out")
    return found


def _marked(columns: Columns) -> list[str]:
    return [columns.names[place] for place in columns.marks]


def _read(file: Path, options: SourceOptions, own_part: str, notes: list[str]) -> tuple[list[Row], Columns]:
    try:
        rows, note = read_table(file)
    except FileNotFoundError:
        raise UserError(f"{file} does not exist; check the path") from None
    if not rows:
        raise UserError(f"{file} is empty; expected a row of names such as 'image_path,label', then a row per image")
    width = len(rows[0].cells)
    for row in rows:
        if len(row.cells) < width or any(row.cells[width:]):
            raise UserError(
                f"line {row.line} of {file} has {len(row.cells)} cells and the first {width}: correct it, and put "
                "quotes around a name that holds the separator."
            )
    columns = find_columns(file, rows, options.labelled, options.image_column, options.label_column)
    notes += [text for text in (note, *columns.notes) if text]
    others = columns.others
    return [_row(file, row, columns, others, own_part) for row in rows[1 if columns.names else 0 :]], columns


def _row(file: Path, row: TableRow, columns: Columns, others: Sequence[int], own_part: str) -> Row:
    cells, path = row.cells, row.cells[columns.image]
    label = "" if columns.label is None else cells[columns.label]
    if not path:
        raise UserError(f"line {row.line} of {file} has no path: give one, or remove the line")
    if "\n" in path or "\n" in label:
        raise UserError(f'line {row.line} of {file} has a quote (") that is closed lines later: close it in its line.')
    part = own_part
    if columns.split is not None and (word := cells[columns.split].lower()):
        if word not in PARTS and word != "unused":
            raise UserError(f"line {row.line} of {file} has the part {word[:_SHOWN]!r}; expected train, val or test")
        part = PARTS.get(word, word)
    if columns.flags:
        part = next((part for place, part in columns.flags if FLAGS[cells[place].lower()]), "train")
    further, marks = (tuple([cells[place] for place in places]) for places in (others, columns.marks))
    return Row(ListedPath(plain_path(path), part, row.line, file), label, further, marks)


def _with_names(found: _Rows, options: SourceOptions) -> tuple[_Rows, bool, str]:
    """Return the rows that have a label, with its names; whether they may have several; and how these are told."""
    if not options.labelled or found.columns[0].marks:
        return found, True, ""
    cells = ["" if is_missing(row.label) else row.label for row in found.rows]
    lists = cells_of_lists(cells) if options.separator is None else None
    separator = "" if lists is not None else found_separator(cells, options.separator)
    names = [divided(cell, separator) for cell in cells] if lists is None else lists
    # Beside cells of several names an empty one is of none of them; of one that says "nan" nothing is known.
    told = [bool(cell) or bool(separator and not row.label) for cell, row in zip(cells, found.rows, strict=True)]
    several = bool(separator) or any(len(some) != 1 for some, there in zip(names, told, strict=True) if there)
    rows = [row._replace(names=tuple(n)) for row, n, there in zip(found.rows, names, told, strict=True) if there]
    notes = found.notes
    if bare := len(told) - len(rows):
        shown = ", ".join(sorted({row.label for row, there in zip(found.rows, told, strict=True) if not there} - {""}))
        notes = [*notes, f"{counted(bare, 'row')} without a label {was(bare)} left out{f' ({shown})' if shown else ''}"]
    where = "lists in cells" if lists is not None else separator_words(cells, separator)
    return _Rows(rows, found.columns, notes), several, where


def _with_parts_of_folders(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Return rows with their parts: those of the tables, else those of the folders of all images, with a note."""
    keys = [row.key for row in rows]
    folders = parts_of(keys)
    if any(row.listed.part for row in rows) or not all(folders) or not {"train"} < set(folders):
        return rows, []
    rows = [row._replace(listed=row.listed._replace(part=part)) for row, part in zip(rows, folders, strict=True)]
    return rows, [f"the parts are the folders of the images ({', '.join(sorted({k.split('/')[0] for k in keys}))})"]


def _other_columns(columns: Sequence[Columns], rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the further columns; none where the tables of the parts differ in them."""
    names = {tuple(one.names[place] for place in one.others) for one in columns}
    if len(names) != 1:
        return {}
    return {name: [row.others[place] for row in rows] for place, name in enumerate(names.pop())}
