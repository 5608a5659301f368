"""Boxes from CVAT's XML for images: one file for many images."""

from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np

from paucal.data.boxes.described import (
    Annotated,
    Corners,
    Described,
    Layout,
    add_once,
    box_of_points,
    numbered,
    unread_shapes,
)
from paucal.data.boxes.naming import MissingImage, Names
from paucal.data.boxes.runs import runs_of
from paucal.data.boxes.tree import Tree
from paucal.data.boxes.xml_text import XML, parse_xml, root_name
from paucal.data.classes import plain_name
from paucal.data.splits.part_names import part_of_file, part_of_name
from paucal.types import UserError

EDGES = ("xtl", "ytl", "xbr", "ybr")
OF_AN_IMAGE = ("tag",)  # children of an image that are no shapes


def find(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return the XML files of many images."""
    return [file for file in files if file.lower().endswith(XML) and root_name(tree, file) == "annotations"]


def read(tree: Tree, files: Sequence[str]) -> Described:
    """Read the XML files of a set: boxes, polygons and masks.

    Raises:
        UserError: A file is no annotation, is of a video, has a turned box or a shape that is damaged, or an image is
            not there or is described twice.
    """
    images: dict[str, Annotated] = {}
    notes: list[str] = []
    others: Counter[str] = Counter()
    names = Names(tree.images, tree)
    for file in files:
        content, note = parse_xml(tree, file)
        notes += [note] if note else []
        for one in _images(content, tree, file, names, others):
            add_once(images, one, tree.shown)
    found = list(images.values())
    return Described(found, numbered(found, tree.shown), (*notes, *unread_shapes(others)))


LAYOUT = Layout(
    name="CVAT's XML for images",
    expected="CVAT's annotations.xml for images",
    suffixes=(XML,),
    find=find,
    read=read,
)


def _images(content: ElementTree.Element, tree: Tree, file: str, names: Names, others: Counter[str]) -> list[Annotated]:
    place = tree.place_of(file)
    if content.find("track") is not None:
        raise UserError(
            f"{place!r} has tracks of objects in a video, which are not read: export it as 'CVAT for images' with the "
            "frames."
        )
    items = content.findall("image")
    part = part_of_file(file)
    keys = names.located([item.get("name", "") for item in items], file, part)
    found = []
    for item, key in zip(items, keys, strict=True):
        if key is None:
            raise MissingImage(
                f"{place!r} describes {item.get('name', '')!r}, and there is no such image in {tree.shown!r}: add it."
            )
        one = Annotated(key, size=_size(item), declared=part_of_name(item.get("subset") or "") or part, source=file)
        for shape in item:
            _add(one, shape, place, others)
        found.append(one)
    return found


def _add(one: Annotated, shape: ElementTree.Element, place: str, others: Counter[str]) -> None:
    if shape.tag in OF_AN_IMAGE:
        return
    name = plain_name(shape.get("label") or "")
    try:
        turn = float(shape.get("rotation") or 0)
        box, outline = _outlined(shape, one.size)
    except ValueError:
        raise UserError(
            f"{place!r} has a {shape.tag} of {name!r} in {one.key!r} whose numbers cannot be read: correct it."
        ) from None
    if box is None:
        others[shape.tag] += 1
        return
    if not name:
        raise UserError(f"{place!r} has a {shape.tag} without a label in {one.key!r}: correct it.")
    if turn % 360:
        raise UserError(
            f"{place!r} has a {shape.tag} of {name!r} in {one.key!r} that is turned by {turn:g} degrees, and turned "
            "boxes are not read: draw it upright, or as a polygon."
        )
    one.add(box, name, outline=outline)


def _outlined(shape: ElementTree.Element, size: tuple[int, int] | None) -> tuple[Corners | None, object]:
    """Return the box of a shape and its outline; no box where it has no area of its own.

    Raises:
        ValueError: A number is missing or is none.
    """
    if shape.tag == "box":
        left, top, right, bottom = (float(shape.get(edge) or "") for edge in EDGES)
        return (left, top, right, bottom), None
    if shape.tag == "polygon":
        pairs = [pair.split(",") for pair in (shape.get("points") or "").split(";")]
        points = [(float(x), float(y)) for x, y in pairs]
        return box_of_points(points), [[value for point in points for value in point]]
    if shape.tag == "mask" and size is not None:
        return _mask(shape, size)
    return None, None


def _mask(shape: ElementTree.Element, size: tuple[int, int]) -> tuple[Corners, object]:
    left, top, width, height = (int(shape.get(name) or "") for name in ("left", "top", "width", "height"))
    lengths = np.asarray([int(one) for one in (shape.get("rle") or "").split(",")], dtype=np.int64)
    is_inside = (
        left >= 0 and top >= 0 and width > 0 and height > 0 and left + width <= size[1] and top + height <= size[0]
    )
    if not is_inside or lengths.min() < 0 or lengths.max() > width * height or lengths.sum() != width * height:
        raise ValueError("it does not fit the image")
    mask = np.zeros(size, dtype=np.bool_)
    runs = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)  # row by row
    mask[top : top + height, left : left + width] = runs.reshape(height, width)
    return (float(left), float(top), float(left + width), float(top + height)), runs_of(mask)


def _size(item: ElementTree.Element) -> tuple[int, int] | None:
    sides = item.get("height") or "", item.get("width") or ""
    return (int(sides[0]), int(sides[1])) if all(side.isdecimal() and int(side) > 0 for side in sides) else None
