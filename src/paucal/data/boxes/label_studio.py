"""Reads boxes, outlines and labels of whole images from Label Studio JSON, including the short form ("JSON-MIN").

Coordinates are in percent of the image's width and height.
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
    are_numbers,
    box_of_run_lengths,
    polygon_of_points,
    positive_size,
    run_lengths_of,
    unread_shapes_notes,
)
from paucal.data.boxes.naming import ImageFinder, missing_image_error
from paucal.data.boxes.tree import PEEK_BYTES, Tree, ascii_bytes
from paucal.data.classes import plain_name
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.splits.part_names import split_of_file
from paucal.types import UserError
from paucal.wording import counted

MAX_BYTES = 1 << 29  # size of the largest file that is read; a mask drawn with the brush may be a megabyte large
EXPORT_AGAIN = "export Label Studio JSON again"
# Names of the entries in which a region may have its labels.
LABEL_ENTRIES = ("rectanglelabels", "polygonlabels", "brushlabels", "ellipselabels", "labels")
# Bits per value, and the four possible numbers of bits per count, in the packed masks that Label Studio writes.
_VALUE_BITS, _COUNT_BITS = 8, (3, 4, 8, 16)
CHOICE_ENTRIES = ("choice", "choices", "class", "category")  # common entries of image-level labels in the short form
# Every export has at least one entry that `_USUAL_ENTRY` matches. `_LONG_FORM` matches exports in the long form.
_USUAL_ENTRY = re.compile(
    rb'"(?:result|rectanglelabels|polygonlabels|brushlabels|ellipselabels|choices?|completions)"\s*:'
)
_LONG_FORM = re.compile(rb'(?=.*"data"\s*:)(?=.*"(?:annotations|completions)"\s*:)', re.DOTALL)
_LOCAL_FILE_URL = re.compile(r".*/local-files/\?d=")


class _Task(NamedTuple):
    """An annotated image in a file; Label Studio calls it a task."""

    image: str  # path or URL
    values: list[Mapping[str, Any]]  # regions and labels, which may also state the size of the image
    upload_name: str = ""  # name of the uploaded file; "" if the task does not state this name


def find(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return the JSON files that have a list of annotated images as Label Studio writes it."""
    exports = []
    for file in files:
        if not file.lower().endswith(".json"):
            continue
        content = ascii_bytes(tree.peek(file, PEEK_BYTES)).lstrip()
        if not content.startswith(b"[") or not _USUAL_ENTRY.search(content):
            continue
        if _LONG_FORM.match(content) or any(suffix.encode() in content.lower() for suffix in IMAGE_SUFFIXES):
            exports.append(file)
    return exports


def read(tree: Tree, files: Sequence[str]) -> AnnotationSet:
    """Read the JSON files of a data set: rectangles, polygons, ellipses, brushed masks, and labels of whole images."""
    finder = ImageFinder(tree.images, tree)
    images: dict[str, AnnotatedImage] = {}
    special_cases: Counter[str] = Counter()
    unread: Counter[str] = Counter()
    notes: list[str] = []
    for file in files:
        content, shown_path = tree.read_json(file, MAX_BYTES, EXPORT_AGAIN, notes), tree.shown_path(file)
        tasks = list(_read_tasks(content, shown_path, special_cases))
        keys = _find_images(tasks, finder, tree, file)
        store = tree.make_store(keys)
        for number, (task, key) in enumerate(zip(tasks, keys, strict=True)):
            sizes = (positive_size(value.get("original_height"), value.get("original_width")) for value in task.values)
            size = next(filter(None, sizes), None)
            image = AnnotatedImage(key, size=size, source=file, declared_split=split_of_file(file))
            for value in task.values:
                _add_region(image, value, image.size or store.size(number), shown_path, unread)
            add_image(images, image, tree.shown_root)
    notes += [f"{counted(count, 'image')} {case}" for case, count in special_cases.items()]
    return AnnotationSet.with_numbered_classes(images.values(), tree.shown_root, [*notes, *unread_shapes_notes(unread)])


LAYOUT = Layout("Label Studio JSON", "Label Studio JSON of all images", (".json",), find, read)


def _read_tasks(rows: Any, shown_path: str, special_cases: Counter[str]) -> Iterator[_Task]:
    """Yield the annotated images of a file; count images without an annotation or with several, for notes."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{shown_path!r} is not a list of tasks: {EXPORT_AGAIN}.")
    for row in rows:
        is_long = isinstance(row.get("data"), dict)
        data = row["data"] if is_long else row
        # The path or URL of the image is the entry "image", else the first text that ends in an image suffix.
        texts = [text for text in data.values() if isinstance(text, str)]
        image_texts = [text for text in texts if text.split("?X-")[0].lower().endswith(IMAGE_SUFFIXES)]
        image = data["image"] if isinstance(data.get("image"), str) else next(iter(image_texts), "")
        if not image:
            raise UserError(f"{shown_path!r} has a task without an image: {str(dict(data))[:80]}; add the image.")
        values = _annotation_values(row, special_cases) if is_long else list(_values_of_short_form(row))
        if values is None:
            special_cases["without an annotation left out"] += 1
        else:
            upload_name = row.get("file_upload")
            yield _Task(image, values, upload_name if isinstance(upload_name, str) else "")


def _annotation_values(task: Mapping[str, Any], special_cases: Counter[str]) -> list[Mapping[str, Any]] | None:
    """Return the regions and labels of the ground truth, or else of the last annotation; None without annotation."""
    rows = task.get("annotations", task.get("completions"))
    rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    rows = [row for row in rows if not row.get("was_cancelled") and isinstance(row.get("result"), list)]
    if not rows:
        return None
    if len(rows) > 1:
        special_cases["with several annotations: the ground truth was read, or else the last annotation"] += 1
    annotation = next((row for row in rows if row.get("ground_truth")), rows[-1])
    values = [
        {**result, **result["value"], "kind": result.get("type")}
        for result in annotation["result"]
        if isinstance(result, dict) and isinstance(result.get("value"), dict)
    ]
    # If one control draws a region and another labels the region, there are two results with the same shape and id.
    labelled = [value["id"] for value in values if value.get("id") and value.keys() & set(LABEL_ENTRIES)]
    return [value for value in values if value.keys() & {*LABEL_ENTRIES, "choices"} or value.get("id") not in labelled]


def _values_of_short_form(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the values of an image in the short form, which has an entry for each control of the labelling page."""
    for name, value in row.items():
        if isinstance(value, list):
            yield from (entry for entry in value if isinstance(entry, dict))
        elif isinstance(value, dict):
            yield value
        elif isinstance(value, str) and name in CHOICE_ENTRIES:
            yield {"choices": [value]}


def _find_images(tasks: Sequence[_Task], finder: ImageFinder, tree: Tree, file: str) -> list[str]:
    """Return the key of each task's image, found by its path or URL, or else by the uploaded file's name."""
    part = split_of_file(file)
    paths = [_LOCAL_FILE_URL.sub("", task.image) for task in tasks]
    # URLs may be percent-encoded, but a file with exactly the name in the URL is preferred.
    keys_of_paths = finder.find_images(paths, file, part)
    decoded = [path if key is not None else unquote(path) for path, key in zip(paths, keys_of_paths, strict=True)]
    keys: list[str] = []
    for task, key in zip(tasks, finder.find_images(decoded, file, part), strict=True):
        image = key or next(iter(finder.find_images([task.upload_name], file, part)), None)
        if image is None:
            raise missing_image_error(tree, file, task.image)
        keys.append(image)
    return keys


def _add_region(
    image: AnnotatedImage, value: Mapping[str, Any], size: tuple[int, int], shown_path: str, unread: Counter[str]
) -> None:
    """Add the objects of a region, or the labels of the whole image; other values are counted by type in `unread`."""
    kind, choices = value.get("kind") or value.get("type") or "region", value.get("choices")
    if isinstance(choices, list) and not {"x", "points", "rle"} & value.keys():
        image.tags += [name for choice in choices if (name := plain_name(str(choice)))]
        return
    labels = next((value[name] for name in LABEL_ENTRIES if isinstance(value.get(name), list)), None)
    error_prefix = f"{shown_path!r} has a {kind} in {image.key!r}"
    box_and_outline = _read_region(value, size, error_prefix) if labels is not None else None
    if labels is None or box_and_outline is None:
        unread[str(kind)] += 1
        return
    for entry in ("rotation", "image_rotation"):
        if value.get(entry) and "rle" not in value and (entry == "image_rotation" or "points" not in value):
            problem = "that is rotated, and rotated" if entry == "rotation" else "of a rotated image, and such"
            raise UserError(f"{error_prefix} {problem} boxes are not read: draw an upright box, or a polygon.")
    for label in labels:
        if not (name := plain_name(str(label))):
            raise UserError(f"{error_prefix} without a label: add the label.")
        image.add(name, *box_and_outline)


def _read_region(value: Mapping[str, Any], size: tuple[int, int], error_prefix: str) -> tuple[Corners, Any] | None:
    """Return the box and the outline of a region in pixels; None if the value has no supported shape."""
    height, width = size
    invalid_numbers = UserError(f"{error_prefix} whose numbers cannot be read: correct the numbers.")
    if isinstance(value.get("rle"), list):
        try:
            runs = run_lengths_of(decode_brush(value["rle"], size))
        except ValueError as problem:
            raise UserError(f"{error_prefix} whose mask cannot be read ({problem}): draw the mask again.") from None
        box = box_of_run_lengths(runs)
        return None if box is None else (box, runs)
    if isinstance(value.get("points"), list):
        points = value["points"]
        if len(points) < 3 or not all(are_numbers(point, 2) for point in points):
            raise invalid_numbers
        return polygon_of_points([(x * width / 100, y * height / 100) for x, y in points])
    sides = ("radiusX", "radiusY") if "radiusX" in value else ("width", "height")
    if not {"x", "y", *sides} <= value.keys():
        return None
    numbers = [value[name] for name in ("x", "y", *sides)]
    if not are_numbers(numbers, 4):
        raise invalid_numbers
    x, y, horizontal, vertical = numbers  # width and height, or the radii of an ellipse with the centre x, y
    left, top, right, bottom = (x, y, x + horizontal, y + vertical)
    if sides[0] == "radiusX":
        left, top = x - horizontal, y - vertical
    return (left * width / 100, top * height / 100, right * width / 100, bottom * height / 100), None


def decode_brush(values: Sequence[Any], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Decode the (H, W) mask of a region drawn with the brush from the bytes that thi.ng's rle-pack writes.

    The bytes contain the following fields, with their number of bits: the number of values (32), the bits per value
    minus 1 (5), the four possible numbers of bits per count, each minus 1 (4 bits each), and then blocks of values.
    A block contains a flag that one value is repeated (1), the index of the number of bits of the count (2), the count
    minus 1, and the value or values. The values are red, green, blue and alpha of each pixel in turn, and alpha is the
    mask. A ValueError says why the bytes are not a mask of this size.
    """
    total = 4 * math.prod(size)
    if total > 4 * MAX_PIXELS or not all(type(value) is int and 0 <= value < 256 for value in values):
        raise ValueError("the mask is too large, or has values that are not bytes (0 to 255)")
    content, position = bytes(values), 0

    def read_bits(count: int) -> int:  # the unsigned integer in the next `count` bits, the highest bit first
        nonlocal position
        start, position = position, position + count
        if position > 8 * len(content):
            raise ValueError("the mask ends too early")
        number = int.from_bytes(content[start // 8 : -(-position // 8)])
        return number >> (-position % 8) & ((1 << count) - 1)

    if read_bits(32) != total:
        raise ValueError(f"the size of the mask is not {size[1]}x{size[0]} pixels")
    value_bits, count_bits = read_bits(5) + 1, [read_bits(4) + 1 for _ in range(4)]
    are_set, index = np.zeros(total, dtype=np.bool_), 0
    while index < total:
        is_repeated = read_bits(1)
        end = index + 1 + read_bits(count_bits[read_bits(2)])
        if end > total:
            raise ValueError("the mask has more values than pixels")
        n_values = 1 if is_repeated else end - index
        are_set[index:end] = [read_bits(value_bits) for _ in range(n_values)]
        index = end
    return are_set.reshape(*size, 4)[..., 3].copy()


def encode_brush(mask: NDArray[np.bool_]) -> list[int]:
    """Return the packed bytes of an (H, W) mask; see `decode_brush`."""
    flat = mask.ravel()
    edges = np.concatenate([[0], np.flatnonzero(flat[1:] != flat[:-1]) + 1, [len(flat)]])
    bits = [f"{4 * len(flat):032b}{_VALUE_BITS - 1:05b}", *(f"{count_bits - 1:04b}" for count_bits in _COUNT_BITS)]
    for start, end in pairwise(edges.tolist()):
        n_remaining = 4 * (end - start)
        while n_remaining:
            count = min(n_remaining, 1 << _COUNT_BITS[-1])
            index = next(index for index, count_bits in enumerate(_COUNT_BITS) if count <= 1 << count_bits)
            bits.append(f"1{index:02b}{count - 1:0{_COUNT_BITS[index]}b}{255 * int(flat[start]):0{_VALUE_BITS}b}")
            n_remaining -= count
    text = "".join(bits)
    return list(int(text.ljust(-(-len(text) // 8) * 8, "0"), 2).to_bytes(-(-len(text) // 8)))
