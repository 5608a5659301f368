"""Boxes and outlines from LabelMe's JSON: one file for each image."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from paucal.data.boxes.claims import claimed, require_images
from paucal.data.boxes.described import (
    Annotated,
    Corners,
    Described,
    Layout,
    box_of_points,
    numbered,
    some_of,
    unread_shapes,
)
from paucal.data.boxes.tree import Tree, mentions
from paucal.data.classes import plain_name
from paucal.reading import parse_json
from paucal.types import UserError

MOST_BYTES = 1 << 28  # of one image, whose pixels may be in it
HEAD = 1 << 20  # bytes at the beginning and at the end that its entries are in
JSON = ".json"
ENTRIES = ("shapes", "imagePath")
# Shapes with an area, and those that are turned boxes; others (points, lines) have no box.
AREAS, TURNED = ("polygon", "rectangle", "circle", "mask"), ("rotation", "rotated_rectangle")
_Entry = tuple[str, Corners, Any]  # name of the class, box, outline


def find(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return the JSON files of single images, and those beside them that are called like an image."""
    named = [file for file in files if file.lower().endswith(JSON)]
    certain = {file for file in named if all(mentions(tree.peek(file, HEAD), name) for name in ENTRIES)}
    folders = {file.rpartition("/")[0] for file in certain}
    stems = {image.rpartition(".")[0] for image in tree.images} if certain else set()
    return [
        file
        for file in named
        if file in certain or (file.rpartition("/")[0] in folders and file.rpartition(".")[0] in stems)
    ]


def read(tree: Tree, files: Sequence[str]) -> Described:
    """Read the JSON files of a set: rectangles, polygons, circles, and the boxes of masks.

    Raises:
        UserError: A file is no such JSON, has a turned box or a shape that is damaged, or belongs to no image.
    """
    named: dict[str, list[str]] = {}
    found: list[Annotated] = []
    notes: list[str] = []
    others: Counter[str] = Counter()
    for file in files:
        text = tree.text(file, MOST_BYTES)
        notes += [text.note] if text.note else []
        one = _File(tree.place_of(file), text.text)
        named[file] = [one.image]
        found.append(one.described(file, others))
    keys, more = claimed(tree, named)
    require_images(tree, named, keys)
    for one in found:
        one.key = keys[one.source]
    return Described(found, numbered(found, tree.shown), (*some_of(notes), *more, *unread_shapes(others)))


LAYOUT = Layout(
    name="LabelMe's JSON",
    expected="LabelMe's JSON of each image",
    suffixes=(JSON,),
    find=find,
    read=read,
)


class _File:
    """One JSON file.

    Args:
        place: Name of the file in messages.
        text: Content of the file.
    """

    def __init__(self, place: str, text: str) -> None:
        self._place = place
        try:
            content = parse_json(text)
        except ValueError as problem:
            raise UserError(f"{place!r} cannot be read ({problem}): give LabelMe's JSON.") from None
        shapes = content.get("shapes") if isinstance(content, dict) else None
        if not isinstance(shapes, list) or not all(isinstance(shape, dict) for shape in shapes):
            raise UserError(f"{place!r} has no list of 'shapes': give LabelMe's JSON.")
        self._content, self._shapes = content, shapes
        path = content.get("imagePath")
        self.image = path if isinstance(path, str) else ""

    def described(self, file: str, others: Counter[str]) -> Annotated:
        """Return the image of the file; shapes without an area are counted."""
        height, width = (self._content.get(name) for name in ("imageHeight", "imageWidth"))
        size = (height, width) if type(height) is int and type(width) is int and min(height, width) > 0 else None
        one = Annotated("", size=size, source=file)
        groups: dict[tuple[str, Any], _Entry] = {}
        for place, shape in enumerate(self._shapes):
            kind = shape.get("shape_type") or "polygon"
            if kind in TURNED:
                raise UserError(
                    f"{self._place!r} has a turned box ({kind}), and turned boxes are not read: draw it upright, or as "
                    "a polygon."
                )
            if kind not in AREAS:
                others[str(kind)] += 1
                continue
            entry = self._entry(shape, str(kind))
            group = shape.get("group_id")
            # Shapes of one group and class are one object, as where something hides its middle.
            key = (entry[0], f"group {group}" if group is not None else place)
            groups[key] = _united(groups[key], entry) if key in groups else entry
        for name, box, outline in groups.values():
            one.add(box, name, outline=outline)
        return one

    def _entry(self, shape: Mapping[str, Any], kind: str) -> _Entry:
        name, points = shape.get("label"), shape.get("points")
        if not isinstance(name, str | int) or not str(name).strip():
            raise UserError(f"{self._place!r} has a {kind} without a label: correct it.")
        if not isinstance(points, list) or len(points) < 2 or not all(map(_is_point, points)):
            raise UserError(
                f"{self._place!r} has a {kind} of {str(name)!r} with the points {repr(points)[:80]}, expected at least "
                "two of x and y: correct it."
            )
        box, outline = box_of_points([(float(x), float(y)) for x, y in points]), None
        if kind == "polygon":
            outline = [[float(value) for point in points for value in point]]
        if kind == "circle":
            (x, y), edge = points[0], points[1]
            radius = math.dist(points[0], edge)
            box = (x - radius, y - radius, x + radius, y + radius)
        if kind == "mask":  # its corners are pixels within it
            box = (box[0], box[1], box[2] + 1, box[3] + 1)
        return plain_name(str(name)), box, outline


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 2 and all(type(value) in (int, float) for value in point)


def _united(one: _Entry, other: _Entry) -> _Entry:
    name, box, outline = one
    corners = [box[:2], box[2:], other[1][:2], other[1][2:]]
    return name, box_of_points(corners), outline + other[2] if outline and other[2] else None
