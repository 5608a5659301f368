"""Boxes from Pascal VOC's XML: one file for each image."""

from collections.abc import Sequence
from xml.etree import ElementTree

from paucal.data.boxes.claims import claimed, require_images
from paucal.data.boxes.described import Annotated, Corners, Described, Layout, number_or_none, numbered, some_of
from paucal.data.boxes.tree import Tree
from paucal.data.boxes.xml_text import XML, parse_xml, root_name
from paucal.data.classes import plain_name
from paucal.types import UserError

EDGES = ("xmin", "ymin", "xmax", "ymax")


def find(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return the XML files of single images, and those beside them, which are damaged if they are none."""
    named = [file for file in files if file.lower().endswith(XML)]
    roots = {file: root_name(tree, file) for file in named}
    folders = {file.rpartition("/")[0] for file, root in roots.items() if root == "annotation"}
    return [file for file, root in roots.items() if file.rpartition("/")[0] in folders and root != "annotations"]


def read(tree: Tree, files: Sequence[str]) -> Described:
    """Read the XML files of a set.

    The corners are taken as the edges of the box; programs that count pixels from 1 are then off by at most one.

    Raises:
        UserError: A file is no annotation, declares entities, has a turned box, or belongs to no image.
    """
    named: dict[str, list[str]] = {}
    found: list[Annotated] = []
    notes: list[str] = []
    for file in files:
        content, note = parse_xml(tree, file)
        named[file] = [(content.findtext(tag) or "").strip() for tag in ("filename", "path")]
        found.append(_described(content, file, tree.place_of(file)))
        notes += [note] if note else []
    keys, more = claimed(tree, named)
    require_images(tree, named, keys)
    for one in found:
        one.key = keys[one.source]
    return Described(found, numbered(found, tree.shown), (*some_of(notes), *more))


LAYOUT = Layout(
    name="Pascal VOC's XML",
    expected="Pascal VOC's Annotations/*.xml and JPEGImages/, or the XML files beside the images",
    suffixes=(".xml",),
    find=find,
    read=read,
)


def _described(content: ElementTree.Element, file: str, place: str) -> Annotated:
    one = Annotated("", size=_size(content, place), source=file, mark="difficult")
    for item in content.findall("object"):
        name = plain_name(item.findtext("name") or "")
        if not name:
            raise UserError(f"{place!r} has an object without a name: correct it.")
        is_difficult = (item.findtext("difficult") or "").strip().lower() in ("1", "true")
        one.add(_corners(item, place), name, is_difficult)
    return one


def _corners(item: ElementTree.Element, place: str) -> Corners:
    if item.find("robndbox") is not None and item.find("bndbox") is None:
        raise UserError(
            f"{place!r} has a turned box (robndbox), and turned boxes are not read: write upright ones (bndbox)."
        )
    texts = [item.findtext(f"bndbox/{name}") for name in EDGES]
    numbers = [number_or_none(text or "") for text in texts]
    left, top, right, bottom = numbers
    if left is None or top is None or right is None or bottom is None:
        raise UserError(
            f"{place!r} has a box with the corners {texts}, expected numbers for xmin, ymin, xmax and ymax: correct it."
        )
    return left, top, right, bottom


def _size(content: ElementTree.Element, place: str) -> tuple[int, int] | None:
    height, width = content.findtext("size/height"), content.findtext("size/width")
    if height is None or width is None:
        return None
    try:
        size = int(float(height)), int(float(width))
    except (ValueError, OverflowError):
        raise UserError(f"{place!r} says its image is {width!r} by {height!r} pixels: correct it.") from None
    return size if min(size) > 0 else None  # some programs write 0 for "unknown"
