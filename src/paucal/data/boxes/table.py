"""Boxes from CSV tables with a row for each box: edges, or a corner with width and height, in pixels or in shares."""

import csv
import io
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from paucal.data.boxes.annotations import (
    AnnotatedImage,
    AnnotationSet,
    Corners,
    Layout,
    add_image,
    parse_number,
)
from paucal.data.boxes.naming import ImageNames, MissingImage
from paucal.data.boxes.tree import Tree, folder_tree
from paucal.data.classes import plain_name
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.sources.table_columns import refuse_repeated_columns
from paucal.data.splits.part_names import PARTS, part_of_file
from paucal.reading import decode_text, read_decoded
from paucal.types import NoLabelsError, UserError
from paucal.wording import counted

TABLES = (".csv", ".tsv")
MAX_BYTES = 1 << 30
HEAD = 1 << 14  # bytes that contain the column names
HEAD_ROWS = 20  # rows that are searched for a complete row without column names
ROUNDING = 1.02  # largest coordinate of an edge, relative to the side
ONE_CLASS = "object"  # class of all boxes in a table without classes
DELIMITERS = ",;\t|"
# Column names in lower case, without "_", "-", "." and spaces.
COLUMNS = {
    "image": ("filename", "file", "imageid", "image", "imagepath", "imagename", "path", "filepath", "img", "imgpath"),
    "name": ("class", "label", "labelname", "classname", "category", "categoryname", "name", "species", "target"),
    "left": ("xmin", "x1", "left", "bboxx1", "bboxxmin", "xtl", "x", "bboxx", "bboxleft"),
    "top": ("ymin", "y1", "top", "bboxy1", "bboxymin", "ytl", "y", "bboxy", "bboxtop"),
    "right": ("xmax", "x2", "right", "bboxx2", "bboxxmax", "xbr"),
    "bottom": ("ymax", "y2", "bottom", "bboxy2", "bboxymax", "ybr"),
    "across": ("w", "bboxwidth", "bboxw", "boxwidth", "width"),
    "down": ("h", "bboxheight", "bboxh", "boxheight", "height"),
    "bbox": ("bbox", "box", "boundingbox"),
    "width": ("imagewidth", "imgwidth", "width"),
    "height": ("imageheight", "imgheight", "height"),
    "part": ("split", "part", "subset", "set"),
    "crowd": ("isgroupof", "iscrowd", "difficult"),
}
# Sets of columns that define a box, the most reliable first. Spans are a corner, and the width and height of the box.
EDGES, SPANS, LISTS = ("left", "top", "right", "bottom"), ("left", "top", "across", "down"), ("bbox",)
FORMS = (EDGES, SPANS, LISTS)
# Tables without column names. Keys are patterns of the kinds of cells in a row (i image, n number, p part, w another
# word, - empty); values are the columns.
UNNAMED = {
    "innnn[wn]": ("image", *EDGES, "name"),  # keras-retinanet
    "[wn]nnnninn": ("name", *SPANS, "image", "width", "height"),  # makesense.ai
    "piwnn--nn-*": ("part", "image", "name", "left", "top", "", "", "right", "bottom"),  # AutoML Vision
}
_SIGNS = re.compile(r"[\s_.-]")
_LIST = re.compile(r"[\[({]?\s*([^,\s]+)[,\s]+([^,\s]+)[,\s]+([^,\s]+)[,\s]+([^,\s\])}]+)\s*[\])}]?")
Columns = Mapping[str, int]
_Placed = tuple[Corners, str]  # a box, and the key of its image
_SizeOf = Callable[[str], tuple[int, int]]  # from the key of an image to its (height, width)


class _Row(NamedTuple):
    """A row of a table; `box` holds its four numbers unchanged, or None for an image without objects."""

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
        head = tree.peek(file, HEAD)
        end = head[:HEAD].rfind(b"\n")
        end -= end % 2 if b"\0" in head else 0  # a line break in UTF-16 begins at an even byte
        try:
            text = decode_text(head[:end] if end > 0 else head, file).text
            rows = list(islice(_read_cells(text, file), HEAD_ROWS))
        except (UserError, csv.Error):
            continue
        if rows and (columns_of(rows[0]) or _columns_of_unnamed(rows)):
            tables.append(file)
    return tables


def read(tree: Tree, files: Sequence[str]) -> AnnotationSet:
    """Read the tables of a set; each may belong to one of train, val and test."""
    names = ImageNames(tree.images, tree)
    images: dict[str, AnnotatedImage] = {}
    notes: list[str] = []
    for file in files:
        rows, form, row_notes = _read_rows(tree, file)
        keys = _row_keys(tree, names, file, rows)
        file_images: dict[str, AnnotatedImage] = {}
        size_of = _size_reader(tree, keys)
        boxes = [(row.box, key) for row, key in zip(rows, keys, strict=True) if row.box is not None]
        if form == LISTS:
            form, note = _form_of_lists(boxes, size_of, file)
            row_notes.append(note)
        if form == SPANS:
            _refuse_centres(boxes, size_of, tree.place_of(file))
            rows = [row if row.box is None else row._replace(box=_edges_of_span(row.box)) for row in rows]
        notes += row_notes
        in_shares = _are_shares(rows, tree.place_of(file))
        for row, key in zip(rows, keys, strict=True):
            if key not in file_images:
                file_images[key] = AnnotatedImage(key, size=row.size, declared=row.part, source=file)
                add_image(images, file_images[key], tree.shown)
            if row.part != file_images[key].declared:
                parts = row.part or "no part", file_images[key].declared or "no part"
                raise UserError(
                    f"line {row.line} of {tree.place_of(file)!r} puts {row.image[:120]!r} into {parts[0]}, and an "
                    f"earlier line puts it into {parts[1]}: give each image one part."
                )
            if row.box is not None:
                height, width = size_of(key) if in_shares else (1, 1)
                left, top, right, bottom = row.box
                box = left * width, top * height, right * width, bottom * height
                file_images[key].add(row.name, box, crowd=row.crowd)
    return AnnotationSet.numbered(images.values(), tree.shown, notes)


def tree_of_paths(file: Path) -> Tree | None:
    """Return the images that a table names by absolute paths, without searching folders; None for other tables.

    Raises:
        MissingImage: Some of the images are missing.
    """
    try:
        text = read_decoded(file, MAX_BYTES).text
        cells = list(_read_cells(text, file.name))
    except (UserError, csv.Error):  # reading it reports the problem
        return None
    columns = columns_of(cells[0]) if cells else None
    if columns is None:
        return None
    paths = {row[columns["image"]].strip() for row in cells[1:] if len(row) > columns["image"]} - {""}
    images = [path for path in paths if os.path.isabs(path) and path.lower().endswith(IMAGE_SUFFIXES)]
    existing = [path for path in images if ".." not in PurePath(path).parts and os.path.isfile(path)]
    if not existing or len(images) < len(paths):
        return None
    if missing := sorted({*images} - {*existing}):  # its boxes could match an image of the same name elsewhere
        problem = "a path with '..' in it" if ".." in PurePath(missing[0]).parts else "but there is no such file"
        raise MissingImage(f"{str(file)!r} names {missing[0][:120]!r}, {problem}: correct the path.")
    root = Path(os.path.commonpath([os.path.dirname(path) for path in existing]))
    tree = folder_tree(root, sorted(PurePath(path).relative_to(root).as_posix() for path in existing))
    return replace(tree, is_inside=lambda path: True)


LAYOUT = Layout(
    name="a CSV of boxes",
    expected="a CSV with a row for each box (filename, class, xmin, ymin, xmax, ymax; or x, y, w, h; or bbox)",
    suffixes=TABLES,
    find=find,
    read=read,
    tree=tree_of_paths,
)


def columns_of(cells: Sequence[str]) -> Columns | None:
    """Return the position of each column by its kind; None if a required column is missing."""
    names = _plain_names(cells)
    spellings_found = {kind: [name for name in spellings if name in names] for kind, spellings in COLUMNS.items()}
    columns = {kind: names.index(spellings[0]) for kind, spellings in spellings_found.items() if spellings}
    form = next((form for form in FORMS if set(form) <= columns.keys()), None)
    if form is None or "image" not in columns:
        return None
    spans = {columns[kind] for kind in ("across", "down")} if form == SPANS else set()
    unused_kinds = {kind for kinds in FORMS for kind in kinds} - set(form)
    used_columns = {kind: place for kind, place in columns.items() if kind in form or place not in spans}
    return {kind: place for kind, place in used_columns.items() if kind not in unused_kinds}


def _plain_names(cells: Sequence[str]) -> list[str]:
    return [_SIGNS.sub("", cell).lower() for cell in cells]


def _columns_of_unnamed(rows: Sequence[Sequence[str]]) -> Columns | None:
    """Return the columns of a table without column names, from its first complete row; None for other tables."""
    for row in rows:
        shape = "".join(map(_kind_of_cell, row))
        for pattern, columns in UNNAMED.items():
            if re.fullmatch(pattern, shape):
                return {kind: index for index, kind in enumerate(columns) if kind}
    return None


def _kind_of_cell(cell: str) -> str:
    cell = cell.strip()
    if not cell:
        return "-"
    if cell.lower().endswith(IMAGE_SUFFIXES):
        return "i"
    if parse_number(cell) is not None:
        return "n"
    return "p" if cell.lower() in PARTS or cell.lower() == "unassigned" else "w"


def _read_cells(text: str, file: str) -> Any:  # csv's reader has no public type
    first = text.partition("\n")[0]
    delimiter = "\t" if file.lower().endswith(".tsv") else max(DELIMITERS, key=first.count)
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)


def _read_rows(tree: Tree, file: str) -> tuple[list[_Row], tuple[str, ...], list[str]]:
    """Return the rows of a table, the columns that give its boxes, and notes."""
    text, notes = tree.text(file, MAX_BYTES)
    place = tree.place_of(file)
    part = part_of_file(file)
    rows: list[_Row] = []
    first = list(islice(_read_cells(text, file), HEAD_ROWS))
    named_columns = columns_of(first[0]) if first else None
    columns = named_columns or _columns_of_unnamed(first)
    if columns is None:
        raise NoLabelsError(f"{place!r} has no columns of an image, a class and the edges of a box: add them.")
    if named_columns:
        refuse_repeated_columns(place, _plain_names(first[0]), named_columns.values())
    form = next(form for form in FORMS if set(form) <= columns.keys())
    if "name" not in columns:
        notes.append(f"{file} has no column of classes, so all boxes are of one class, {ONE_CLASS!r}")
    cells = _read_cells(text, file)
    try:
        for row in islice(cells, 1 if named_columns else 0, None):
            if any(cell.strip() for cell in row):
                if len(row) <= max(columns.values()):
                    count = counted(len(row), "cell")
                    raise UserError(f"line {cells.line_num} of {place!r} has {count}, too few: correct it.")
                by_kind = {kind: row[column].strip() for kind, column in columns.items()}
                rows.append(_parse_row(by_kind, form, cells.line_num, place, part))
    except csv.Error as problem:
        raise UserError(f"{place!r} cannot be read as a table ({problem}): save it as CSV again.") from None
    return rows, form, notes


def _parse_row(cells: Mapping[str, str], form: Sequence[str], line: int, place: str, part: str) -> _Row:
    context = f"line {line} of {place!r}"
    edges = [cells[kind] for kind in form]
    if form == LISTS:
        match = _LIST.fullmatch(edges[0])
        edges = list(match.groups()) if match else [edges[0]] * 4
    name = cells.get("name", ONE_CLASS)
    numbers = [parse_number(edge) for edge in edges]
    is_empty = all(number is None or math.isnan(number) for number in numbers) and not any(map(_is_word, edges))
    if not cells["image"] or (not is_empty and (None in numbers or not name)):
        raise UserError(
            f"{context} has the image {cells['image'][:80]!r}, the class {name[:80]!r} and the edges "
            f"{', '.join(edges)[:80]!r}, expected names and four numbers: correct it."
        )
    named_part = cells.get("part", "").lower()
    if named_part and named_part not in PARTS and named_part != "unassigned":
        raise UserError(f"{context} has the part {named_part[:80]!r}, expected train, val or test: correct it.")
    sides = parse_number(cells.get("height", "")), parse_number(cells.get("width", ""))
    height, width = (int(side) if side and math.isfinite(side) else 0 for side in sides)
    left, top, right, bottom = (number or 0.0 for number in numbers)
    return _Row(
        line,
        cells["image"],
        plain_name(name),
        None if is_empty else (left, top, right, bottom),
        (height, width) if min(height, width) > 0 else None,
        PARTS.get(named_part, part),
        cells.get("crowd", "").lower() in ("1", "true"),
    )


def _edges_of_span(box: Corners) -> Corners:
    left, top, across, down = box
    return left, top, left + across, top + down


def _size_reader(tree: Tree, keys: Sequence[str]) -> _SizeOf:
    """Return a function that gives the (height, width) of an image; each header is read when it is first needed."""
    unique = list(dict.fromkeys(keys))
    positions, store = {key: index for index, key in enumerate(unique)}, tree.store(unique)
    return cache(lambda key: store.size(positions[key]))


def _form_of_lists(boxes: Sequence[_Placed], size_of: _SizeOf, file: str) -> tuple[tuple[str, ...], str]:
    """Return whether boxes in lists are edges or spans, whichever keeps all boxes within their images, and a note."""
    # Few spans are also valid as edges, so the headers of a few images usually decide.
    are_edges = all(_is_within(box, size_of(key)) for box, key in boxes)
    are_spans = not are_edges or all(_is_within(_edges_of_span(box), size_of(key)) for box, key in boxes)
    form = SPANS if are_spans else EDGES
    meaning = "left, top, right, bottom" if form == EDGES else "left, top, width, height, as in COCO's JSON"
    return form, f"the boxes of {file} are read as {meaning}"


def _refuse_centres(boxes: Sequence[_Placed], size_of: _SizeOf, place: str) -> None:
    """Refuse spans if some of them end outside of their images, and none does if x and y are the centre of a box."""
    in_shares = all(max(box) <= 1 for box, _ in boxes)

    def ends_inside(box: Corners, key: str) -> bool:
        return _fits(_edges_of_span(box), (1, 1) if in_shares else size_of(key))

    # With corners, this usually fails after a few boxes, so only a few image headers are read.
    if not all(ends_inside((box[0] - box[2] / 2, box[1] - box[3] / 2, *box[2:]), key) for box, key in boxes):
        return
    if outside := [box for box, key in boxes if not ends_inside(box, key)]:
        raise UserError(
            f"x and y in {place!r} seem to be the centres of the boxes: as corners, they would put "
            f"{counted(len(outside), 'box', 'boxes')} partly outside of the image, such as {_format_box(outside[0])}; "
            "as centres, none. Give the edges of the boxes as xmin, ymin, xmax, ymax."
        )


def _fits(box: Corners, size: tuple[int, int]) -> bool:
    """Return whether a box lies within an image of (height, width), up to rounding."""
    (left, top, right, bottom), (height, width) = box, size
    margins = (ROUNDING - 1) * width, (ROUNDING - 1) * height
    is_inside = left >= -margins[0] and top >= -margins[1]
    return is_inside and right <= width + margins[0] and bottom <= height + margins[1]


def _is_within(box: Corners, size: tuple[int, int]) -> bool:
    """Return whether a box ends after it begins, and within an image of (height, width), up to rounding."""
    left, top, right, bottom = box
    height, width = (1, 1) if max(box) <= 1 else size
    return left <= right <= ROUNDING * width and top <= bottom <= ROUNDING * height


def _is_word(edge: str) -> bool:
    """Return whether a cell holds neither a number nor a word for "empty"."""
    return parse_number(edge) is None and edge.lower() not in ("", "none", "null", "na", "n/a", "<na>")


def _row_keys(tree: Tree, names: ImageNames, file: str, rows: Sequence[_Row]) -> list[str]:
    """Return the image of each row; the name in the row may lack a suffix."""
    unique = list(dict.fromkeys(row.image for row in rows))
    keys = dict(zip(unique, names.find_images(unique, file, part_of_file(file)), strict=True))
    for row in rows:
        if keys[row.image] is None:
            raise MissingImage(
                f"{tree.place_of(file)!r} describes {row.image[:120]!r}, but there is no such image in {tree.shown!r}: "
                "add it, or give the folder above both as DATA."
            )
    return [key for row in rows if (key := keys[row.image]) is not None]


def _are_shares(rows: Sequence[_Row], place: str) -> bool:
    """Return whether all boxes are given relative to the sides of their images instead of in pixels."""
    kinds: dict[bool, _Row] = {}
    for row in rows:
        if row.box is not None and row.box[0] < row.box[2]:
            kinds.setdefault(max(row.box) <= 1, row)
    if len(kinds) > 1:
        raise UserError(
            f"{place!r} has a box with the edges {_format_box(kinds[True].box)} in line {kinds[True].line} and one "
            f"with {_format_box(kinds[False].box)} in line {kinds[False].line}: give all in pixels, or all from 0 to 1."
        )
    return True in kinds


def _format_box(box: Corners | None) -> str:
    return " ".join(f"{edge:g}" for edge in box or ())
