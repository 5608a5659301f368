"""Images from the rows of tables and lists: where they lie, which rows repeat another, and the set that they are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from paucal.data.images import ImageSet
from paucal.data.part_names import part_name
from paucal.data.sources.locating import ListedPath, locate
from paucal.data.sources.several_labels import Labels
from paucal.data.sources.stores import FileStore
from paucal.types import UserError
from paucal.wording import counted, was

_SHOWN = 80


class Row(NamedTuple):
    """What a table or list says of one image.

    Attributes:
        listed: Path, part, line and file.
        label: Cell of the class.
        others: Further cells.
        marks: Cells of the columns that stand for a class each.
        names: Classes, as soon as they are known.
        key: Path of the file, as soon as it is known.
    """

    listed: ListedPath
    label: str = ""
    others: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    key: str = ""


class PlacedRows(NamedTuple):
    """Rows with the keys of their images, none of which repeats another; the folder of the images; and notes."""

    rows: list[Row]
    folder: Path
    notes: list[str]


def place_rows(rows: Sequence[Row], root: Path | None, boxes: str = "") -> PlacedRows:
    """Return rows with the keys of their images, without those that repeat an earlier one.

    Args:
        rows: All rows, with the names of their classes.
        root: As in `locate`.
        boxes: Names of the columns of boxes; "" for none.

    Raises:
        UserError: Rows of one image differ, or as in `locate`.
    """
    place = locate([row.listed for row in rows], root)
    seen: dict[str, Row] = {}
    for row, key in zip(rows, place.keys, strict=True):
        other = seen.setdefault(key, row._replace(key=key))
        if (other.names, other.marks, other.listed.part) != (row.names, row.marks, row.listed.part):
            raise _differ(key, other.listed, row.listed, boxes)
    notes = list(place.notes)
    if repeated := len(rows) - len(seen):
        notes.append(f"{counted(repeated, 'repeated row')} of {rows[0].listed.file.name} {was(repeated)} left out")
    return PlacedRows(list(seen.values()), place.folder, notes)


def _differ(key: str, first: ListedPath, second: ListedPath, boxes: str) -> UserError:
    if boxes:
        return UserError(
            f"{second.file} has several rows for {key[:_SHOWN]!r}, and columns of boxes ({boxes}): paucal "
            "detect learns boxes; to classify, give each image one row."
        )
    lines = f"lines {first.line} and {second.line} of {second.file}"
    if first.file != second.file:
        lines = f"line {first.line} of {first.file} and line {second.line} of {second.file}"
    return UserError(f"{key[:_SHOWN]!r} is in {lines} with different labels or parts; keep one of the lines")


def images_of_rows(files: Mapping[str, Path], placed: PlacedRows, labels: Labels, notes: Sequence[str]) -> ImageSet:
    """Return the set of the images of all rows, in the parts that the rows tell.

    Args:
        files: Table or list of each part; "" for one on its own.
        placed: Their rows.
        labels: Labels of the rows.
        notes: Sentences on how the files were read.
    """
    file, apart = next(iter(files.values())), len({one.parent for one in files.values()}) > 1
    name = part_name(file)
    title = (name.title or file.resolve().parent.name) if name.part == "train" else file.stem
    keys = [row.key for row in placed.rows]
    read = " and ".join(f"{one.parent.name}/{one.name}" if apart else one.name for one in files.values())
    return ImageSet(
        name=file.resolve().parent.parent.name if apart else title,
        location=str(placed.folder),
        classes=labels.classes,
        keys=keys,
        labels=labels.numbers,
        declared=[row.listed.part for row in placed.rows],
        store=FileStore(placed.folder, keys),
        notes=(f"read from {read}", *notes, *placed.notes, *labels.notes),
        multi_hot=labels.multi_hot,
    )
