"""Tables: CSV and TSV files with a row for each image, such as `image_path,label` with an optional `split`."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PureWindowsPath

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.sources.folder import IMAGE_SUFFIXES, PARTS
from paucal.data.sources.several_labels import Labels, class_columns, found_separator, from_cells, from_columns
from paucal.data.sources.stores import FileStore
from paucal.reading import is_regular, read_text
from paucal.types import UserError
from paucal.wording import counted, was

TABLE_SUFFIXES = (".csv", ".tsv")
MOST_BYTES = 512 << 20
MOST_COLUMNS = 16  # kept beside path, class and part
IMAGE_COLUMNS = (
    *("image_path", "image", "path", "file_name", "filename", "file", "filepath", "img_path", "img", "image_id"),
    *("image_name", "imageid", "id", "key"),
)
LABEL_COLUMNS = ("label", "labels", "class", "class_name", "classname", "category", "target", "y", "species", "breed")
SPLIT_COLUMNS = ("split", "part", "subset", "set")
OF_A_RUN = ["key", "label", "class", "split"]  # split.csv: its labels are numbers, its classes names
_NAME = re.compile(rf"(?:(?P<set>.*)[-_.])?(?P<part>{'|'.join(PARTS)})", re.IGNORECASE)
_SHOWN = 80
_LOOKED_AT = 21  # rows that tell whether a file is a table with a column for each class
_DELIMITERS = ",;\t"


@dataclass(frozen=True)
class _Row:
    """One image: its path as the table has it, its class ("" for none), its part, its line, and the other cells.

    Where each class has a column, `marks` has its cells.
    """

    path: str
    label: str
    part: str
    line: int
    others: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Columns:
    """Positions of the columns, None for those that are not there; those of one class each; and the names of all."""

    image: int
    label: int | None
    split: int | None
    names: tuple[str, ...] = ()
    marks: tuple[int, ...] = ()

    @property
    def others(self) -> list[int]:
        """Positions of a few columns that are neither path nor part, such as that of a patient."""
        known = (self.image, self.split, *self.marks)
        found = [place for place in range(len(self.names)) if place not in known]
        return found[:MOST_COLUMNS]


def open_table(
    file: Path,
    labelled: bool = True,
    root: Path | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    separator: str | None = None,
) -> ImageSet:
    """Open a CSV or TSV file, with those of the other parts beside it.

    The first row names the columns; without such a row the first two columns are the path and the class. A table called
    like a train part (`train.csv`, `birds_train.csv`) is opened together with those of val and test of the same name
    beside it, unless it has a column for the parts of its own. Classes are numbered in lexicographic order over all of
    them. The `split.csv` of a run does as well. Images may have several labels, or none, where a cell names several
    (`cat;dog`) or where each class has a column of 1 and 0: `several_labels.py`.

    Args:
        file: the table.
        labelled: False takes the paths alone.
        root: folder that the paths are relative to; None for the folder of the table, the one above, or a folder
            `images` (or of another name, where it is the only one) beside it, whichever has the first image.
        image_column: the column of the paths; None finds it.
        label_column: the column of the classes; None finds it.
        separator: what stands between several labels in a cell, "none" for one label in each; None finds out.

    Raises:
        UserError: there are no such columns, a path leads out of the root, an image is in two rows that differ, a part
            has no known name, or the first image is not there.
    """
    rows, names, marked = _collected(file, labelled, image_column, label_column)
    rows, notes = _used(rows, file)
    separator = found_separator([row.label for row in rows], separator)
    if labelled and not marked and not separator:
        bare = [row for row in rows if not row.label]
        rows = [row for row in rows if row.label]
        notes += [f"{counted(len(bare), 'row')} without a label {was(len(bare))} left out"] if bare else []
    if not rows:
        raise UserError(f"{file} has no row with a path{' and a label' * labelled}; give a table of images")
    folder, keys = _located(file, rows, root)
    labels = _labels_of(rows, marked, labelled, separator)
    return ImageSet(
        name=_set_name(file),
        location=str(folder),
        classes=labels.classes,
        keys=keys,
        labels=labels.numbers,
        declared=[row.part for row in rows],
        store=FileStore(folder, keys),
        notes=(f"read from {file.name}", *notes, *labels.notes),
        columns=_other_columns(names, rows),
        multi_hot=labels.multi_hot,
    )


def _collected(
    file: Path, labelled: bool, image_column: str | None, label_column: str | None
) -> tuple[list[_Row], list[tuple[str, ...]], tuple[str, ...]]:
    """Return the rows of a table and of those of the other parts, the further columns of each, and those of classes."""
    rows: list[_Row] = []
    names: list[tuple[str, ...]] = []
    marked: tuple[str, ...] | None = None
    for part, one in _together(file).items():
        found, columns = _read(one, labelled, image_column, label_column, part)
        rows, names = [*rows, *found], [*names, tuple(columns.names[place] for place in columns.others)]
        own = tuple(columns.names[place] for place in columns.marks)
        if marked not in (None, own):
            raise UserError(f"{one} has other columns of classes than {file.name}: give both the same")
        marked = own
    return rows, names, marked or ()


def _used(rows: Sequence[_Row], file: Path) -> tuple[list[_Row], list[str]]:
    """Return the rows without those that repeat another or are marked as unused, and notes about these."""
    kept, repeated = _without_repetitions(rows, file)
    unused = sum(row.part == "unused" for row in kept)
    notes = [f"{counted(repeated, 'row')} of {file.name} repeat an earlier one"] if repeated else []
    notes += [f"{counted(unused, 'unused image')} of {file.name} {was(unused)} left out"] if unused else []
    return [row for row in kept if row.part != "unused"], notes


def _labels_of(rows: Sequence[_Row], marked: tuple[str, ...], labelled: bool, separator: str) -> Labels:
    if marked:
        return from_columns(marked, [row.marks for row in rows])
    if labelled:
        return from_cells([row.label for row in rows], separator)
    return Labels((), np.full(len(rows), -1, dtype=np.int64))


def _other_columns(names: Sequence[tuple[str, ...]], rows: Sequence[_Row]) -> dict[str, list[str]]:
    """Return the further columns; none where the tables of the parts differ in them."""
    if len(set(names)) != 1:
        return {}
    return {name: [row.others[place] for row in rows] for place, name in enumerate(names[0])}


def find_table(folder: Path) -> Path | None:
    """Return the table that describes the images of a folder: the train one, or the only one with a path and a class.

    Raises:
        UserError: there are several; one has to be named.
    """
    found = [file for file in sorted(folder.iterdir()) if file.suffix.lower() in TABLE_SUFFIXES and _is_table(file)]
    named = [file for file in found if _part(file)]
    others = [file for file in found if not _part(file)] or [file for file in named if _part(file) == "train"]
    if len(others) > 1:
        names = ", ".join(file.name for file in others)
        raise UserError(f"{folder} has several tables of images ({names}); name one of them, such as {others[0]}")
    return others[0] if others else None


def _part(file: Path) -> str:
    match = _NAME.fullmatch(file.stem)
    return PARTS[match["part"].lower()] if match else ""


def _set_name(file: Path) -> str:
    match = _NAME.fullmatch(file.stem)
    return (match["set"] or file.resolve().parent.name) if match and _part(file) == "train" else file.stem


def _together(file: Path) -> dict[str, Path]:
    """Return the tables to open by part; "" for a table on its own."""
    match = _NAME.fullmatch(file.stem)
    if match is None or _part(file) != "train":
        return {"": file}
    found = {"train": file}
    for other in sorted(file.parent.iterdir()):
        same = _NAME.fullmatch(other.stem)
        if other.suffix.lower() != file.suffix.lower() or same is None or same["set"] != match["set"] or other == file:
            continue
        if _part(other) in found:
            raise UserError(f"{other} and {found[_part(other)].name} are both tables of {_part(other)}; keep one")
        if _is_table(other):  # the test table of a competition has no labels
            found[_part(other)] = other
    return found if len(found) > 1 else {"": file}


def _is_table(file: Path) -> bool:
    """Whether a file has columns for paths and classes by their names, or by its first rows a column for each class."""
    try:
        if not is_regular(file) or file.stat().st_size > MOST_BYTES:
            return False
        first, *rows = islice(_cells(file), _LOOKED_AT)
    except (OSError, UserError, UnicodeDecodeError, csv.Error, ValueError):
        return False
    names = [name.strip().lower() for name in first]
    image = _first(names, IMAGE_COLUMNS)
    if image is None:
        return False
    known = (image, _first(names, SPLIT_COLUMNS))
    return bool(set(names) & set(LABEL_COLUMNS)) or bool(class_columns([r for r in rows if any(r)], len(names), known))


def _cells(file: Path) -> Iterable[list[str]]:
    text = read_text(file, MOST_BYTES, encoding="utf-8-sig", errors="surrogateescape")
    first = text[: text.find("\n")] if "\n" in text else text
    delimiter = "\t" if file.suffix.lower() == ".tsv" else max(_DELIMITERS, key=first.count)
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)


def _read(
    file: Path, labelled: bool, image_column: str | None, label_column: str | None, own_part: str
) -> tuple[list[_Row], _Columns]:
    try:
        lines = [(number, row) for number, row in enumerate(_cells(file), start=1) if any(cell.strip() for cell in row)]
    except FileNotFoundError:
        raise UserError(f"{file} does not exist; check the path") from None
    except csv.Error as problem:
        raise UserError(f"{file} cannot be read as a table ({problem}); save it as CSV again") from None
    if not lines:
        raise UserError(f"{file} is empty; expected a row of names such as 'image_path,label', then a row per image")
    names = lines[0][1]
    for number, cells in lines:
        if len(cells) < len(names):
            raise UserError(f"line {number} of {file} has {len(cells)} cells and the first {len(names)}: correct it")
    cells = [row for _, row in lines]
    columns, header = _columns(file, cells, labelled, image_column, label_column)
    return [_row(file, number, row, columns, own_part) for number, row in lines[header:]], columns


def _row(file: Path, number: int, cells: Sequence[str], columns: _Columns, own_part: str) -> _Row:
    path = cells[columns.image].strip().replace("\\", "/")
    if not path:
        raise UserError(f"line {number} of {file} has no path: give one, or remove the line")
    label = "" if columns.label is None else cells[columns.label].strip()
    part = own_part
    if columns.split is not None and (word := cells[columns.split].strip().lower()):
        if word not in PARTS and word != "unused":
            raise UserError(f"line {number} of {file} has the part {word[:_SHOWN]!r}; expected train, val or test")
        part = PARTS.get(word, word)
    others, marks = (tuple(cells[place].strip() for place in places) for places in (columns.others, columns.marks))
    return _Row(re.sub(r"/(\./|/)+", "/", path.removeprefix("./")), label, part, number, others, marks)


def _columns(
    file: Path, cells: Sequence[Sequence[str]], labelled: bool, image_column: str | None, label_column: str | None
) -> tuple[_Columns, int]:
    """Return the columns, and how many rows name them: 1 or 0."""
    first = cells[0]
    names = [name.strip() for name in first]
    small = [name.lower() for name in names]
    if first[0].lower().endswith(IMAGE_SUFFIXES) and not (image_column or label_column):
        return _Columns(0, 1 if len(first) > 1 and labelled else None, None), 0
    image = _position(file, names, image_column, "--image-column") if image_column else _first(small, IMAGE_COLUMNS)
    if names == OF_A_RUN and label_column is None:
        label_column = "class"
    label = _position(file, names, label_column, "--label-column") if label_column else _first(small, LABEL_COLUMNS)
    shown = ", ".join(repr(name[:_SHOWN]) for name in names[:12])
    if image is None:
        raise UserError(
            f"{file} has no column of paths that is known (its columns: {shown}): name it by --image-column"
        )
    split = _first(small, SPLIT_COLUMNS)
    if label is not None or not labelled:
        return _Columns(image, label if labelled else None, split, tuple(names)), 1
    marks = class_columns(cells[1:], len(names), (image, split))
    if not marks:
        raise UserError(
            f"{file} has no column of classes that is known, and no column of 1 and 0 for each class (its columns: "
            f"{shown}): name it by --label-column"
        )
    return _Columns(image, None, split, tuple(names), marks), 1


def _position(file: Path, names: Sequence[str], wanted: str, flag: str) -> int:
    if wanted not in names:
        shown = ", ".join(repr(name[:_SHOWN]) for name in names[:12])
        raise UserError(f"{flag}: {file} has no column {wanted!r}; it has {shown}")
    return list(names).index(wanted)


def _first(names: Sequence[str], known: Sequence[str]) -> int | None:
    return next((names.index(name) for name in known if name in names), None)


def _without_repetitions(rows: Sequence[_Row], file: Path) -> tuple[list[_Row], int]:
    seen: dict[str, _Row] = {}
    for row in rows:
        other = seen.setdefault(row.path, row)
        if (other.label, other.marks, other.part) != (row.label, row.marks, row.part):
            raise UserError(
                f"{row.path[:_SHOWN]!r} is in lines {other.line} and {row.line} of {file} with different labels or "
                "parts; keep one of the lines"
            )
    return list(seen.values()), len(rows) - len(seen)


def _located(file: Path, rows: Sequence[_Row], root: Path | None) -> tuple[Path, list[str]]:
    """Return the folder of the images, and their paths relative to it; an ending that all lack is added."""
    candidates = _candidates(file, root)
    for folder in candidates:
        for ending in ("", *IMAGE_SUFFIXES):
            if is_regular(folder / (_relative(rows[0], folder, file, refuse=False) + ending)):
                keys = [_relative(row, folder, file) for row in rows]
                return folder, [f"{key}{ending}" for key in keys]
    _relative(rows[0], candidates[0], file)  # where that is what is wrong, say so
    searched = " nor in ".join(map(str, candidates))
    raise UserError(
        f"{rows[0].path[:_SHOWN]!r}, the first image of {file}, is not in {searched}; "
        "name the folder that the paths begin in with --data-root"
    )


def _candidates(file: Path, root: Path | None) -> list[Path]:
    if root is not None:
        return [root.resolve()]
    here = file.resolve().parent
    below = sorted(entry for entry in here.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    named = [entry for entry in below if entry.name.lower() in ("images", "image", "imgs", "train", file.stem.lower())]
    return list(dict.fromkeys([here, here.parent, *named, *(below if len(below) == 1 else ())]))


def _relative(row: _Row, folder: Path, file: Path, refuse: bool = True) -> str:
    """Return a path relative to the folder of the images; one that lies elsewhere is refused, or kept as it is."""
    path, inside = row.path, f"{folder.as_posix()}/"
    if path.startswith(inside):
        path = path.removeprefix(inside)
    if refuse and (path.startswith("/") or PureWindowsPath(path).drive or ".." in path.split("/") or "\0" in path):
        raise UserError(
            f"line {row.line} of {file} leads out of the folder of the images ({row.path[:_SHOWN]!r}); give paths "
            "relative to one folder, and name it with --data-root"
        )
    return path
