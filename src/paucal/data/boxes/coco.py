"""Boxes from COCO's JSON: one file for many images."""

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from paucal.data.boxes.described import (
    MOST_CLASSES,
    Annotated,
    Corners,
    Described,
    Layout,
    add_once,
    box_of_points,
    without_repetition,
)
from paucal.data.boxes.naming import MissingImage, Names, kind_of_name
from paucal.data.boxes.runs import box_of_runs
from paucal.data.boxes.tree import PEEKED, Tree, mentions
from paucal.data.splits.part_names import part_of_file
from paucal.reading import parse_json
from paucal.types import UserError
from paucal.wording import counted, was

_NAMED = re.compile(r".*\.coco\.json|instances_.*\.json")
MOST_BYTES = 1 << 29  # instances_train2017.json, of 118,000 images, has 449 MB
BOXES = "instances"  # the first word of COCO's own files of boxes
HEAD = 1 << 16  # bytes at the beginning of a file: one of its entries is there
ENTRIES = ("images", "annotations", "categories")
# The first words of COCO's own files of other things, of which some have boxes too.
OTHERS = ("captions", "person_keypoints", "image_info", "panoptic", "stuff")


def find(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return the JSON files that hold images with annotations, or are called so."""
    named = [file for file in files if file.lower().endswith(".json")]
    likely = [file for file in named if any(mentions(tree.peek(file, HEAD), name) for name in ENTRIES)]
    certain = {file for file in likely if all(mentions(tree.peek(file, PEEKED), name) for name in ENTRIES)}
    return [file for file in named if file in certain or _NAMED.fullmatch(file.rpartition("/")[2].lower())]


def read(tree: Tree, files: Sequence[str]) -> Described:
    """Read the files of a set, each of which is of one part or of none.

    Raises:
        UserError: A file is no such JSON, two files describe one image, a box is of an image or a category that its
            file does not list, or an image is not there.
    """
    chosen = files
    if any(_called_like(file, BOXES) for file in files):
        chosen = [file for file in files if not _called_like(file, *OTHERS)]
    names = Names(tree.images, tree)
    contents = [_File(tree, file, names).described() for file in chosen]
    kept, notes = _without_repetition(contents)
    images: dict[str, Annotated] = {}
    for one in kept:
        for image in one.images:
            add_once(images, image, tree.shown)
    if len(files) > 1 and chosen is not files:
        others = [PurePosixPath(file).name for file in tree.ending(".json") if _called_like(file, *OTHERS)]
        told = f"{counted(len(others), 'file')} beside {BOXES}_*.json {was(len(others))} passed over"
        notes += [f"{told}: {', '.join(others)}"] if others else []
    numbers = _joined([one.numbers for one in kept], tree)
    return Described(list(images.values()), numbers, (*(note for one in kept for note in one.notes), *notes))


LAYOUT = Layout(
    name="COCO's JSON",
    expected="COCO's JSON beside the images, above them or in annotations/, a file for each part where there are parts",
    suffixes=(".json",),
    find=find,
    read=read,
)


def _called_like(file: str, *words: str) -> bool:
    return PurePosixPath(file).name.lower().startswith(words)


def _without_repetition(contents: Sequence[Described]) -> tuple[list[Described], list[str]]:
    """Return the files but those that repeat others: a file of all images beside one of each part."""
    known: dict[str, Annotated] = {}
    passed: list[Described] = []
    for one in sorted(contents, key=lambda one: len(one.images)):
        if one.images and all(image.key in known and image.is_alike(known[image.key]) for image in one.images):
            passed.append(one)
        known.update({image.key: image for image in one.images})
    notes = [f"{one.images[0].source} repeats what other files say, and was passed over" for one in passed]
    return [one for one in contents if not any(one is other for other in passed)], notes


class _File:
    """One JSON file.

    Args:
        tree: Files of the set.
        file: Path of the JSON.
        names: Images of the set.
    """

    def __init__(self, tree: Tree, file: str, names: Names) -> None:
        self._tree, self._file, self._names = tree, file, names
        self._shown = tree.place_of(file)
        self._part = part_of_file(file)
        self._notes: list[str] = []

    def described(self) -> Described:
        """Return what the file says."""
        content = self._content()
        categories, numbers = self._categories(content)
        by_id: dict[Any, Annotated] = {}
        rows = self._rows(content, "images")
        for row in rows:
            name, number = row.get("file_name"), _id(row.get("id"))
            if not isinstance(name, str) or not name or number is None:
                raise UserError(
                    f"{self._shown!r} has an image without an id or a file_name: {_short(row)}; correct it."
                )
            if number in by_id:
                raise UserError(
                    f"{self._shown!r} has two images with the id {number!r}: give each image an id of its own."
                )
            by_id[number] = Annotated("", size=_size(row), declared=self._part, source=self._file)
        self._find_images([row["file_name"] for row in rows], list(by_id.values()))
        boxes = self._rows(content, "annotations")
        if boxes and all("score" in row for row in boxes):
            self._notes.append(f"the boxes of {self._file} have scores, as those that a detector has found")
        for row in boxes:
            self._add_box(row, by_id, categories)
        return Described(list(by_id.values()), numbers, tuple(self._notes))

    def _content(self) -> Mapping[str, Any]:
        text = self._tree.text(self._file, MOST_BYTES)
        self._notes += [text.note] if text.note else []
        try:
            content = parse_json(text.text)
        except ValueError as problem:
            raise UserError(f"{self._shown!r} cannot be read ({problem}): give COCO's JSON of boxes.") from None
        if not isinstance(content, dict) or not set(ENTRIES) <= set(content):
            raise UserError(
                f"{self._shown!r} lacks 'images', 'annotations' or 'categories': give COCO's JSON of boxes."
            )
        return content

    def _rows(self, content: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
        rows = content[name]
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise UserError(f"{self._shown!r} has {name!r} that are no list of entries: give COCO's JSON of boxes.")
        return rows

    def _categories(self, content: Mapping[str, Any]) -> tuple[dict[Any, str], dict[str, int]]:
        """Return the name of each category, and the number of each class."""
        rows = self._rows(content, "categories")
        if len(rows) > MOST_CLASSES:
            raise UserError(f"{self._shown!r} lists {len(rows):,} categories; at most {MOST_CLASSES:,} are read.")
        found: dict[Any, str] = {}
        for row in rows:
            number, name = _id(row.get("id")), row.get("name")
            if number is None or not isinstance(name, str) or not name.strip() or number in found:
                raise UserError(
                    f"{self._shown!r} has a category without a name or an id of its own: {_short(row)}; correct it."
                )
            found[number] = unicodedata.normalize("NFC", name)
        names = without_repetition(found)
        whole = all(isinstance(number, int) for number in names)
        return names, {name: number if whole else place for place, (number, name) in enumerate(names.items(), 1)}

    def _find_images(self, names: Sequence[str], images: Iterable[Annotated]) -> None:
        keys = self._names.located(names, self._file, self._part)
        for name, key, one in zip(names, keys, images, strict=True):
            if key is None:
                kind = kind_of_name(name)
                if kind:
                    raise MissingImage(f"{self._shown!r} names the image {name[:120]!r}, {kind}.")
                raise MissingImage(
                    f"{self._file} describes {name[:120]!r}, and there is no such image in {self._tree.shown!r}: add "
                    "it, or give the folder above both as DATA."
                )
            one.key = key

    def _add_box(self, row: dict[str, Any], images: Mapping[Any, Annotated], categories: Mapping[Any, str]) -> None:
        image, category = _id(row.get("image_id")), _id(row.get("category_id"))
        if image not in images:
            raise UserError(
                f"{self._shown!r} has a box of the image {row.get('image_id')!r}, which it does not list: add the "
                "image."
            )
        if category not in categories:
            raise UserError(
                f"{self._shown!r} has a box of the category {row.get('category_id')!r}, which it does not list among "
                f"{', '.join(map(str, list(categories)[:8]))}: add the category, or correct the box."
            )
        outline = row.get("segmentation")  # polygons, or lengths of runs
        crowd = bool(_number(row.get("iscrowd")) or 0)
        images[image].add(self._box(row.get("bbox"), outline), categories[category], crowd, outline)

    def _box(self, box: Any, outline: Any) -> Corners:
        if not box and outline:
            found = _box_of_outline(outline)
            if found is not None:
                return found
        if not isinstance(box, list) or len(box) != 4 or not all(type(n) in (int, float) for n in box):
            raise UserError(
                f"{self._shown!r} has a 'bbox' {_short(box)}, expected left, top, width and height: correct it."
            )
        left, top, width, height = (float(n) for n in box)
        return left, top, left + width, top + height


def _id(value: Any) -> int | str | None:
    """Return an id in one form, since programs write 3, 3.0 and "3"; None for what is no id."""
    if isinstance(value, str):
        number = _number(value)
        return int(value) if value.isdecimal() else value or None if number is None else _id(number)
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if type(value) is int else None


def _number(value: Any) -> float | None:
    """Return a finite number, or a text of one; None for anything else."""
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _size(row: Mapping[str, Any]) -> tuple[int, int] | None:
    sides = _number(row.get("height")), _number(row.get("width"))
    height, width = (0 if side is None else int(side) for side in sides)
    return (height, width) if min(height, width) > 0 else None  # some programs write 0 for "unknown"


def _box_of_outline(outline: Any) -> Corners | None:
    """Return the box around an outline; None where it is not one, which those say that draw it."""
    if isinstance(outline, dict):
        return box_of_runs(outline)
    polygons = [one for one in outline if isinstance(one, list)] if isinstance(outline, list) else []
    values = [value for polygon in polygons for value in polygon[: len(polygon) // 2 * 2]]
    if not values or not all(type(value) in (int, float) for value in values):
        return None
    return box_of_points(zip(values[::2], values[1::2], strict=True))


def _joined(numbers: Sequence[Mapping[str, int]], tree: Tree) -> dict[str, int]:
    """Return one number for each class of several files."""
    joined: dict[str, int] = {}
    for one in numbers:
        for name, number in one.items():
            joined.setdefault(name, number)
    if len(set(joined.values())) == len(joined):
        return joined
    if all(sorted(one.values()) == list(range(1, len(one) + 1)) for one in numbers):
        return {name: number for number, name in enumerate(sorted(joined), 1)}
    raise UserError(
        f"the files of {tree.shown!r} give one number to several classes: give each class one number in all."
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
