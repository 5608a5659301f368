"""Reads boxes from XML: Pascal VOC files, each for one image, and CVAT files, each for many images."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

import numpy as np

from paucal.data.boxes.annotations import (
    MAX_PIXELS,
    AnnotatedImage,
    AnnotationSet,
    Corners,
    Layout,
    add_image,
    parse_number,
    polygon_of_points,
    positive_size,
    run_lengths_of,
    shorten_notes,
    unread_shapes_notes,
)
from paucal.data.boxes.naming import ImageFinder, assign_keys, missing_image_error
from paucal.data.boxes.tree import Tree, ascii_bytes
from paucal.data.classes import plain_name
from paucal.data.splits.part_names import split_in_name, split_of_file
from paucal.reading import decode_text
from paucal.types import UserError

XML_SUFFIX = ".xml"
# Size of the largest file that is read. CVAT writes a few kilobytes for each image, and all images to one file.
MAX_BYTES = 1 << 28
_MAX_DIGITS = 9  # largest number of digits of a width or height
HEAD_BYTES = 1 << 13  # bytes at the start and at the end of a file that are searched for the outermost element
ELLIPSE_POINTS = 72  # number of points of the polygon that an ellipse is converted to
VOC_EDGES, CVAT_EDGES = ("xmin", "ymin", "xmax", "ymax"), ("xtl", "ytl", "xbr", "ybr")
_ENCODING = re.compile(rb"<\?xml[^>]*\sencoding\s*=\s*[\"']([A-Za-z0-9._:-]+)[\"']")
_MULTI_BYTE_ENCODINGS = ("utf-16", "utf16", "utf-32", "utf32", "ucs", "iso-10646")  # prefixes of encoding names
_FIRST_ELEMENT = re.compile(rb"<([A-Za-z_][\w.:-]*)")


def find_voc(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return the XML files that describe one image each, and the other XML files beside them.

    The others may be damaged Pascal VOC files, which are reported when they are read.
    """
    roots = {file: _root_name(tree, file) for file in files if file.lower().endswith(XML_SUFFIX)}
    folders = {file.rpartition("/")[0] for file, root in roots.items() if root == "annotation"}
    return [file for file, root in roots.items() if file.rpartition("/")[0] in folders and root != "annotations"]


def read_voc(tree: Tree, files: Sequence[str]) -> AnnotationSet:
    """Read Pascal VOC XML files.

    The stated corners are used as edges of the boxes. If the program that wrote the file counts pixels from 1, the
    edges are off by at most one pixel.
    """
    stated_names: dict[str, list[str]] = {}
    images: list[AnnotatedImage] = []
    notes: list[str] = []
    for file in files:
        content = parse_xml(tree, file, notes)
        stated_names[file] = [(content.findtext(tag) or "").strip() for tag in ("filename", "path")]
        images.append(_voc_image(content, file, tree.shown_path(file)))
    notes = shorten_notes(notes)
    assign_keys(images, stated_names, tree, notes)
    return AnnotationSet.with_numbered_classes(images, tree.shown_root, notes)


def find_cvat(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return the XML files that describe many images, as CVAT writes them."""
    return [file for file in files if file.lower().endswith(XML_SUFFIX) and _root_name(tree, file) == "annotations"]


def read_cvat(tree: Tree, files: Sequence[str]) -> AnnotationSet:
    """Read CVAT XML files: boxes, polygons, ellipses, masks, and labels of whole images."""
    images: dict[str, AnnotatedImage] = {}
    notes: list[str] = []
    unread: Counter[str] = Counter()
    finder = ImageFinder(tree.images, tree)
    for file in files:
        for image in _cvat_images(parse_xml(tree, file, notes), tree, file, finder, unread):
            add_image(images, image, tree.shown_root)
    return AnnotationSet.with_numbered_classes(images.values(), tree.shown_root, [*notes, *unread_shapes_notes(unread)])


_EXPECTED_VOC_FILES = "Pascal VOC's Annotations/*.xml and JPEGImages/, or the XML files beside the images"
VOC = Layout("Pascal VOC XML", _EXPECTED_VOC_FILES, (XML_SUFFIX,), find_voc, read_voc)
CVAT = Layout("CVAT XML for images", "CVAT's annotations.xml for images", (XML_SUFFIX,), find_cvat, read_cvat)


def _root_name(tree: Tree, file: str) -> str:
    """Return the name of the outermost element of an XML file; "" if no element is found."""
    root = _FIRST_ELEMENT.search(ascii_bytes(tree.peek(file, HEAD_BYTES)))
    return root[1].decode() if root else ""


def parse_xml(tree: Tree, file: str, notes: list[str]) -> ElementTree.Element:
    """Return the outermost element of an XML file; append a note to `notes` if the encoding is guessed.

    Entities are refused, since a few entities can expand to gigabytes.
    """
    shown_path = tree.shown_path(file)
    content = tree.read(file, MAX_BYTES)
    if not ascii_bytes(content).strip():
        raise UserError(f"{shown_path!r} is not XML (it is empty): give annotations as XML.")
    encoding = _ENCODING.match(content.lstrip())
    declared_encoding = encoding[1].decode() if encoding else None
    if declared_encoding is not None and declared_encoding.lower().startswith(_MULTI_BYTE_ENCODINGS):
        # The declared encoding cannot be right, since the declaration itself was readable as single bytes.
        declared_encoding = None
    text, _, note = decode_text(content, shown_path, declared_encoding)
    notes += [note] if note else []
    builder, parser = ElementTree.TreeBuilder(), expat.ParserCreate("utf-8")

    def refuse(*_: object) -> None:
        raise UserError(
            f"{shown_path!r} declares a document type, which annotations do not need: remove the declaration."
        )

    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(text.encode(errors="surrogatepass"), True)
        return builder.close()
    except (expat.ExpatError, ValueError, AssertionError) as problem:
        raise UserError(f"{shown_path!r} is not XML ({problem}): give annotations as XML.") from None


def _voc_image(content: ElementTree.Element, file: str, shown_path: str) -> AnnotatedImage:
    """Return the image and the objects in a Pascal VOC or LabelMe XML file; the key of the image is set later."""
    image = AnnotatedImage("", size=_voc_size(content, shown_path), source=file, crowd_word="difficult")
    for item in content.findall("object"):
        if (item.findtext("deleted") or "").strip() == "1":
            continue
        name = plain_name(item.findtext("name") or "")
        if not name:
            raise UserError(f"{shown_path!r} has an object without a name: add the name.")
        is_difficult = (item.findtext("difficult") or "").strip().lower() in ("1", "true")
        if item.find("bndbox") is not None or not (corners := item.findall("polygon/pt")):
            image.add(name, _voc_box(item, shown_path), crowd=is_difficult)
            continue
        points: Any = [tuple(parse_number(corner.findtext(side) or "") for side in ("x", "y")) for corner in corners]
        if any(None in point for point in points):
            raise UserError(
                f"{shown_path!r} has a polygon with the points {str(points)[:80]}, expected numbers: correct the "
                "points."
            )
        box, outline = polygon_of_points(points)
        is_box = (item.findtext("type") or "").strip() == "bounding_box"
        image.add(name, box, None if is_box else outline, is_difficult)
    return image


def _voc_box(item: ElementTree.Element, shown_path: str) -> Corners:
    if item.find("robndbox") is not None and item.find("bndbox") is None:
        raise UserError(
            f"{shown_path!r} has a rotated box (robndbox), and rotated boxes are not read: write an upright box "
            "(bndbox)."
        )
    texts = [item.findtext(f"bndbox/{name}") for name in VOC_EDGES]
    left, top, right, bottom = (parse_number(text or "") for text in texts)
    if left is None or top is None or right is None or bottom is None:
        raise UserError(
            f"{shown_path!r} has a box with the corners {texts}, expected numbers for xmin, ymin, xmax and ymax: "
            "correct the corners."
        )
    return left, top, right, bottom


def _voc_size(content: ElementTree.Element, shown_path: str) -> tuple[int, int] | None:
    height = content.findtext("size/height") or content.findtext("imagesize/nrows")
    width = content.findtext("size/width") or content.findtext("imagesize/ncols")
    if height is None or width is None:
        return None
    try:
        size = int(float(height)), int(float(width))
    except (ValueError, OverflowError):
        raise UserError(
            f"{shown_path!r} states an image width of {width!r} and a height of {height!r}, expected numbers: correct "
            "the size."
        ) from None
    return positive_size(*size)  # some programs write 0 for an unknown size


def _cvat_images(
    content: ElementTree.Element, tree: Tree, file: str, finder: ImageFinder, unread: Counter[str]
) -> list[AnnotatedImage]:
    """Return the images in a CVAT file; shapes without a box are counted by type in `unread`."""
    shown_path = tree.shown_path(file)
    if content.find("track") is not None:
        raise UserError(
            f"{shown_path!r} has tracks of objects in a video, which are not read: export the video as 'CVAT for "
            "images' with the frames."
        )
    items, part = content.findall("image"), split_of_file(file)
    # The export of a CVAT project has a folder of images for each subset.
    keys = finder.find_images([f"{item.get('subset', '')}/{item.get('name', '')}" for item in items], file, part)
    missing = [number for number, key in enumerate(keys) if key is None]
    other_keys = finder.find_images([items[number].get("name", "") for number in missing], file, part)
    for number, key in zip(missing, other_keys, strict=True):
        keys[number] = key
    images = []
    for item, key in zip(items, keys, strict=True):
        if key is None:
            raise missing_image_error(tree, file, item.get("name", ""))
        height, width = (item.get("height") or "").lstrip("0"), (item.get("width") or "").lstrip("0")
        size = None
        if height.isdecimal() and width.isdecimal():
            if max(len(height), len(width)) > _MAX_DIGITS or int(height) * int(width) > MAX_PIXELS:
                raise UserError(
                    f"{shown_path!r} says that {key!r} has {width[:20]} x {height[:20]} pixels, expected at most "
                    f"{MAX_PIXELS:,} pixels: correct the size."
                )
            size = int(height), int(width)
        split = split_in_name(item.get("subset") or "") or part
        image = AnnotatedImage(key, size=size, declared_split=split, source=file)
        for shape in item:
            if shape.tag != "tag":
                _add_cvat_shape(image, shape, shown_path, unread)
            elif name := plain_name(shape.get("label") or ""):
                image.tags.append(name)
        images.append(image)
    return images


def _add_cvat_shape(image: AnnotatedImage, shape: ElementTree.Element, shown_path: str, unread: Counter[str]) -> None:
    """Add the object of a shape to an image; a shape without a box is counted by type in `unread`."""
    name = plain_name(shape.get("label") or "")
    try:
        angle = float(shape.get("rotation") or 0)
        box, outline = _cvat_outline(shape, image.size)
    except (ValueError, OverflowError):
        raise UserError(
            f"{shown_path!r} has a {shape.tag} of {name!r} in {image.key!r} whose numbers cannot be read: correct the "
            "numbers."
        ) from None
    if box is None:
        unread[shape.tag] += 1
        return
    if not name:
        raise UserError(f"{shown_path!r} has a {shape.tag} without a label in {image.key!r}: add the label.")
    if angle % 360 and shape.tag != "ellipse":
        raise UserError(
            f"{shown_path!r} has a {shape.tag} of {name!r} in {image.key!r} that is rotated by {angle:g} degrees, and "
            "rotated boxes are not read: draw an upright box, or a polygon."
        )
    image.add(name, box, outline)


def _cvat_outline(shape: ElementTree.Element, size: tuple[int, int] | None) -> tuple[Corners | None, object]:
    """Return the box and the outline of a shape; the box is None if the shape has no area.

    Invalid numbers raise a ValueError, and a run length of a mask that exceeds 64 bits raises an OverflowError.
    """
    if shape.tag == "box":
        left, top, right, bottom = (float(shape.get(edge) or "") for edge in CVAT_EDGES)
        return (left, top, right, bottom), None
    if shape.tag == "polygon":
        pairs = [pair.split(",") for pair in (shape.get("points") or "").split(";")]
        return polygon_of_points([(float(x), float(y)) for x, y in pairs])
    if shape.tag == "ellipse":
        x, y, radius_x, radius_y = (float(shape.get(name) or "") for name in ("cx", "cy", "rx", "ry"))
        angles = np.arange(ELLIPSE_POINTS) * 2 * np.pi / ELLIPSE_POINTS
        rotation = np.deg2rad(float(shape.get("rotation") or 0))  # clockwise
        with np.errstate(invalid="ignore"):  # points of an infinite ellipse are refused later
            a, b = radius_x * np.cos(angles), radius_y * np.sin(angles)
            xs, ys = a * np.cos(rotation) - b * np.sin(rotation), a * np.sin(rotation) + b * np.cos(rotation)
        return polygon_of_points(list(zip((x + xs).tolist(), (y + ys).tolist(), strict=True)))
    if shape.tag != "mask" or size is None:
        return None, None
    left, top, width, height = (int(shape.get(name) or "") for name in ("left", "top", "width", "height"))
    lengths = np.asarray([int(text) for text in (shape.get("rle") or "").split(",")], dtype=np.int64)
    is_inside = 0 <= left < left + width <= size[1] and 0 <= top < top + height <= size[0]
    if not is_inside or lengths.min() < 0 or lengths.max() > width * height or lengths.sum() != width * height:
        raise ValueError("the mask does not fit the image")
    is_object = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)  # one value per pixel of the box, row by row
    if not is_object.any():
        return None, None
    mask = np.zeros(size, dtype=np.bool_)
    mask[top : top + height, left : left + width] = is_object.reshape(height, width)
    return (float(left), float(top), float(left + width), float(top + height)), run_lengths_of(mask)
