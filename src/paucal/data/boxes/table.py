"""Reads boxes from CSV tables with one row per box, in pixels or as fractions of the image's width and height.

A box is given by its edges (left, top, right, bottom), or by its top left corner, width and height.
"""

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from pathlib import Path, PurePath
from typing import NamedTuple

from paucal.data.boxes.annotations import (
    AnnotatedImage,
    AnnotationSet,
    Corners,
    Layout,
    add_image,
    parse_number,
    positive_size,
)
from paucal.data.boxes.naming import ImageFinder, MissingImage, missing_image_error
from paucal.data.boxes.tree import Tree, folder_tree
from paucal.data.classes import plain_name
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.sources.table_columns import refuse_repeated_columns
from paucal.data.sources.table_reading import TableRow, csv_rows
from paucal.data.splits.part_names import PART_BY_WORD, split_of_file
from paucal.reading import decode_text, read_decoded
from paucal.types import NoLabelsError, UserError
from paucal.wording import counted

BOX_TABLE_SUFFIXES = (".csv", ".tsv")
MAX_BYTES = 1 << 30  # size of the largest table that is read
HEAD_BYTES = 1 << 14  # bytes at the start of a file that are read to recognise a table of boxes
HEAD_ROWS = 20  # number of rows from which the columns of a table without column names are recognised
MAX_EDGE = 1.02  # largest right or bottom edge of a box relative to the image's side; 2 % tolerance for rounding
EMPTY_CELLS = ("", "none", "null", "na", "n/a", "<na>")  # cells of an image without objects, in lower case
DEFAULT_CLASS = "object"  # class of all boxes in a table without classes
# Common names of each column, in lower case and without "_", "-", "." and spaces.
COLUMNS = {
    "image": ("filename", "file", "imageid", "image", "imagepath", "imagename", "path", "filepath", "img", "imgpath"),
    "name": ("class", "label", "labelname", "classname", "category", "categoryname", "name", "species", "target"),
    "left": ("xmin", "x1", "left", "bboxx1", "bboxxmin", "xtl", "x", "bboxx", "bboxleft"),
    "top": ("ymin", "y1", "top", "bboxy1", "bboxymin", "ytl", "y", "bboxy", "bboxtop"),
    "right": ("xmax", "x2", "right", "bboxx2", "bboxxmax", "xbr"),
    "bottom": ("ymax", "y2", "bottom", "bboxy2", "bboxymax", "ybr"),
    "box_width": ("w", "bboxwidth", "bboxw", "boxwidth", "width"),
    "box_height": ("h", "bboxheight", "bboxh", "boxheight", "height"),
    "bbox": ("bbox", "box", "boundingbox"),
    "width": ("imagewidth", "imgwidth", "width"),
    "height": ("imageheight", "imgheight", "height"),
    "part": ("split", "part", "subset", "set"),
    "crowd": ("isgroupof", "iscrowd", "difficult"),
}
# Columns that define a box, for each form of boxes; the most reliable form comes first. In the form `LIST_CELL`, one
# cell contains all four numbers.
EDGES, LIST_CELL = ("left", "top", "right", "bottom"), ("bbox",)
CORNER_AND_SIZE = ("left", "top", "box_width", "box_height")
FORMS = (EDGES, CORNER_AND_SIZE, LIST_CELL)
# Columns of tables without column names. A key is a regular expression for a row with one letter per cell: i for an
# image, n for a number, p for a split, w for another word, - for an empty cell.
UNNAMED_COLUMNS = {
    "innnn[wn]": ("image", *EDGES, "name"),  # keras-retinanet
    "[wn]nnnninn": ("name", *CORNER_AND_SIZE, "image", "width", "height"),  # makesense.ai
    "piwnn--nn-*": ("part", "image", "name", "left", "top", "", "", "right", "bottom"),  # AutoML Vision
}
_IGNORED_IN_NAMES = re.compile(r"[\s_.-]")  # characters that are ignored in column names
_LIST_PATTERN = re.compile(r"[\[({]?\s*([^,\s]+)[,\s]+([^,\s]+)[,\s]+([^,\s]+)[,\s]+([^,\s\])}]+)\s*[\])}]?")
Columns = Mapping[str, int]  # position of each column, by its key in `COLUMNS`
_BoxAndKey = tuple[Corners, str]  # a box, and the key of its image
_SizeOf = Callable[[str], tuple[int, int]]  # returns the (height, width) of the image with a key


class _Row(NamedTuple):
    """A row of a table."""

    line: int
    image: str
    name: str  # class of the box
    box: Corners | None  # the four numbers as in the table; None if the image has no objects
    size: tuple[int, int] | None  # (height, width) of the image in pixels; None if the table does not state the size
    part: str  # "train", "val", "test", or "" if the image has no split
    crowd: bool  # whether the box covers many objects or is difficult


def find(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return the tables that have a column of images and columns that define a box."""
    tables = []
    for file in files:
        if not file.lower().endswith(BOX_TABLE_SUFFIXES):
            continue
        head = tree.peek(file, HEAD_BYTES)
        end = head[:HEAD_BYTES].rfind(b"\n")
        end -= end % 2 if b"\0" in head else 0  # in UTF-16, each character begins at an even byte
        try:
            text = decode_text(head[:end] if end > 0 else head, file).text
        except UserError:
            continue
        # Reading fails if the text ends within quotes; then only the first line is read.
        for lines in (text, text.partition("\n")[0]):
            with suppress(UserError):
                rows = [row.cells for row in islice(csv_rows(Path(file), lines), HEAD_ROWS)]
                if rows and (find_columns(rows[0]) or _find_columns_by_content(rows)):
                    tables.append(file)
                break
    return tables


def read(tree: Tree, files: Sequence[str]) -> AnnotationSet:
    """Read the tables of a data set; each table may be for one split (train, val or test)."""
    finder = ImageFinder(tree.images, tree)
    images: dict[str, AnnotatedImage] = {}
    notes: list[str] = []
    for file in files:
        rows, form = _read_rows(tree, file, notes)
        names = list(dict.fromkeys(row.image for row in rows))
        key_by_name: dict[str, str] = {}
        for name, key in zip(names, finder.find_images(names, file, split_of_file(file)), strict=True):
            if key is None:
                raise missing_image_error(tree, file, name)
            key_by_name[name] = key
        keys = [key_by_name[row.image] for row in rows]
        file_images: dict[str, AnnotatedImage] = {}
        size_of = _size_reader(tree, keys)
        boxes = [(row.box, key) for row, key in zip(rows, keys, strict=True) if row.box is not None]
        if form == LIST_CELL:
            form = _detect_form_of_lists(boxes, size_of)
            meaning = "left, top, right, bottom" if form == EDGES else "left, top, width, height, as in COCO JSON"
            notes.append(f"the boxes of {file} are read as {meaning}")
        if form == CORNER_AND_SIZE:
            _refuse_cxcywh_boxes(boxes, size_of, tree.shown_path(file))
            rows = [row if row.box is None else row._replace(box=_xywh_to_xyxy(row.box)) for row in rows]
        are_fractions = _are_fractions(rows, tree.shown_path(file))
        for row, key in zip(rows, keys, strict=True):
            if key not in file_images:
                file_images[key] = AnnotatedImage(key, size=row.size, declared_split=row.part, source=file)
                add_image(images, file_images[key], tree.shown_root)
            if row.part != file_images[key].declared_split:
                parts = row.part or "no split", file_images[key].declared_split or "no split"
                raise UserError(
                    f"line {row.line} of {tree.shown_path(file)!r} puts {row.image[:120]!r} into {parts[0]}, and an "
                    f"earlier line puts it into {parts[1]}: give each image one split."
                )
            if row.box is not None:
                height, width = size_of(key) if are_fractions else (1, 1)
                left, top, right, bottom = row.box
                box = left * width, top * height, right * width, bottom * height
                file_images[key].add(row.name, box, crowd=row.crowd)
    return AnnotationSet.with_numbered_classes(images.values(), tree.shown_root, notes)


def tree_of_paths(file: Path) -> Tree | None:
    """Return a tree of the images in a table; None unless the table names all images by absolute paths."""
    try:
        rows = csv_rows(file, read_decoded(file, MAX_BYTES).text)
        columns = find_columns(next(rows, TableRow(1, [])).cells)
        if columns is None:
            return None
        paths = {row.cells[columns["image"]] for row in rows if len(row.cells) > columns["image"]} - {""}
    except UserError:  # reported when the table is read
        return None
    images = [path for path in paths if os.path.isabs(path) and path.lower().endswith(IMAGE_SUFFIXES)]
    existing = [path for path in images if ".." not in PurePath(path).parts and os.path.isfile(path)]
    if not existing or len(images) < len(paths):
        return None
    # A missing image is refused here, since an image of the same name in another folder might be used instead.
    if missing := sorted({*images} - {*existing}):
        problem = "a path with '..' in it" if ".." in PurePath(missing[0]).parts else "but there is no such file"
        raise MissingImage(f"{str(file)!r} names {missing[0][:120]!r}, {problem}: correct the path.")
    root = Path(os.path.commonpath([os.path.dirname(path) for path in existing]))
    tree = folder_tree(root, sorted(PurePath(path).relative_to(root).as_posix() for path in existing))
    return replace(tree, is_inside=lambda path: True)


_EXPECTED_FILES = "a CSV with a row for each box (filename, class, xmin, ymin, xmax, ymax; or x, y, w, h; or bbox)"
LAYOUT = Layout("a CSV of boxes", _EXPECTED_FILES, BOX_TABLE_SUFFIXES, find, read, tree=tree_of_paths)


def find_columns(cells: Sequence[str]) -> Columns | None:
    """Return the position of each column, by its key in `COLUMNS`; None without columns of images and of boxes."""
    names = _plain_names(cells)
    names_by_key = {key: [name for name in usual_names if name in names] for key, usual_names in COLUMNS.items()}
    columns = {key: names.index(present[0]) for key, present in names_by_key.items() if present}
    form = next((form for form in FORMS if set(form) <= columns.keys()), None)
    if form is None or "image" not in columns:
        return None
    # Columns "width" and "height" that give the size of a box do not also give the size of the image.
    box_sizes = {columns[key] for key in ("box_width", "box_height")} if form == CORNER_AND_SIZE else set()
    other_forms = {key for keys in FORMS for key in keys} - set(form)
    used_columns = {key: position for key, position in columns.items() if key in form or position not in box_sizes}
    return {key: position for key, position in used_columns.items() if key not in other_forms}


def _plain_names(cells: Sequence[str]) -> list[str]:
    return [_IGNORED_IN_NAMES.sub("", cell).lower() for cell in cells]


def _find_columns_by_content(rows: Sequence[Sequence[str]]) -> Columns | None:
    """Return the columns of a table without column names, from the first row that matches `UNNAMED_COLUMNS`, if any."""
    for row in rows:
        letters = "".join(map(_letter_of_cell, row))
        for pattern, columns in UNNAMED_COLUMNS.items():
            if re.fullmatch(pattern, letters):
                return {key: index for index, key in enumerate(columns) if key}
    return None


def _letter_of_cell(cell: str) -> str:
    if not cell:
        return "-"
    if cell.lower().endswith(IMAGE_SUFFIXES):
        return "i"
    if parse_number(cell) is not None:
        return "n"
    return "p" if cell.lower() in PART_BY_WORD or cell.lower() == "unassigned" else "w"


def _read_rows(tree: Tree, file: str, notes: list[str]) -> tuple[list[_Row], tuple[str, ...]]:
    """Return the rows of a table, and the form of its boxes (one of `FORMS`)."""
    shown_path = tree.shown_path(file)
    rows = csv_rows(Path(shown_path), tree.read_text(file, MAX_BYTES, notes))
    first_rows = list(islice(rows, HEAD_ROWS))
    named_columns = find_columns(first_rows[0].cells) if first_rows else None
    columns = named_columns or _find_columns_by_content([row.cells for row in first_rows])
    if columns is None:
        raise NoLabelsError(
            f"{shown_path!r} has no columns of an image, a class and the edges of a box: add these columns."
        )
    if named_columns:
        refuse_repeated_columns(shown_path, _plain_names(first_rows[0].cells), named_columns.values())
    form = next(form for form in FORMS if set(form) <= columns.keys())
    if "name" not in columns:
        notes.append(f"{file} has no column of classes, so all boxes have the class {DEFAULT_CLASS!r}")
    part, box_rows = split_of_file(file), []
    for line, cells in chain(first_rows[bool(named_columns) :], rows):
        if len(cells) <= max(columns.values()):
            count = counted(len(cells), "cell")
            raise UserError(f"line {line} of {shown_path!r} has {count}, too few: correct the line.")
        cells_by_column = {key: cells[column] for key, column in columns.items()}
        box_rows.append(_parse_row(cells_by_column, form, line, shown_path, part))
    return box_rows, form


def _parse_row(cells: Mapping[str, str], form: Sequence[str], line: int, shown_path: str, part: str) -> _Row:
    """Return a row from its cells by column; `part` is the split of the whole table, or ""."""
    context = f"line {line} of {shown_path!r}"
    edges = [cells[column] for column in form]
    if form == LIST_CELL:
        match = _LIST_PATTERN.fullmatch(edges[0])
        edges = list(match.groups()) if match else [edges[0]] * 4
    name = cells.get("name", DEFAULT_CLASS)
    numbers = [parse_number(edge) for edge in edges]
    is_empty = all(
        edge.lower() in EMPTY_CELLS if number is None else math.isnan(number)
        for edge, number in zip(edges, numbers, strict=True)
    )
    if not cells["image"] or (not is_empty and (None in numbers or not name)):
        raise UserError(
            f"{context} has the image {cells['image'][:80]!r}, the class {name[:80]!r} and the edges "
            f"{', '.join(edges)[:80]!r}, expected names and four numbers: correct the line."
        )
    part_name = cells.get("part", "").lower()
    if part_name and part_name not in PART_BY_WORD and part_name != "unassigned":
        raise UserError(f"{context} has the split {part_name[:80]!r}, expected train, val or test: correct the split.")
    sides = parse_number(cells.get("height", "")), parse_number(cells.get("width", ""))
    height, width = (int(side) if side and math.isfinite(side) else 0 for side in sides)
    left, top, right, bottom = (number or 0.0 for number in numbers)
    return _Row(
        line,
        cells["image"],
        plain_name(name),
        None if is_empty else (left, top, right, bottom),
        positive_size(height, width),
        PART_BY_WORD.get(part_name, part),
        cells.get("crowd", "").lower() in ("1", "true"),
    )


def _xywh_to_xyxy(box: Corners) -> Corners:
    """Convert a box of left, top, width and height to left, top, right and bottom."""
    left, top, width, height = box
    return left, top, left + width, top + height


def _size_reader(tree: Tree, keys: Sequence[str]) -> _SizeOf:
    """Return a cached function that reads the (height, width) of the image with a key from the header of the file."""
    unique = list(dict.fromkeys(keys))
    positions, store = {key: index for index, key in enumerate(unique)}, tree.make_store(unique)
    return cache(lambda key: store.size(positions[key]))


def _detect_form_of_lists(boxes: Sequence[_BoxAndKey], size_of: _SizeOf) -> tuple[str, ...]:
    """Return the form of boxes that have four numbers in one cell.

    The numbers are edges if all boxes are valid and inside their images when read as edges, and some boxes are not when
    read as a corner with width and height. Otherwise the numbers are a corner with width and height.
    """
    # Few boxes are valid in both forms, so usually only a few image headers are read.
    are_edges = all(_are_valid_edges(box, size_of(key)) for box, key in boxes)
    have_sizes = not are_edges or all(_are_valid_edges(_xywh_to_xyxy(box), size_of(key)) for box, key in boxes)
    return CORNER_AND_SIZE if have_sizes else EDGES


def _refuse_cxcywh_boxes(boxes: Sequence[_BoxAndKey], size_of: _SizeOf, shown_path: str) -> None:
    """Refuse boxes that all fit in their images if x and y are centres, but not if they are corners."""
    are_fractions = all(max(box) <= 1 for box, _ in boxes)

    def fits_in_image(box: Corners, key: str) -> bool:
        left, top, right, bottom = _xywh_to_xyxy(box)
        height, width = (1, 1) if are_fractions else size_of(key)
        x_margin, y_margin = (MAX_EDGE - 1) * width, (MAX_EDGE - 1) * height
        starts_inside = left >= -x_margin and top >= -y_margin
        return starts_inside and right <= width + x_margin and bottom <= height + y_margin

    # If x and y are corners, this check usually fails after a few boxes, so only a few image headers are read.
    if not all(fits_in_image((box[0] - box[2] / 2, box[1] - box[3] / 2, *box[2:]), key) for box, key in boxes):
        return
    if outside := [box for box, key in boxes if not fits_in_image(box, key)]:
        raise UserError(
            f"x and y in {shown_path!r} seem to be the centres of the boxes: as corners, they would put "
            f"{counted(len(outside), 'box', 'boxes')} partly outside of the image, such as {_format_box(outside[0])}, "
            "but as centres they would put no box outside. Give the edges of the boxes as xmin, ymin, xmax, ymax."
        )


def _are_valid_edges(box: Corners, size: tuple[int, int]) -> bool:
    """Return whether edges are in order (left before right) and within an image of (height, width), up to rounding."""
    left, top, right, bottom = box
    height, width = (1, 1) if max(box) <= 1 else size
    return left <= right <= MAX_EDGE * width and top <= bottom <= MAX_EDGE * height


def _are_fractions(rows: Sequence[_Row], shown_path: str) -> bool:
    """Return whether boxes are fractions of the image's sides (0 to 1) instead of pixels; refuse a mixture."""
    examples: dict[bool, _Row] = {}  # the first row with fractions (True) and the first in pixels (False)
    for row in rows:
        if row.box is not None and row.box[0] < row.box[2]:
            examples.setdefault(max(row.box) <= 1, row)
    if len(examples) > 1:
        fractions, pixels = examples[True], examples[False]
        raise UserError(
            f"{shown_path!r} has a box with the edges {_format_box(fractions.box)} in line {fractions.line} and a box "
            f"with {_format_box(pixels.box)} in line {pixels.line}: give all boxes in pixels, or all from 0 to 1."
        )
    return True in examples


def _format_box(box: Corners | None) -> str:
    return " ".join(f"{edge:g}" for edge in box or ())
