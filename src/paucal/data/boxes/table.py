"""Boxes from CSV tables with a row for each box, in pixels (TensorFlow) or as shares of the image (Open Images)."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from paucal.data.boxes.annotations import (
    AnnotatedImage,
    AnnotationSet,
    Corners,
    Layout,
    add_image,
    number_classes,
    parse_number,
)
from paucal.data.boxes.naming import ImageNames, MissingImage
from paucal.data.boxes.tree import Tree
from paucal.data.classes import plain_name
from paucal.data.splits.part_names import PARTS, part_of_file
from paucal.reading import decode_text
from paucal.types import UserError

TABLES = (".csv", ".tsv")
MOST_BYTES = 1 << 30
HEAD = 1 << 14  # bytes that hold the column names
DELIMITERS = ",;\t|"
# Column names in lower case, without "_", "-", "." and spaces.
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
    """A row of a table; `box` is None if its cells are empty, which means an image without objects."""

    line: int
    image: str
    name: str
    box: Corners | None
    size: tuple[int, int] | None
    part: str
    crowd: bool


def find(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return the tables with columns for an image, a class and the edges of a box."""
    tables = []
    for file in files:
        if not file.lower().endswith(TABLES):
            continue
        try:
            head = decode_text(tree.peek(file, HEAD).partition(b"\n")[0], file).text
        except UserError:
            continue
        if columns_of(next(_cells(head, file), [])) is not None:
            tables.append(file)
    return tables


def read(tree: Tree, files: Sequence[str]) -> AnnotationSet:
    """Read the tables of a set; each may belong to one of train, val and test.

    Raises:
        UserError: A cell cannot be read, or an image is missing or is in several tables.
    """
    names = ImageNames(tree.images, tree)
    images: dict[str, AnnotatedImage] = {}
    notes: list[str] = []
    for file in files:
        rows, note = _rows(tree, file)
        notes += [note] if note else []
        keys = _keys(tree, names, file, rows)
        in_shares = _are_shares(rows, tree.place_of(file))
        of_file: dict[str, AnnotatedImage] = {}
        unique = list(dict.fromkeys(keys))
        store = tree.store(unique)
        sizes = {key: store.size(place) for place, key in enumerate(unique)} if in_shares else {}
        for row, key in zip(rows, keys, strict=True):
            if key not in of_file:
                of_file[key] = AnnotatedImage(key, size=row.size, declared=row.part, source=file)
                add_image(images, of_file[key], tree.shown)
            if row.box is not None:
                height, width = sizes[key] if in_shares else (1, 1)
                left, top, right, bottom = row.box
                box = left * width, top * height, right * width, bottom * height
                of_file[key].add(box, row.name, row.crowd)
    return AnnotationSet(list(images.values()), number_classes(images.values(), tree.shown), tuple(notes))


LAYOUT = Layout(
    name="a CSV of boxes",
    expected="a CSV with a row for each box (filename, class, xmin, ymin, xmax, ymax)",
    suffixes=TABLES,
    find=find,
    read=read,
)


def columns_of(cells: Sequence[str]) -> Columns | None:
    """Return the position of each column by its kind; None if a required column is missing."""
    names = [_SIGNS.sub("", cell).lower() for cell in cells]
    present = {kind: [name for name in known if name in names] for kind, known in COLUMNS.items()}
    columns = {kind: names.index(found[0]) for kind, found in present.items() if found}
    return columns if set(NEEDED) <= columns.keys() else None


def _cells(text: str, file: str) -> Any:  # the type of csv's reader has no name
    first = text.partition("\n")[0]
    delimiter = "\t" if file.lower().endswith(".tsv") else max(DELIMITERS, key=first.count)
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)


def _rows(tree: Tree, file: str) -> tuple[list[_Row], str]:
    """Return the rows of a table, and a note if its encoding was guessed."""
    content = tree.text(file, MOST_BYTES)
    place = tree.place_of(file)
    part = part_of_file(file)
    rows: list[_Row] = []
    columns: Columns | None = None
    cells = _cells(content.text, file)
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
    return rows, content.note


def _row(cells: Mapping[str, str], line: int, place: str, part: str) -> _Row:
    where = f"line {line} of {place!r}"
    edges = [cells[edge] for edge in EDGES]
    numbers = [parse_number(edge) for edge in edges]
    is_empty = all(number is None or math.isnan(number) for number in numbers) and not any(map(_is_word, edges))
    if not cells["image"] or (not is_empty and (None in numbers or not cells["name"])):
        raise UserError(
            f"{where} has the image {cells['image'][:80]!r}, the class {cells['name'][:80]!r} and the edges "
            f"{', '.join(edges)[:80]!r}, expected names and four numbers: correct it."
        )
    named_part = cells.get("part", "").lower()
    if named_part and named_part not in PARTS:
        raise UserError(f"{where} has the part {named_part[:80]!r}, expected train, val or test: correct it.")
    sides = parse_number(cells.get("height", "")), parse_number(cells.get("width", ""))
    height, width = (int(side) if side and math.isfinite(side) else 0 for side in sides)
    left, top, right, bottom = (number or 0.0 for number in numbers)
    return _Row(
        line,
        cells["image"],
        plain_name(cells["name"]),
        None if is_empty else (left, top, right, bottom),
        (height, width) if min(height, width) > 0 else None,
        PARTS.get(named_part, part),
        cells.get("crowd", "").lower() in ("1", "true"),
    )


def _is_word(edge: str) -> bool:
    """Return whether a cell holds neither a number nor a word for "empty"."""
    return parse_number(edge) is None and edge.lower() not in ("", "none", "null", "na", "n/a", "<na>")


def _keys(tree: Tree, names: ImageNames, file: str, rows: Sequence[_Row]) -> list[str]:
    """Return the image of each row; the name in the row may lack a suffix.

    Raises:
        MissingImage: An image is missing.
    """
    unique = list(dict.fromkeys(row.image for row in rows))
    keys = dict(zip(unique, names.find_images(unique, file, part_of_file(file)), strict=True))
    for row in rows:
        if keys[row.image] is None:
            raise MissingImage(
                f"{tree.place_of(file)!r} describes {row.image[:120]!r}, and there is no such image in {tree.shown!r}: "
                "add it, or give the folder above both as DATA."
            )
    return [key for row in rows if (key := keys[row.image]) is not None]


def _are_shares(rows: Sequence[_Row], place: str) -> bool:
    """Return whether all boxes are given as shares of the sides of their images instead of in pixels.

    Raises:
        UserError: Only some boxes are given as shares.
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
