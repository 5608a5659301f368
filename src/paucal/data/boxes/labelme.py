"""Boxes and outlines from LabelMe's JSON: one file per image."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from paucal.data.boxes.annotations import (
    AnnotatedImage,
    AnnotationSet,
    Corners,
    Layout,
    box_of_points,
    polygon_of_points,
    shorten_notes,
    unread_shapes_notes,
)
from paucal.data.boxes.naming import assign_keys
from paucal.data.boxes.tree import Tree, mentions
from paucal.data.classes import plain_name
from paucal.types import UserError

MAX_BYTES = 1 << 28  # per image; the file may contain its pixels
HEAD = 1 << 20  # bytes at the start and at the end that are searched for the entries below
JSON = ".json"
ENTRIES = ("shapes", "imagePath")
# Shapes with an area, and rotated boxes; other shapes (points, lines) have no box.
AREAS, ROTATED = ("polygon", "rectangle", "circle", "mask"), ("rotation", "rotated_rectangle")
_Entry = tuple[str, Corners, Any]  # class name, box, outline


def find(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return the JSON files that describe one image, and JSON files beside them that are named after an image."""
    json_files = [file for file in files if file.lower().endswith(JSON)]
    certain = {file for file in json_files if all(mentions(tree.peek(file, HEAD), name) for name in ENTRIES)}
    folders = {file.rpartition("/")[0] for file in certain}
    stems = {image.rpartition(".")[0] for image in tree.images} if certain else set()
    beside = {file for file in json_files if file.rpartition("/")[0] in folders and file.rpartition(".")[0] in stems}
    return [file for file in json_files if file in certain | beside]


def read(tree: Tree, files: Sequence[str]) -> AnnotationSet:
    """Read the JSON files of a set: rectangles, polygons, circles, and the boxes of masks."""
    stated_names: dict[str, list[str]] = {}
    images: list[AnnotatedImage] = []
    notes: list[str] = []
    unread: Counter[str] = Counter()
    for file in files:
        content, file_notes = tree.json(file, MAX_BYTES, "give LabelMe's JSON")
        notes += file_notes
        place = tree.place_of(file)
        shapes = content.get("shapes") if isinstance(content, dict) else None
        if not isinstance(shapes, list) or not all(isinstance(shape, dict) for shape in shapes):
            raise UserError(f"{place!r} has no list of 'shapes': give LabelMe's JSON.")
        path = content.get("imagePath")
        stated_names[file] = [path if isinstance(path, str) else ""]
        height, width = (content.get(name) for name in ("imageHeight", "imageWidth"))
        size = (height, width) if type(height) is int and type(width) is int and min(height, width) > 0 else None
        image = AnnotatedImage("", size=size, source=file)
        for entry in _read_objects(shapes, place, unread):
            image.add(*entry)
        images.append(image)
    notes = [*shorten_notes(notes), *assign_keys(images, stated_names, tree), *unread_shapes_notes(unread)]
    return AnnotationSet.numbered(images, tree.shown, notes)


LAYOUT = Layout(
    name="LabelMe's JSON",
    expected="LabelMe's JSON of each image",
    suffixes=(JSON,),
    find=find,
    read=read,
)


def _read_objects(shapes: Sequence[Mapping[str, Any]], place: str, unread: Counter[str]) -> list[_Entry]:
    """Return the objects of an image; `unread` counts shapes without an area by their kind."""
    groups: dict[tuple[str, Any], _Entry] = {}
    for number, shape in enumerate(shapes):
        kind = shape.get("shape_type") or "polygon"
        if kind in ROTATED:
            raise UserError(
                f"{place!r} has a rotated box ({kind}), and rotated boxes are not read: draw it upright, or as a "
                "polygon."
            )
        if kind not in AREAS:
            unread[str(kind)] += 1
            continue
        entry = _to_entry(shape, str(kind), place)
        group = shape.get("group_id")
        # Shapes of one group and class are one object, for example an object with a hidden middle.
        key = (entry[0], f"group {group}" if group is not None else number)
        groups[key] = _join_entries(groups[key], entry) if key in groups else entry
    return list(groups.values())


def _to_entry(shape: Mapping[str, Any], kind: str, place: str) -> _Entry:
    name, points = shape.get("label"), shape.get("points")
    if not isinstance(name, str | int) or not str(name).strip():
        raise UserError(f"{place!r} has a {kind} without a label: correct it.")
    if not isinstance(points, list) or len(points) < 2 or not all(map(_is_point, points)):
        raise UserError(
            f"{place!r} has a {kind} of {str(name)!r} with the points {repr(points)[:80]}, expected at least two of x "
            "and y: correct it."
        )
    box, outline = polygon_of_points([(float(x), float(y)) for x, y in points])
    if kind == "circle":
        (x, y), edge = points[0], points[1]
        radius = math.dist(points[0], edge)
        box = (x - radius, y - radius, x + radius, y + radius)
    if kind == "mask":  # its corners are pixels inside the object, not edges
        box = (box[0], box[1], box[2] + 1, box[3] + 1)
    return plain_name(str(name)), box, outline if kind == "polygon" else None


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 2 and all(type(value) in (int, float) for value in point)


def _join_entries(first: _Entry, second: _Entry) -> _Entry:
    name, box, outline = first
    corners = [box[:2], box[2:], second[1][:2], second[1][2:]]
    return name, box_of_points(corners), outline + second[2] if outline and second[2] else None
