"""Reads boxes and outlines from LabelMe JSON files. One file describes one image."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from paucal.data.boxes.annotations import (
    AnnotatedImage,
    AnnotationSet,
    Corners,
    Layout,
    are_numbers,
    box_of_points,
    polygon_of_points,
    positive_size,
    shorten_notes,
    unread_shapes_notes,
)
from paucal.data.boxes.naming import assign_keys
from paucal.data.boxes.tree import Tree, contains_json_key
from paucal.data.classes import plain_name
from paucal.types import UserError

MAX_BYTES = 1 << 28  # size of the largest file that is read; a file may contain the pixels of its image
HEAD_BYTES = 1 << 20  # bytes at the start and at the end of a file that are searched for `ENTRIES`
JSON_SUFFIX = ".json"
ENTRIES = ("shapes", "imagePath")
# Shape types that are read, and types of rotated boxes, which are refused; other shapes (points, lines) have no area.
SHAPES_WITH_AREA, ROTATED_SHAPES = ("polygon", "rectangle", "circle", "mask"), ("rotation", "rotated_rectangle")
_Object = tuple[str, Corners, Any]  # class name, box, outline


def find(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return LabelMe JSON files, and the other JSON files beside them that have the stem of an image.

    The others may be damaged LabelMe files, which are reported when they are read.
    """
    json_files = [file for file in files if file.lower().endswith(JSON_SUFFIX)]
    recognised = {
        file for file in json_files if all(contains_json_key(tree.peek(file, HEAD_BYTES), name) for name in ENTRIES)
    }
    folders = {file.rpartition("/")[0] for file in recognised}
    stems = {image.rpartition(".")[0] for image in tree.images} if recognised else set()
    return [
        file
        for file in json_files
        if file in recognised or (file.rpartition("/")[0] in folders and file.rpartition(".")[0] in stems)
    ]


def read(tree: Tree, files: Sequence[str]) -> AnnotationSet:
    """Read the JSON files of a data set: rectangles, polygons, circles, and the boxes of masks."""
    stated_names: dict[str, list[str]] = {}
    images: list[AnnotatedImage] = []
    notes: list[str] = []
    unread: Counter[str] = Counter()
    for file in files:
        content, shown_path = tree.read_json(file, MAX_BYTES, "give LabelMe JSON", notes), tree.shown_path(file)
        shapes = content.get("shapes") if isinstance(content, dict) else None
        if not isinstance(shapes, list) or not all(isinstance(shape, dict) for shape in shapes):
            raise UserError(f"{shown_path!r} has no list of 'shapes': give a LabelMe JSON file.")
        path = content.get("imagePath")
        stated_names[file] = [path if isinstance(path, str) else ""]
        size = positive_size(content.get("imageHeight"), content.get("imageWidth"))
        image = AnnotatedImage("", size=size, source=file)
        for shape_object in _read_objects(shapes, shown_path, unread):
            image.add(*shape_object)
        images.append(image)
    notes = shorten_notes(notes)
    assign_keys(images, stated_names, tree, notes)
    return AnnotationSet.with_numbered_classes(images, tree.shown_root, [*notes, *unread_shapes_notes(unread)])


LAYOUT = Layout("LabelMe JSON", "LabelMe JSON of each image", (JSON_SUFFIX,), find, read)


def _read_objects(shapes: Sequence[Mapping[str, Any]], shown_path: str, unread: Counter[str]) -> list[_Object]:
    """Return the objects of an image; shapes without an area are counted by type in `unread`."""
    groups: dict[tuple[str, Any], _Object] = {}
    for number, shape in enumerate(shapes):
        kind, label, points = shape.get("shape_type") or "polygon", shape.get("label"), shape.get("points")
        if kind in ROTATED_SHAPES:
            raise UserError(
                f"{shown_path!r} has a rotated box ({kind}), and rotated boxes are not read: draw an upright box, or a "
                "polygon."
            )
        if kind not in SHAPES_WITH_AREA:
            unread[str(kind)] += 1
            continue
        if not isinstance(label, str | int) or not str(label).strip():
            raise UserError(f"{shown_path!r} has a {kind} without a label: add the label.")
        if not isinstance(points, list) or len(points) < 2 or not all(are_numbers(point, 2) for point in points):
            raise UserError(
                f"{shown_path!r} has a {kind} of {str(label)!r} with the points {repr(points)[:80]}, expected at least "
                "two pairs of x and y: correct the points."
            )
        box, polygon = polygon_of_points([(float(x), float(y)) for x, y in points])
        outline = polygon if kind == "polygon" else None
        if kind == "circle":
            (x, y), radius = points[0], math.dist(points[0], points[1])
            box = (x - radius, y - radius, x + radius, y + radius)
        if kind == "mask":  # the points are the first and the last pixel inside the box
            box = (box[0], box[1], box[2] + 1, box[3] + 1)
        # Shapes with the same group and class are one object, for example an object whose middle is hidden.
        name, group = plain_name(str(label)), shape.get("group_id")
        key = (name, f"group {group}" if group is not None else number)
        if key in groups:
            _, first_box, first_outline = groups[key]
            box = box_of_points([first_box[:2], first_box[2:], box[:2], box[2:]])
            outline = first_outline + outline if first_outline and outline else None
        groups[key] = name, box, outline
    return list(groups.values())
