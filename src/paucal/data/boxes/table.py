"""Boxes from tables: CSV with a row for each box, in pixels as TensorFlow writes it or in shares as Open Images."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from paucal.data.boxes.described import Annotated, Corners, Described, Layout, add_once, number_or_none, numbered
from paucal.data.boxes.naming import MissingImage, Names
from paucal.data.boxes.tree import Tree
from paucal.data.classes import plain_name
from paucal.data.splits.part_names import PARTS, part_of_file
from paucal.reading import decode_text
from paucal.types import UserError

TABLES = (".csv", ".tsv")
MOST_BYTES = 1 << 30
HEAD = 1 << 14  # bytes that hold the names of the columns
DELIMITERS = ",;\t|"
# Names of columns without case, "_", "-", "." and spaces.
COLUMNS = {
    "image": ("filename", "file", "imageid", "image", "imagepath", "imagename", "path", "filepath", "img", "imgpath"),
    "name": ("class", "label", "labelname", "classname", "category", "categoryname", "name", "species", "target"),
    "left": ("xmin", "x1", "left", "bboxx1", "bboxxmin", "xtl"),
    "top": ("ymin", "y1", "top", "bboxy1", "bboxymin", "ytl"),
    "right": ("xmax", "x2", "right", "bboxx2", "bboxxmax", "xbr"),
    "bottom": ("ymax", "y2", "bottom", "bboxy2", "bboxymax", "ybr"),
    "width": ("width", "imagewidth", "imgwidth"),
    "height": ("height", "imageheight", "imgheight"),
    "part": ("split", "part", "subset", "set"),
    "crowd": ("isgroupof", "iscrowd", "difficult"),
}
EDGES = ("left", "top", "right", "bottom")
NEEDED = ("image", "name", *EDGES)
_SIGNS = re.compile(r"[\s_.-]")
Columns = Mapping[str, int]


class _Row(NamedTuple):
    """A row with its line, its image, its class and its box; no box where the cells are empty: there is no object."""

    line: int
    image: str
    name: str
    box: Corners | None
    size: tuple[int, int] | None
    part: str
    crowd: bool


def find(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return the tables with columns for an image, a class and the edges of a box."""
    return [file for file in files if file.lower().endswith(TABLES) and _is_table(tree, file)]


def read(tree: Tree, files: Sequence[str]) -> Described:
    """Read the tables of a set, each of which is of one part or of none.

    Raises:
        UserError: A cell cannot be read, or an image is not there or is in several tables.
    """
    names = Names(tree.images, tree)
    images: dict[str, Annotated] = {}
    notes: list[str] = []
    for file in files:
        rows, note = _rows(tree, file)
        notes += [note] if note else []
        keys = _keys(tree, names, file, rows)
        in_shares = _are_shares(rows, tree.place_of(file))
        mine: dict[str, Annotated] = {}
        different = list(dict.fromkeys(keys))
        store = tree.store(different)
        sizes = {key: store.size(place) for place, key in enumerate(different)} if in_shares else {}
        for row, key in zip(rows, keys, strict=True):
            if key not in mine:
                mine[key] = Annotated(key, size=row.size, declared=row.part, source=file)
                add_once(images, mine[key], tree.shown)
            if row.box is not None:
                mine[key].add(_in_pixels(row.box, sizes[key]) if in_shares else row.box, row.name, row.crowd)
    return Described(list(images.values()), numbered(images.values(), tree.shown), tuple(notes))


LAYOUT = Layout(
    name="a CSV of boxes",
    expected="a CSV with a row for each box (filename, class, xmin, ymin, xmax, ymax)",
    suffixes=TABLES,
    find=find,
    read=read,
)


def columns_of(cells: Sequence[str]) -> Columns | None:
    """Return the places of the columns by what they hold; None where one that is needed is missing."""
    plain = [_SIGNS.sub("", cell).lower() for cell in cells]
    known = {kind: [name for name in names if name in plain] for kind, names in COLUMNS.items()}
    found = {kind: plain.index(names[0]) for kind, names in known.items() if names}
    return found if set(NEEDED) <= found.keys() else None


def _is_table(tree: Tree, file: str) -> bool:
    try:
        head = decode_text(tree.peek(file, HEAD).partition(b"\n")[0], file).text
    except UserError:
        return False
    return columns_of(next(_cells(head, file), [])) is not None


def _cells(text: str, file: str) -> Any:  # the type of csv's reader has no name
    first = text.partition("\n")[0]
    delimiter = "\t" if file.lower().endswith(".tsv") else max(DELIMITERS, key=first.count)
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)


def _rows(tree: Tree, file: str) -> tuple[list[_Row], str]:
    """Return the rows of a table, and a note where its encoding was assumed."""
    found = tree.text(file, MOST_BYTES)
    place = tree.place_of(file)
    part = part_of_file(file)
    rows: list[_Row] = []
    columns: Columns | None = None
    cells = _cells(found.text, file)
    try:
        for row in cells:
            if columns is None:
                columns = columns_of(row)
                if columns is None:
                    raise UserError(f"{place!r} has no columns of an image, a class and the edges of a box: add them.")
            elif any(cell.strip() for cell in row):
                if len(row) <= max(columns.values()):
                    raise UserError(f"line {cells.line_num} of {place!r} has {len(row)} cells, too few: correct it.")
                named = {kind: row[column].strip() for kind, column in columns.items()}
                rows.append(_row(named, cells.line_num, place, part))
    except csv.Error as problem:
        raise UserError(f"{place!r} cannot be read as a table ({problem}): save it as CSV again.") from None
    return rows, found.note


def _row(cells: Mapping[str, str], line: int, place: str, part: str) -> _Row:
    where = f"line {line} of {place!r}"
    edges = [cells[edge] for edge in EDGES]
    numbers = [number_or_none(edge) for edge in edges]
    is_empty = all(number is None or math.isnan(number) for number in numbers) and not any(map(_is_word, edges))
    if not cells["image"] or (not is_empty and (None in numbers or not cells["name"])):
        raise UserError(
            f"{where} has the image {cells['image'][:80]!r}, the class {cells['name'][:80]!r} and the edges "
            f"{', '.join(edges)[:80]!r}, expected names and four numbers: correct it."
        )
    word = cells.get("part", "").lower()
    if word and word not in PARTS:
        raise UserError(f"{where} has the part {word[:80]!r}, expected train, val or test: correct it.")
    sides = number_or_none(cells.get("height", "")), number_or_none(cells.get("width", ""))
    height, width = (int(side) if side and math.isfinite(side) else 0 for side in sides)
    left, top, right, bottom = (number or 0.0 for number in numbers)
    return _Row(
        line,
        cells["image"],
        plain_name(cells["name"]),
        None if is_empty else (left, top, right, bottom),
        (height, width) if min(height, width) > 0 else None,
        PARTS.get(word, part),
        cells.get("crowd", "").lower() in ("1", "true"),
    )


def _is_word(edge: str) -> bool:
    """Return whether a cell holds something other than a number or nothing."""
    return number_or_none(edge) is None and edge.lower() not in ("", "none", "null", "na", "n/a", "<na>")


def _keys(tree: Tree, names: Names, file: str, rows: Sequence[_Row]) -> list[str]:
    """Return the image of each row; names may lack their ending.

    Raises:
        MissingImage: An image is not there.
    """
    told = list(dict.fromkeys(row.image for row in rows))
    keys = dict(zip(told, names.located(told, file, part_of_file(file)), strict=True))
    for row in rows:
        if keys[row.image] is None:
            raise MissingImage(
                f"{tree.place_of(file)!r} describes {row.image[:120]!r}, and there is no such image in {tree.shown!r}: "
                "add it, or give the folder above both as DATA."
            )
    return [key for row in rows if (key := keys[row.image]) is not None]


def _are_shares(rows: Sequence[_Row], place: str) -> bool:
    """Return whether the edges of all boxes are shares of the sides of their images, and not pixels.

    Raises:
        UserError: Some are and others are not.
    """
    kinds: dict[bool, _Row] = {}
    for row in rows:
        if row.box is not None and row.box[0] < row.box[2]:
            kinds.setdefault(max(row.box) <= 1, row)
    if len(kinds) > 1:
        raise UserError(
            f"{place!r} has a box with the edges {_shown(kinds[True].box)} in line {kinds[True].line} and one with "
            f"{_shown(kinds[False].box)} in line {kinds[False].line}: give all in pixels, or all from 0 to 1."
        )
    return True in kinds


def _shown(box: Corners | None) -> str:
    return " ".join(f"{edge:g}" for edge in box or ())


def _in_pixels(box: Corners, size: tuple[int, int]) -> Corners:
    height, width = size
    return box[0] * width, box[1] * height, box[2] * width, box[3] * height
