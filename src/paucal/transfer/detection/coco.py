"""Boxes from COCO's JSON: one file for the images of a folder."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from paucal.reading import parse_json, read_bytes
from paucal.transfer.detection.annotations import MOST_CLASSES, Annotated
from paucal.types import UserError

MOST_BYTES = 1 << 29  # instances_train2017.json, of 118,000 images, has 449 MB


def read_coco(file: Path, root: Path, declared: str = "") -> tuple[list[Annotated], dict[str, int]]:
    """Read a file of annotations.

    Args:
        file: JSON with "images", "annotations" and "categories".
        root: folder that the keys of the images begin at.
        declared: the part that all its images belong to; "" for none.

    Returns:
        The images, and the number of each class.

    Raises:
        UserError: it is no such file, names an image outside of `root` or one that is nowhere, or a box names an image
            or a category that the file does not list.
    """
    content = _content(file)
    categories = _categories(content, file)
    folder = _image_folder(content, file, root)
    by_id: dict[Any, Annotated] = {}
    for row in _rows(content, "images", file):
        name, number = row.get("file_name"), row.get("id")
        if not isinstance(name, str) or not name or not isinstance(number, int | str):
            raise UserError(f"{str(file)!r} has an image without an id or a file_name: {_short(row)}; correct it.")
        if number in by_id:
            raise UserError(f"{str(file)!r} has two images with the id {number!r}: give each image an id of its own.")
        by_id[number] = Annotated(_key(folder, name, root, file), size=_size(row), declared=declared, source=file.name)
    for row in _rows(content, "annotations", file):
        _add_box(row, by_id, categories, file)
    return list(by_id.values()), {name: number for number, name in categories.items()}


def _content(file: Path) -> Mapping[str, Any]:
    try:
        content = parse_json(read_bytes(file, MOST_BYTES))
    except ValueError as problem:
        raise UserError(f"{str(file)!r} cannot be read ({problem}): give COCO's JSON of images and boxes.") from None
    if not isinstance(content, dict) or not {"images", "annotations", "categories"} <= set(content):
        raise UserError(f"{str(file)!r} lacks 'images', 'annotations' or 'categories': give COCO's JSON of boxes.")
    return content


def _rows(content: Mapping[str, Any], name: str, file: Path) -> list[dict[str, Any]]:
    rows = content[name]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{str(file)!r} has {name!r} that are no list of entries: give COCO's JSON of boxes.")
    return rows


def _categories(content: Mapping[str, Any], file: Path) -> dict[int, str]:
    rows = _rows(content, "categories", file)
    if len(rows) > MOST_CLASSES:
        raise UserError(f"{str(file)!r} lists {len(rows):,} categories; at most {MOST_CLASSES:,} are read.")
    found: dict[int, str] = {}
    for row in rows:
        number, name = row.get("id"), row.get("name")
        if type(number) is not int or not isinstance(name, str) or number in found:
            raise UserError(
                f"{str(file)!r} has a category without a name or an id of its own: {_short(row)}; correct it."
            )
        # Two categories of one name are two classes: people tell them apart by their numbers.
        found[number] = f"{name} ({number})" if name in found.values() else name
    return found


def _add_box(row: dict[str, Any], images: Mapping[Any, Annotated], categories: Mapping[int, str], file: Path) -> None:
    image, category, box = row.get("image_id"), row.get("category_id"), row.get("bbox")
    if not isinstance(image, int | str) or image not in images:
        raise UserError(f"{str(file)!r} has a box of the image {image!r}, which it does not list: add the image.")
    if type(category) is not int or category not in categories:
        raise UserError(
            f"{str(file)!r} has a box of the category {category!r}, which it does not list among "
            f"{', '.join(map(str, list(categories)[:8]))}: add the category, or correct the box."
        )
    if not isinstance(box, list) or len(box) != 4 or not all(isinstance(n, int | float) for n in box):
        raise UserError(f"{str(file)!r} has a 'bbox' {_short(box)}, expected left, top, width and height: correct it.")
    left, top, width, height = (float(n) for n in box)
    target = images[image]
    target.boxes.append((left, top, left + width, top + height))
    target.names.append(categories[category])
    target.crowd.append(bool(row.get("iscrowd", 0)))
    target.outlines.append(row.get("segmentation"))  # polygons, or lengths of runs


def _size(row: Mapping[str, Any]) -> tuple[int, int] | None:
    height, width = row.get("height"), row.get("width")
    return (height, width) if type(height) is int and type(width) is int else None


def _image_folder(content: Mapping[str, Any], file: Path, root: Path) -> Path:
    """Find where the images lie: beside the file, in a folder `images`, or in one called as the file says."""
    rows = [row for row in _rows(content, "images", file) if isinstance(row.get("file_name"), str)]
    part = file.stem.rpartition("_")[2]  # "train2017" of instances_train2017.json
    places = [file.parent, file.parent / "images", file.parent / part]
    places += [file.parent.parent, file.parent.parent / "images", file.parent.parent / part]
    for place in places:
        if rows and place.resolve().is_relative_to(root.resolve()) and (place / rows[0]["file_name"]).is_file():
            return place
    return file.parent


def _key(folder: Path, name: str, root: Path, file: Path) -> str:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise UserError(
            f"{str(file)!r} names the image {name[:120]!r}, a path out of its folder: give names within it."
        )
    return (folder / path).relative_to(root).as_posix()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
