"""COCO's panoptic format: PNG files of segment numbers, converted once to masks of class numbers in the cache folder.

Format: https://cocodataset.org/#format-data, "Panoptic Segmentation". The number of a segment is red + 256
green + 65,536 blue; unlabelled pixels are 0. The JSON file gives the category of each segment.
"""

import csv
import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.boxes.coco import SEGMENTS
from paucal.data.boxes.naming import ImageFinder
from paucal.data.boxes.tree import PEEK_BYTES, Tree, contains_json_key, folder_tree
from paucal.data.decoded.cache_folder import unpacked_archives_folder
from paucal.data.masks.coding import IGNORED
from paucal.data.masks.mask_files import read_mask
from paucal.data.splits.part_names import split_of_file
from paucal.types import UserError
from paucal.wording import left_out_notes

PANOPTIC_NAME = "COCO's panoptic JSON"
MAX_BYTES = 1 << 29  # maximum size of a JSON file; panoptic_train2017.json has 360 MB
_REQUIRED_KEYS = {
    "images": {"id", "file_name"},
    "annotations": {"image_id", "file_name", SEGMENTS},
    "categories": {"id", "name"},
}
DrawnMasks = list[tuple[str, Path, str]]  # key of the image, mask file, split


def find_panoptic(tree: Tree) -> list[str]:
    """Return the paths of the panoptic JSON files of a set."""
    return [file for file in tree.files_ending(".json") if contains_json_key(tree.peek(file, PEEK_BYTES), SEGMENTS)]


def draw_panoptic(root: Path) -> tuple[DrawnMasks, list[str]]:
    """Draw the masks that the panoptic JSON files in a folder describe, unless they are cached; also return notes.

    Mask values are positions in the list of categories in the JSON file. The names of the categories are in
    `classes.csv` in the folder above the masks.
    """
    tree = folder_tree(root)
    files = find_panoptic(tree)
    if not files:
        return [], []
    contents = {file: _read_entries(tree, file) for file in files}
    names = {file: _category_names(tree.shown_path(file), content["categories"]) for file, content in contents.items()}
    categories = names[files[0]]
    if any(other != categories for other in names.values()):
        raise UserError(
            f"the panoptic files of {tree.shown_root!r} have different categories: give all files the same categories."
        )
    entries = [row for file in files for row in _plan_masks(tree, file, contents[file])]
    file_stats = [(path, (root / path).stat()) for path in (*files, *(png for _, png, _, _ in entries))]
    stamps = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in file_stats]
    folder = (
        unpacked_archives_folder() / hashlib.sha256(f"panoptic {root.resolve()} {stamps}".encode()).hexdigest()[:32]
    )
    if repeated := next((key for key, count in Counter(row[0] for row in entries).items() if count > 1), None):
        raise UserError(
            f"the panoptic files of {tree.shown_root!r} describe {repeated!r} twice: give each image one entry."
        )
    if not folder.is_dir():
        _draw_masks(tree, entries, categories, folder)
    n_without_mask = sum(
        len({repr(row["id"]) for row in content["images"]} - {repr(row["image_id"]) for row in content["annotations"]})
        for content in contents.values()
    )
    notes = left_out_notes(n_without_mask, "image without a mask", "images without a mask")
    mask_rows = [(key, folder / "masks" / f"{index}.png", part) for index, (key, _, _, part) in enumerate(entries)]
    return mask_rows, notes


def _read_entries(tree: Tree, file: str) -> dict[str, list[dict[str, Any]]]:
    content = tree.read_json(file, MAX_BYTES, f"give {PANOPTIC_NAME}")
    rows: dict[str, Any] = {name: content.get(name) if isinstance(content, dict) else None for name in _REQUIRED_KEYS}
    for name, keys in _REQUIRED_KEYS.items():
        if not isinstance(rows[name], list) or not all(
            isinstance(row, dict) and keys <= row.keys() for row in rows[name]
        ):
            raise UserError(
                f"{tree.shown_path(file)!r} has no list {name!r} of entries with {', '.join(sorted(keys))}: "
                f"give {PANOPTIC_NAME}."
            )
    return rows


def _category_names(shown_path: str, rows: Sequence[Mapping[str, Any]]) -> dict[Any, str]:
    """Return the name of each category by its id (as text), in the order of the JSON file."""
    names = {repr(row["id"]): str(row["name"]).strip() for row in rows}
    are_unique = len(names) == len(rows) == len(set(names.values()))
    if not 1 <= len(names) <= IGNORED or not are_unique or not all(names.values()):
        raise UserError(
            f"{shown_path!r} has {len(rows)} categories, expected 1 to {IGNORED} categories with unique ids and unique "
            "names: correct the categories."
        )
    return names


def _plan_masks(
    tree: Tree, file: str, content: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[tuple[str, str, Any, str]]:
    """Return (key of the image, path of the PNG file, segments, split) for each annotation in a JSON file."""
    shown_path, part = tree.shown_path(file), split_of_file(file)
    stem = PurePosixPath(file).stem.lower()
    segment_files = [path for path in tree.images if stem in path.lower().split("/")[:-1]]
    if not segment_files:
        segment_files = [path for path in tree.images if "panoptic" in path.lower().rpartition("/")[0]]
    image_files = [path for path in tree.images if "panoptic" not in path.lower().rpartition("/")[0]]
    images = {repr(row["id"]): str(row["file_name"]) for row in content["images"]}
    rows = content["annotations"]
    if missing := next((row for row in rows if repr(row["image_id"]) not in images), None):
        raise UserError(
            f"{shown_path!r} has segments of the image {missing['image_id']!r}, but does not list the image: add the "
            "image to 'images'."
        )
    image_names = [images[repr(row["image_id"])] for row in rows]
    keys = ImageFinder(sorted(set(image_files) - set(segment_files)), tree).find_images(image_names, file, part)
    pngs = ImageFinder(segment_files, tree).find_images([str(row["file_name"]) for row in rows], file, part)
    for row, name, key, png in zip(rows, image_names, keys, pngs, strict=True):
        if key is None or png is None:
            raise UserError(
                f"{shown_path!r} describes {name if key is None else str(row['file_name'])!r}, but there is no such "
                f"image in {tree.shown_root!r}{'' if key is None else f', in a folder such as {stem}/'}: add the file."
            )
    return [(str(key), str(png), row[SEGMENTS], part) for row, key, png in zip(rows, keys, pngs, strict=True)]


def _draw_masks(
    tree: Tree, entries: Sequence[tuple[str, str, Any, str]], categories: Mapping[Any, str], folder: Path
) -> None:
    classes = {category: index for index, category in enumerate(categories)}
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix="unfinished-", ignore_cleanup_errors=True) as target:
        Path(target, "masks").mkdir()
        for index, (_, png, segments, _) in enumerate(entries):
            mask = _draw_mask(Path(tree.location, png), png, segments, classes)
            Image.fromarray(mask).save(Path(target, "masks", f"{index}.png"))
        with Path(target, "classes.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("name", "value"), *zip(categories.values(), classes.values(), strict=True)])
        try:
            os.replace(target, folder)
        except OSError:
            if not folder.is_dir():  # if the folder exists, another process has written the masks
                raise


def _draw_mask(path: Path, name: str, segments: Any, classes: Mapping[Any, int]) -> NDArray[np.uint8]:
    """Return the (H, W) class number of each pixel; `IGNORED` for pixels outside of all segments."""
    packed = read_mask(path, name).convert_values(True, name)  # red is the highest byte
    numbers = (packed >> 16) | (packed & 0xFF00) | (packed & 0xFF) << 16
    mask = np.full(numbers.shape, IGNORED, dtype=np.uint8)
    for segment in segments if isinstance(segments, list) else [segments]:
        has_id = isinstance(segment, dict) and type(segment.get("id")) is int
        if not has_id or repr(segment.get("category_id")) not in classes:
            raise UserError(
                f"{name!r} has a segment without an id, or of a category that is not listed ({str(segment)[:80]}): "
                "correct the JSON file."
            )
        mask[numbers == segment["id"]] = classes[repr(segment["category_id"])]
    unknown = (mask == IGNORED) & (numbers != 0)
    if unknown.any():
        raise UserError(
            f"{name!r} has pixels of the segment {int(numbers[unknown][0])}, which is not listed in the JSON file: add "
            "the segment to the JSON file."
        )
    return mask
