"""Boxes, outlines and labels of whole images from Label Studio's JSON, in its long and its short ("JSON-MIN") form.

Coordinates are given in percent of the image's sides.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from paucal.data.boxes.annotations import (
    MAX_PIXELS,
    AnnotatedImage,
    AnnotationSet,
    Corners,
    Layout,
    add_image,
    box_of_runs,
    polygon_of_points,
    run_lengths_of,
    unread_shapes_notes,
)
from paucal.data.boxes.naming import ImageNames, MissingImage
from paucal.data.boxes.tree import PEEKED, Tree, ascii_bytes
from paucal.data.classes import plain_name
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.splits.part_names import part_of_file
from paucal.types import UserError
from paucal.wording import counted

MAX_BYTES = 1 << 29  # brushed masks take a megabyte per image
EXPORT_AGAIN = "export Label Studio's JSON again"
LABELS = ("rectanglelabels", "polygonlabels", "brushlabels", "ellipselabels", "labels")
_VALUE, _COUNTS = 8, (3, 4, 8, 16)  # bits of a value and of counts, as Label Studio writes them
CHOICES = ("choice", "choices", "class", "category")  # usual names of image-level labels in the short form
_MARKS = re.compile(rb'"(?:result|rectanglelabels|polygonlabels|brushlabels|ellipselabels|choices?|completions)"\s*:')
_LONG = re.compile(rb'(?=.*"data"\s*:)(?=.*"(?:annotations|completions)"\s*:)', re.DOTALL)
_LOCAL = re.compile(r".*/local-files/\?d=")


class _Task(NamedTuple):
    """One image as a file describes it.

    Attributes:
        image: Name or address of the image.
        values: Regions and labels, with the size of the image.
        uploaded: Name of the uploaded file; "" if it is not stated.
    """

    image: str
    values: list[Mapping[str, Any]]
    uploaded: str = ""


def find(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return the JSON files that hold a list of tasks with their labels."""
    return [file for file in files if file.lower().endswith(".json") and _is_export(tree, file)]


def read(tree: Tree, files: Sequence[str]) -> AnnotationSet:
    """Read the JSON files of a set: rectangles, polygons, ellipses, brushed masks, and choices for whole images.

    Of several annotations of an image, the one marked as ground truth counts, or else the last.
    """
    names = ImageNames(tree.images, tree)
    images: dict[str, AnnotatedImage] = {}
    tally: Counter[str] = Counter()
    unread: Counter[str] = Counter()
    notes: list[str] = []
    for file in files:
        content, file_notes = tree.json(file, MAX_BYTES, EXPORT_AGAIN)
        notes += file_notes
        place = tree.place_of(file)
        tasks = list(_tasks(content, place, tally))
        keys = _find_images(tasks, names, tree, file)
        store = tree.store(keys)
        for number, (task, key) in enumerate(zip(tasks, keys, strict=True)):
            sizes = [size for value in task.values if (size := _stated_size(value))]
            image = AnnotatedImage(key, size=sizes[0] if sizes else None, source=file, declared=part_of_file(file))
            for value in task.values:
                _add_region(image, value, _Place(place, key, image.size or store.size(number)), unread)
            add_image(images, image, tree.shown)
    notes += [f"{counted(tally[reason], 'image')} {reason}" for reason in tally]
    return AnnotationSet.numbered(images.values(), tree.shown, [*notes, *unread_shapes_notes(unread)])


LAYOUT = Layout(
    name="Label Studio's JSON",
    expected="Label Studio's JSON of all images",
    suffixes=(".json",),
    find=find,
    read=read,
)


def _is_export(tree: Tree, file: str) -> bool:
    content = ascii_bytes(tree.peek(file, PEEKED)).lstrip()
    if not content.startswith(b"[") or not _MARKS.search(content):
        return False
    return bool(_LONG.match(content)) or any(suffix.encode() in content.lower() for suffix in IMAGE_SUFFIXES)


def _tasks(rows: Any, place: str, tally: Counter[str]) -> Iterator[_Task]:
    """Yield the labelled images of a file; `tally` counts the others."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{place!r} is not a list of tasks: {EXPORT_AGAIN}.")
    for row in rows:
        data = row.get("data")
        is_long = isinstance(data, dict)
        image = _image_of(data if is_long else row, place)
        values = _annotation_values(row, tally) if is_long else list(_short_values(row))
        if values is None:
            tally["without an annotation left out"] += 1
        else:
            uploaded = row.get("file_upload")
            yield _Task(image, values, uploaded if isinstance(uploaded, str) else "")


def _image_of(data: Mapping[str, Any], place: str) -> str:
    texts = [text for text in data.values() if isinstance(text, str)]
    image_texts = [text for text in texts if text.split("?X-")[0].lower().endswith(IMAGE_SUFFIXES)]
    image = data.get("image") if isinstance(data.get("image"), str) else next(iter(image_texts), None)
    if not isinstance(image, str) or not image:
        raise UserError(f"{place!r} has a task without an image: {str(dict(data))[:80]}; correct it.")
    return image


def _annotation_values(task: Mapping[str, Any], tally: Counter[str]) -> list[Mapping[str, Any]] | None:
    """Return the values of a task's ground truth, or else of its last annotation; None without an annotation."""
    rows = task.get("annotations", task.get("completions"))
    rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    rows = [row for row in rows if not row.get("was_cancelled") and isinstance(row.get("result"), list)]
    if not rows:
        return None
    if len(rows) > 1:
        tally["with several annotations: used the ground truth, or else the last"] += 1
    annotation = next((row for row in rows if row.get("ground_truth")), rows[-1])
    values = [
        {**result, **result["value"], "kind": result.get("type")}
        for result in annotation["result"]
        if isinstance(result, dict) and isinstance(result.get("value"), dict)
    ]
    # A region that is drawn with one control and labelled with another has two results with the same shape.
    labelled = [value["id"] for value in values if value.get("id") and value.keys() & set(LABELS)]
    return [value for value in values if value.keys() & {*LABELS, "choices"} or value.get("id") not in labelled]


def _short_values(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the values in a row of the short form, where each control has an entry with its name."""
    for name, value in row.items():
        if isinstance(value, list):
            yield from (entry for entry in value if isinstance(entry, dict))
        elif isinstance(value, dict):
            yield value
        elif isinstance(value, str) and name in CHOICES:
            yield {"choices": [value]}


def _find_images(tasks: Sequence[_Task], names: ImageNames, tree: Tree, file: str) -> list[str]:
    """Return the images of tasks: those that they name, or else those that were uploaded."""
    part = part_of_file(file)
    local = [_LOCAL.sub("", task.image) for task in tasks]
    # Addresses may be percent-encoded; a file of exactly that name is preferred.
    as_named = names.find_images(local, file, part)
    plain = [name if key is not None else unquote(name) for name, key in zip(local, as_named, strict=True)]
    keys: list[str] = []
    for task, key in zip(tasks, names.find_images(plain, file, part), strict=True):
        image = key or next(iter(names.find_images([task.uploaded], file, part)), None)
        if image is None:
            raise MissingImage(
                f"{tree.place_of(file)!r} describes {task.image[:120]!r}, but there is no such image in "
                f"{tree.shown!r}: add it, or give the folder above both as DATA."
            )
        keys.append(image)
    return keys


def _stated_size(value: Mapping[str, Any]) -> tuple[int, int] | None:
    height, width = value.get("original_height"), value.get("original_width")
    return (height, width) if type(height) is int and type(width) is int and min(height, width) > 0 else None


class _Place(NamedTuple):
    """The file and the image of a value, for messages, and the (height, width) of the image."""

    file: str
    key: str
    size: tuple[int, int]

    def problem(self, kind: object, words: str) -> UserError:
        return UserError(f"{self.file!r} has a {kind} in {self.key!r} {words}.")


def _add_region(image: AnnotatedImage, value: Mapping[str, Any], place: _Place, unread: Counter[str]) -> None:
    """Add the objects of a region, or the labels of the whole image; `unread` counts other entries by kind."""
    kind, choices = value.get("kind") or value.get("type") or "region", value.get("choices")
    if isinstance(choices, list) and not {"x", "points", "rle"} & value.keys():
        image.tags += [name for choice in choices if (name := plain_name(str(choice)))]
        return
    labels = next((value[name] for name in LABELS if isinstance(value.get(name), list)), None)
    outlined = _region_outline(value, place, str(kind)) if labels is not None else None
    if labels is None or outlined is None:
        unread[str(kind)] += 1
        return
    for turned in ("rotation", "image_rotation"):
        if value.get(turned) and "rle" not in value and (turned == "image_rotation" or "points" not in value):
            description = (
                "is rotated, and rotated boxes" if turned == "rotation" else "belongs to a rotated image, and those"
            )
            raise place.problem(kind, f"that {description} are not read: draw it upright, or as a polygon")
    for label in labels:
        if not (name := plain_name(str(label))):
            raise place.problem(kind, "without a label: correct it")
        image.add(name, *outlined)


def _region_outline(value: Mapping[str, Any], place: _Place, kind: str) -> tuple[Corners, Any] | None:
    """Return the box and the outline of a region in pixels; None if it is of another kind."""
    height, width = place.size
    damaged = place.problem(kind, "whose numbers cannot be read: correct it")
    if isinstance(value.get("rle"), list):
        try:
            runs = run_lengths_of(decode_brush(value["rle"], place.size))
        except ValueError as problem:
            raise place.problem(kind, f"whose mask cannot be read ({problem}): draw it again") from None
        box = box_of_runs(runs)
        return None if box is None else (box, runs)
    if isinstance(value.get("points"), list):
        points = value["points"]
        if len(points) < 3 or not all(isinstance(point, list) and _are_numbers(point, 2) for point in points):
            raise damaged
        return polygon_of_points([(x * width / 100, y * height / 100) for x, y in points])
    sides = ("radiusX", "radiusY") if "radiusX" in value else ("width", "height")
    if not {"x", "y", *sides} <= value.keys():
        return None
    numbers = [value[name] for name in ("x", "y", *sides)]
    if not _are_numbers(numbers, 4):
        raise damaged
    x, y, across, down = numbers
    left, top, right, bottom = (x, y, x + across, y + down)
    if sides[0] == "radiusX":
        left, top = x - across, y - down
    return (left * width / 100, top * height / 100, right * width / 100, bottom * height / 100), None


def _are_numbers(values: Sequence[Any], count: int) -> bool:
    return len(values) == count and all(type(value) in (int, float) for value in values)


def decode_brush(values: Sequence[Any], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the (H, W) mask of a brushed region, which is packed by the format of thi.ng's rle-pack.

    The bits hold the number of values (32), the bits of a value less 1 (5), four lengths of counts less 1 (4 each), and
    then blocks: whether the block repeats one value (1), which length its count has (2), the count less 1, and the
    value or values. Values are the red, green, blue and alpha of each pixel in turn; alpha marks the region.

    Raises:
        ValueError: The bytes are not a mask of this size; the message says why.
    """
    total = 4 * math.prod(size)
    if total > 4 * MAX_PIXELS or not all(type(value) is int and 0 <= value < 256 for value in values):
        raise ValueError("it is too large, or has values that are not bytes (0 to 255)")
    bits = _Bits(bytes(values))
    if bits.read(32) != total:
        raise ValueError(f"it is not of {size[1]}x{size[0]} pixels")
    width, lengths = bits.read(5) + 1, [bits.read(4) + 1 for _ in range(4)]
    out, index = np.zeros(total, dtype=np.bool_), 0
    while index < total:
        repeats = bits.read(1)
        end = index + 1 + bits.read(lengths[bits.read(2)])
        if end > total:
            raise ValueError("it has more values than pixels")
        out[index:end] = bits.read(width) if repeats else [bits.read(width) for _ in range(end - index)]
        index = end
    return out.reshape(*size, 4)[..., 3].copy()


def encode_brush(mask: NDArray[np.bool_]) -> list[int]:
    """Return the packed bytes of an (H, W) mask; see `decode_brush`."""
    flat = mask.ravel()
    edges = np.concatenate([[0], np.flatnonzero(flat[1:] != flat[:-1]) + 1, [len(flat)]])
    bits = [f"{4 * len(flat):032b}{_VALUE - 1:05b}", *(f"{length - 1:04b}" for length in _COUNTS)]
    for start, end in pairwise(edges.tolist()):
        left = 4 * (end - start)
        while left:
            count = min(left, 1 << _COUNTS[-1])
            index = next(index for index, length in enumerate(_COUNTS) if count <= 1 << length)
            bits.append(f"1{index:02b}{count - 1:0{_COUNTS[index]}b}{255 * int(flat[start]):0{_VALUE}b}")
            left -= count
    text = "".join(bits)
    return list(int(text.ljust(-(-len(text) // 8) * 8, "0"), 2).to_bytes(-(-len(text) // 8)))


class _Bits:
    """Reads numbers from the bits of bytes, the highest bit first."""

    def __init__(self, content: bytes) -> None:
        self._content, self._place = content, 0

    def read(self, count: int) -> int:
        """Return the number in the next `count` bits."""
        start, end = self._place, self._place + count
        self._place = end
        if end > 8 * len(self._content):
            raise ValueError("it ends too early")
        number = int.from_bytes(self._content[start // 8 : -(-end // 8)])
        return number >> (-end % 8) & ((1 << count) - 1)
