"""Tables: CSV, TSV and JSON lines with a row for each image, such as `image_path,label` with an optional `split`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.part_names import PARTS
from paucal.data.sources.folder import parts_of
from paucal.data.sources.locating import ListedPath, locate, plain_path
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
from paucal.data.sources.stores import FileStore
from paucal.data.sources.table_columns import FLAGS, Columns, find_columns
from paucal.data.sources.table_files import set_name, together
from paucal.data.sources.table_rows import TableRow, read_table
from paucal.types import UserError
from paucal.wording import counted, was

_SHOWN = 80


@dataclass(frozen=True)
class _Asked:
    """How tables are opened; see `open_table`."""

    labelled: bool = True
    root: Path | None = None
    image_column: str | None = None
    label_column: str | None = None
    separator: str | None = None


class _Row(NamedTuple):
    """One image: where the table says it is, the cell of its class, and the other cells.

    Where each class has a column, `marks` has its cells. `names` are its classes, and `key` the path of its file, as
    soon as they are known.
    """

    listed: ListedPath
    label: str
    others: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    key: str = ""


class _Rows(NamedTuple):
    """The rows of tables, the columns of each table, and what there is to say about them."""

    rows: list[_Row]
    columns: list[Columns]
    notes: list[str]


def open_table(
    file: Path,
    labelled: bool = True,
    root: Path | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    separator: str | None = None,
) -> ImageSet:
    """Open a CSV or TSV file or JSON lines, with those of the other parts beside it.

    The first row names the columns; without such a row the first two columns are the path and the class. A table called
    like a train part (`train.csv`, `birds_train.csv`) is opened together with those of val and test of the same name
    beside it, unless it has a column for the parts of its own. Classes are numbered in lexicographic order over all of
    them. The `split.csv` of a run does as well. Images may have several labels, or none, where a cell names several
    (`cat;dog`) or where each class has a column of 1 and 0: `several_labels.py`.

    Args:
        file: the table.
        labelled: False takes the paths alone.
        root: folder that the paths are relative to; None for the folder of the table, the one above, or a folder
            `images` (or of another name, where it is the only one) beside it, whichever has the images; those of a part
            may be in a folder of its name.
        image_column: the column of the paths; None finds it.
        label_column: the column of the classes; None finds it.
        separator: what stands between several labels in a cell, "none" for one label in each; None finds out.

    Raises:
        UserError: there are no such columns, a path leads out of the root, an image is in two rows that differ, a part
            has no known name, or the images are not there.
    """
    return open_tables(
        together(file, (image_column, label_column)), labelled, root, image_column, label_column, separator
    )


def open_tables(
    files: dict[str, Path],
    labelled: bool = True,
    root: Path | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    separator: str | None = None,
) -> ImageSet:
    """Open the tables of several parts as one set; see `open_table`.

    Args:
        files: Table of each part; "" for one on its own.
        labelled: As in `open_table`.
        root: As in `open_table`.
        image_column: As in `open_table`.
        label_column: As in `open_table`.
        separator: As in `open_table`.

    Raises:
        UserError: As in `open_table`.
    """
    asked = _Asked(labelled, root, image_column, label_column, separator)
    first = next(iter(files.values()))
    found = _collect(files, asked)
    kept, several, where = _with_names(found, asked)
    if not kept.rows:
        raise UserError(f"{first} has no row with a path{' and a label' * labelled}; give a table of images")
    place = locate([row.listed for row in kept.rows], root)
    rows = [row._replace(key=key) for row, key in zip(kept.rows, place.keys, strict=True)]
    rows, repeated = _without_repetitions(rows, kept.columns[0].boxes)
    keys = [row.key for row in rows]
    declared, told = _parts_of_rows([row.listed.part for row in rows], keys)
    marked = tuple(kept.columns[0].names[place] for place in kept.columns[0].marks)
    labels = Labels((), np.full(len(rows), -1, dtype=np.int64))
    if marked:
        labels = from_columns(marked, [row.marks for row in rows])
    elif labelled:
        labels = from_names([row.names for row in rows], several, where)
    apart = len({file.parent for file in files.values()}) > 1
    read = " and ".join(f"{file.parent.name}/{file.name}" if apart else file.name for file in files.values())
    return ImageSet(
        name=set_name(files),
        location=str(place.folder),
        classes=labels.classes,
        keys=keys,
        labels=labels.numbers,
        declared=declared,
        store=FileStore(place.folder, keys),
        notes=(f"read from {read}", *kept.notes, *place.notes, *told, *repeated, *labels.notes),
        columns=_other_columns(kept.columns, rows),
        multi_hot=labels.multi_hot,
    )


def _collect(files: dict[str, Path], asked: _Asked) -> _Rows:
    """Return the rows of all tables but those that are marked as unused."""
    found = _Rows([], [], [])
    for part, file in files.items():
        rows, columns = _read(file, asked, part, found.notes)
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


def _read(file: Path, asked: _Asked, own_part: str, notes: list[str]) -> tuple[list[_Row], Columns]:
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
    columns = find_columns(file, rows, asked.labelled, asked.image_column, asked.label_column)
    notes += [text for text in (note, *columns.notes) if text]
    others = columns.others
    return [_row(file, row, columns, others, own_part) for row in rows[1 if columns.names else 0 :]], columns


def _row(file: Path, row: TableRow, columns: Columns, others: Sequence[int], own_part: str) -> _Row:
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
    return _Row(ListedPath(plain_path(path), part, row.line, file), label, further, marks)


def _with_names(found: _Rows, asked: _Asked) -> tuple[_Rows, bool, str]:
    """Return the rows that have a label, with its names; whether they may have several; and how these are told."""
    if not asked.labelled or found.columns[0].marks:
        return found, True, ""
    cells = ["" if is_missing(row.label) else row.label for row in found.rows]
    lists = cells_of_lists(cells) if asked.separator is None else None
    separator = "" if lists is not None else found_separator(cells, asked.separator)
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


def _without_repetitions(rows: Sequence[_Row], boxes: str) -> tuple[list[_Row], list[str]]:
    """Return the rows without those that repeat another, and a note on these.

    Raises:
        UserError: Rows of one image differ.
    """
    seen: dict[str, _Row] = {}
    for row in rows:
        other = seen.setdefault(row.key, row)
        if (other.names, other.marks, other.listed.part) != (row.names, row.marks, row.listed.part):
            first, second = other.listed, row.listed
            if boxes:
                raise UserError(
                    f"{second.file} has several rows for {row.key[:_SHOWN]!r}, and columns of boxes ({boxes}): paucal "
                    "detect learns boxes; to classify, give each image one row."
                )
            lines = f"lines {first.line} and {second.line} of {second.file}"
            if first.file != second.file:
                lines = f"line {first.line} of {first.file} and line {second.line} of {second.file}"
            raise UserError(f"{row.key[:_SHOWN]!r} is in {lines} with different labels or parts; keep one of the lines")
    repeated = len(rows) - len(seen)
    notes = [f"{counted(repeated, 'row')} of {rows[0].listed.file.name} repeat an earlier one"] if repeated else []
    notes += [f"the boxes ({boxes}) are not read: each image has one label here"] if boxes else []
    return list(seen.values()), notes


def _parts_of_rows(declared: list[str], keys: list[str]) -> tuple[list[str], list[str]]:
    """Return the parts that the tables tell, else those of the folders that all images lie in, and a note on these."""
    folders = parts_of(keys)
    if any(declared) or not all(folders) or not {"train"} < set(folders):
        return declared, []
    return folders, [f"the parts are the folders of the images ({', '.join(sorted({k.split('/')[0] for k in keys}))})"]


def _other_columns(columns: Sequence[Columns], rows: Sequence[_Row]) -> dict[str, list[str]]:
    """Return the further columns; none where the tables of the parts differ in them."""
    names = {tuple(one.names[place] for place in one.others) for one in columns}
    if len(names) != 1:
        return {}
    return {name: [row.others[place] for row in rows] for place, name in enumerate(names.pop())}
