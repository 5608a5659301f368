"""Reads boxes from COCO JSON files. One file describes many images."""

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from paucal.data.boxes.annotations import (
    MAX_CLASSES,
    AnnotatedImage,
    AnnotationSet,
    Corners,
    Layout,
    add_image,
    are_numbers,
    box_of_points,
    box_of_run_lengths,
    positive_size,
    unique_class_names,
)
from paucal.data.boxes.naming import ImageFinder, MissingImage, explain_foreign_path, missing_image_error
from paucal.data.boxes.tree import PEEK_BYTES, Tree, contains_json_key
from paucal.data.splits.part_names import split_of_file
from paucal.types import NoLabelsError, UserError
from paucal.wording import counted, short_repr, was_or_were

GIVE_COCO = "give a COCO annotation file"
_COCO_NAME = re.compile(r".*\.coco\.json|instances_.*\.json")
MAX_BYTES = 1 << 29  # size of the largest file that is read; instances_train2017.json has 449 MB
MAX_EDGE = 1.02  # largest right or bottom edge of a box relative to the image's side; 2 % tolerance for rounding
# Boxes are left, top, width and height. If at least this fraction of them would end outside the image, they are read
# as left, top, right and bottom.
MIN_FRACTION_OUTSIDE = 0.25
INSTANCES = "instances"  # first word in the names of COCO files with boxes
HEAD_BYTES = 1 << 16  # bytes at the start and at the end of a file that are searched for `ENTRIES`
ENTRIES = ("images", "annotations", "categories")
SEGMENTS = "segments_info"  # entry of panoptic files, which `paucal segment` reads
# First words in the names of COCO files for other tasks; some of these files also have boxes.
OTHER_TASKS = ("captions", "person_keypoints", "image_info", "panoptic", "stuff")


def find(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return the JSON files that have COCO's entries, or a name such as "instances_train.json"."""
    coco_files = []
    for file in files:
        if not file.lower().endswith(".json"):
            continue
        is_coco = bool(_COCO_NAME.fullmatch(file.rpartition("/")[2].lower()))
        # Most files of other layouts are ruled out by these few bytes.
        if not is_coco and contains_json_key(tree.peek(file, HEAD_BYTES), *ENTRIES):
            content = tree.peek(file, PEEK_BYTES)
            has_entries = all(contains_json_key(content, name) for name in ENTRIES)
            is_coco = has_entries and not contains_json_key(content, SEGMENTS)
        if is_coco:
            coco_files.append(file)
    return coco_files


def read(tree: Tree, files: Sequence[str]) -> AnnotationSet:
    """Read the JSON files of a data set; each file may be for one split (train, val or test)."""
    box_files = files
    if any(_name_starts_with(file, INSTANCES) for file in files):
        box_files = [file for file in files if not _name_starts_with(file, *OTHER_TASKS)]
    finder = ImageFinder(tree.images, tree)
    contents = [_FileReader(tree, file, finder).read() for file in box_files]
    # A file is skipped if all of its annotations are in smaller files.
    images: dict[str, AnnotatedImage] = {}
    repeated_files: list[str] = []
    for content in sorted(contents, key=lambda content: len(content.images)):
        if content.images and all(
            image.key in images and image.has_same_objects(images[image.key]) for image in content.images
        ):
            repeated_files.append(content.images[0].source)
        images.update({image.key: image for image in content.images})
    contents = [content for content in contents if not content.images or content.images[0].source not in repeated_files]
    images = {}
    for content in contents:
        for image in content.images:
            add_image(images, image, tree.shown_root)
    notes = [note for content in contents for note in content.notes]
    notes += [f"{file} repeats other files, and was skipped" for file in repeated_files]
    skipped = [PurePosixPath(file).name for file in tree.files_ending(".json") if _name_starts_with(file, *OTHER_TASKS)]
    if skipped and len(files) > 1 and box_files is not files:
        count = f"{counted(len(skipped), 'file')} other than {INSTANCES}_*.json {was_or_were(len(skipped))} skipped"
        notes.append(f"{count}: {', '.join(skipped)}")
    class_numbers = _merge_class_numbers([content.class_numbers for content in contents], tree)
    return AnnotationSet(list(images.values()), class_numbers, tuple(notes))


_EXPECTED_FILES = "COCO JSON beside or above the images or in annotations/, one file for each split if there are splits"
LAYOUT = Layout("COCO JSON", _EXPECTED_FILES, (".json",), find, read)


def _name_starts_with(file: str, *words: str) -> bool:
    return PurePosixPath(file).name.lower().startswith(words)


class _FileReader:
    """Reader of one JSON file; raises a UserError if the file is invalid."""

    def __init__(self, tree: Tree, file: str, finder: ImageFinder) -> None:
        self._tree, self._file, self._finder = tree, file, finder
        self._shown_path = tree.shown_path(file)
        self._part = split_of_file(file)

    def read(self) -> AnnotationSet:
        """Return the images, boxes and classes in the file."""
        notes: list[str] = []
        content = self._tree.read_json(self._file, MAX_BYTES, GIVE_COCO, notes)
        if not isinstance(content, dict) or not set(ENTRIES) <= set(content):
            raise NoLabelsError(f"{self._shown_path!r} lacks 'images', 'annotations' or 'categories': {GIVE_COCO}.")
        categories, class_numbers = self._read_categories(content)
        images = self._read_images(content)
        rows = self._read_entries(content, "annotations")
        if rows and all("score" in row for row in rows):
            notes.append(f"the boxes of {self._file} have scores, like the predictions of a detector")
        for row in rows:
            image_id, category_id = _normalise_id(row.get("image_id")), _normalise_id(row.get("category_id"))
            if image_id not in images:
                raise self._error(
                    f"a box of the image {row.get('image_id')!r}, which is not in 'images': add the image"
                )
            if category_id not in categories:
                expected = ", ".join(map(str, list(categories)[:8]))
                raise self._error(
                    f"a box of the category {row.get('category_id')!r}, expected one of {expected}: add the category, "
                    "or correct the box"
                )
            outline = row.get("segmentation")
            stated_box: Any = row.get("bbox")
            box = _box_of_outline(outline) if outline and not stated_box else None
            if box is None:
                if not are_numbers(stated_box, 4):
                    problem = f"a 'bbox' {short_repr(stated_box)}, expected left, top, width and height"
                    raise self._error(f"{problem}: correct the box")
                left, top, width, height = (float(number) for number in stated_box)
                box = left, top, left + width, top + height
            is_crowd = bool(_finite_number(row.get("iscrowd")) or 0)
            images[image_id].add(categories[category_id], box, outline, is_crowd)
        self._refuse_xyxy_boxes(images.values())
        return AnnotationSet(list(images.values()), class_numbers, tuple(notes))

    def _error(self, problem: str) -> UserError:
        return UserError(f"{self._shown_path!r} has {problem}.")

    def _refuse_xyxy_boxes(self, images: Iterable[AnnotatedImage]) -> None:
        """Refuse a file with many boxes outside the image, if all are inside as left, top, right, bottom.

        Some programs write such boxes, contrary to the format.
        """
        boxes = [(box, image.size) for image in images if image.size for box in image.boxes]
        outside = [box for box, (height, width) in boxes if box[2] > MAX_EDGE * width or box[3] > MAX_EDGE * height]
        if (
            boxes
            and len(outside) >= MIN_FRACTION_OUTSIDE * len(boxes)
            and all(
                left < right - left <= MAX_EDGE * width and top < bottom - top <= MAX_EDGE * height
                for (left, top, right, bottom), (height, width) in boxes
            )
        ):
            left, top, right, bottom = outside[0]
            raise self._error(
                f"{counted(len(outside), 'box', 'boxes')} that would end outside of their image, such as {left:g} "
                f"{top:g} {right - left:g} {bottom - top:g}, but all boxes would be inside as left, top, right and "
                "bottom: give left, top, width and height, as in COCO JSON"
            )

    def _read_entries(self, content: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
        rows = content[name]
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self._error(f"a value of {name!r} that is not a list of entries: {GIVE_COCO}")
        return rows

    def _read_categories(self, content: Mapping[str, Any]) -> tuple[dict[Any, str], dict[str, int]]:
        rows = self._read_entries(content, "categories")
        if len(rows) > MAX_CLASSES:
            raise self._error(f"{len(rows):,} categories; at most {MAX_CLASSES:,} are read")
        categories: dict[Any, str] = {}
        for row in rows:
            category_id, name = _normalise_id(row.get("id")), row.get("name")
            if category_id is None or not isinstance(name, str) or not name.strip() or category_id in categories:
                raise self._error(f"a category without a name or a unique id: {short_repr(row)}; correct the entry")
            categories[category_id] = unicodedata.normalize("NFC", name)
        names = unique_class_names(categories)
        are_integers = all(isinstance(category_id, int) for category_id in names)
        return names, {name: number if are_integers else index for index, (number, name) in enumerate(names.items(), 1)}

    def _read_images(self, content: Mapping[str, Any]) -> dict[Any, AnnotatedImage]:
        """Return the images by id, before their boxes are added."""
        images: dict[Any, AnnotatedImage] = {}
        rows = self._read_entries(content, "images")
        for row in rows:
            name, image_id = row.get("file_name"), _normalise_id(row.get("id"))
            if not isinstance(name, str) or not name or image_id is None:
                raise self._error(f"an image without an id or a file_name: {short_repr(row)}; correct the entry")
            if image_id in images:
                raise self._error(f"two images with the id {image_id!r}: give each image a different id")
            # Some programs write 0 for an unknown size.
            sides = (_finite_number(row.get(name)) for name in ("height", "width"))
            size = positive_size(*(None if side is None else int(side) for side in sides))
            images[image_id] = AnnotatedImage("", size=size, declared_split=self._part, source=self._file)
        keys = self._finder.find_images([row["file_name"] for row in rows], self._file, self._part)
        for row, key, image in zip(rows, keys, images.values(), strict=True):
            if key is None:
                name = row["file_name"]
                if problem := explain_foreign_path(name):
                    raise MissingImage(f"{self._shown_path!r} names the image {name[:120]!r}, {problem}.")
                raise missing_image_error(self._tree, self._file, name)
            image.key = key
        return images


def _normalise_id(value: Any) -> int | str | None:
    """Return an id as an integer if possible, since programs write 3, 3.0 or "3"; None if the value is not an id."""
    if isinstance(value, str):
        number = _finite_number(value)
        return int(value) if value.isdecimal() else value or None if number is None else _normalise_id(number)
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if type(value) is int else None


def _finite_number(value: Any) -> float | None:
    """Return a number, or text with a number, as a float; None for other values, NaN and infinity."""
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _box_of_outline(outline: Any) -> Corners | None:
    """Return the box around an outline; None if the outline is invalid, which is reported when masks are read."""
    if isinstance(outline, dict):
        return box_of_run_lengths(outline)
    polygons = [polygon for polygon in outline if isinstance(polygon, list)] if isinstance(outline, list) else []
    values = [value for polygon in polygons for value in polygon[: len(polygon) // 2 * 2]]
    if not values or not all(type(value) in (int, float) for value in values):
        return None
    return box_of_points(zip(values[::2], values[1::2], strict=True))


def _merge_class_numbers(mappings: Sequence[Mapping[str, int]], tree: Tree) -> dict[str, int]:
    """Return one mapping from class names to numbers for all files; renumber conflicting mappings that count from 1."""
    merged: dict[str, int] = {}
    for mapping in mappings:
        for name, number in mapping.items():
            merged.setdefault(name, number)
    if len(set(merged.values())) == len(merged):
        return merged
    if all(sorted(mapping.values()) == list(range(1, len(mapping) + 1)) for mapping in mappings):
        return {name: number for number, name in enumerate(sorted(merged), 1)}
    raise UserError(
        f"the files of {tree.shown_root!r} give several classes the same number: give each class one number in all "
        "files."
    )
