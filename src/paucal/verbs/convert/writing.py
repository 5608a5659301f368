"""The layouts that can be written: a function for each, and the table of all."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image

from paucal.data.boxes.annotations import unpack_run_lengths
from paucal.data.images import UNKNOWN
from paucal.data.masks.coding import IGNORED, MAX_CLASSES
from paucal.runs import csv_text
from paucal.types import UserError
from paucal.verbs.convert.content import Content, Item, Kind, Thing
from paucal.verbs.convert.objects import (
    BACKGROUND,
    CROWDS,
    OUTLINES,
    mask_of,
    objects_of,
    outline_of,
    polygon_of,
    save_text,
)
from paucal.verbs.convert.tools import write_cvat, write_label_studio
from paucal.wording import counted


@dataclass(frozen=True)
class Layout:
    """A layout that can be written.

    `kinds` are the kinds of labels that it supports, in order of preference; `write` writes the labels into a folder,
    and `place` returns the path of an image below that folder.
    """

    kinds: tuple[Kind, ...]
    write: Callable[[Content, Path], None]
    place: Callable[[Item], str] = lambda item: item.place("images")


def write_yolo(content: Content, folder: Path) -> None:
    """Write labels/*.txt in parallel with images/, and data.yaml."""
    names = list(content.numbers)
    for item in content.items:
        height, width = item.size
        sides, lines = (width, height), []
        for thing in item.things:
            if thing.crowd:
                content.lost[CROWDS] += 1
                continue
            left, top, right, bottom = thing.box
            polygon = polygon_of(item, thing)
            content.lost[OUTLINES] += thing.outline is not None and polygon is None
            shape = polygon or ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
            values = [min(max(value / sides[n % 2], 0.0), 1.0) for n, value in enumerate(shape)]
            lines.append(" ".join([str(names.index(thing.name)), *(f"{value:.8f}" for value in values)]) + "\n")
        save_text(folder / item.place("labels", ".txt"), "".join(lines))
    parts = {part or "train": f"images/{part}".rstrip("/") for part in content.parts}
    if content.parts == [""]:  # other programs require both; their validation scores are meaningless here
        parts["val"] = parts["train"]
    # There is no "path": without it, other programs use the folder of this file.
    config = {**parts, "names": dict(enumerate(names))}
    save_text(folder / "data.yaml", yaml.safe_dump(config, allow_unicode=True, sort_keys=False))


def write_coco(content: Content, folder: Path) -> None:
    """Write annotations/instances_PART.json, or instances_default.json for a set without parts."""
    for part in content.parts:
        images, annotations = [], []
        for item in content.items:
            if item.part != part:
                continue
            height, width = item.size
            images.append({"id": item.index + 1, "file_name": item.name, "width": width, "height": height})
            for thing in objects_of(content, item):
                left, top, right, bottom = thing.box
                outline = {"segmentation": outline_of(item, thing)} if thing.outline else {}
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": item.index + 1,
                        "category_id": content.numbers[thing.name],
                        "bbox": [left, top, right - left, bottom - top],
                        "area": _object_area(thing),
                        "iscrowd": int(thing.crowd),
                        **({} if thing.score is None else {"score": thing.score}),
                        **outline,
                    }
                )
        categories = [{"id": number, "name": name} for name, number in content.numbers.items()]
        document = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
        save_text(folder / f"annotations/instances_{part or 'default'}.json", json.dumps(document, ensure_ascii=False))


def _object_area(thing: Thing) -> float:
    """Return the area of an object in square pixels: of its outline, or else of its box."""
    if isinstance(thing.outline, list):
        sides = [np.asarray(polygon, dtype=np.float64).reshape(-1, 2).T for polygon in thing.outline]
        return float(sum(abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2 for x, y in sides))
    if isinstance(thing.outline, dict):
        counts = thing.outline["counts"]
        lengths = unpack_run_lengths(counts.encode()) if isinstance(counts, str) else counts
        return float(sum(lengths[1::2]))
    left, top, right, bottom = thing.box
    return (right - left) * (bottom - top)


def write_voc(content: Content, folder: Path) -> None:
    """Write Annotations/*.xml, and the lists of parts in ImageSets/Main."""
    for item in content.items:
        height, width = item.size
        objects = ""
        for thing in item.things:
            content.lost[OUTLINES] += thing.outline is not None
            tags = zip(("xmin", "ymin", "xmax", "ymax"), thing.box, strict=True)
            box = "".join(f"<{tag}>{value:.10g}</{tag}>" for tag, value in tags)
            objects += (
                f"<object><name>{escape(thing.name)}</name><difficult>{int(thing.crowd)}</difficult>"
                f"<bndbox>{box}</bndbox></object>"
            )
        size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        text = f"<annotation><filename>{escape(item.name)}</filename>{size}{objects}</annotation>\n"
        save_text(folder / f"Annotations/{item.stem}.xml", text)
    for part in content.parts:
        if part:
            lines = "".join(f"{item.stem}\n" for item in content.items if item.part == part)
            save_text(folder / f"ImageSets/Main/{part}.txt", lines)


def write_csv(content: Content, folder: Path) -> None:
    """Write boxes.csv with a row for each box, or labels.csv with a row for each image."""
    has_parts = content.parts != [""]
    if content.kind == "train":
        _write_classes(content, folder, has_parts)
        return
    rows: list[list[Any]] = [["filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax", "iscrowd"]]
    rows[0] += ["split"] * has_parts
    for item in content.items:
        start, end = [item.place("images"), *item.size[::-1]], [item.part] * has_parts
        for thing in item.things:
            content.lost[OUTLINES] += thing.outline is not None
            rows.append([*start, thing.name, *(f"{value:.10g}" for value in thing.box), int(thing.crowd), *end])
        if not item.things:
            rows.append([*start, *[""] * 6, *end])
    save_text(folder / "boxes.csv", csv_text(*rows))


def _write_classes(content: Content, folder: Path, has_parts: bool) -> None:
    """Write a column of classes, or a column of 1 and 0 for each class if images may have several."""
    marks = content.images.multi_hot
    names = list(content.numbers)
    rows: list[list[Any]] = [["image_path", *(["label"] if marks is None else names), *["split"] * has_parts]]
    for item in content.items:
        labels = item.labels or [""]
        if marks is not None:
            labels = ["" if mark == UNKNOWN else mark for mark in marks[item.index].tolist()]
        rows.append([item.place("images"), *labels, *[item.part] * has_parts])
    save_text(folder / "labels.csv", csv_text(*rows))


def write_masks(content: Content, folder: Path) -> None:
    """Write masks/*.png whose values are the numbers of classes, and classes.csv with their names."""
    is_drawn = content.kind == "detect"
    names = [BACKGROUND, *(name for name in content.numbers if name != BACKGROUND)] if is_drawn else [*content.numbers]
    if len(names) > MAX_CLASSES:
        raise UserError(
            f"the objects are of {len(names) - 1} classes, but masks have at most {MAX_CLASSES - 1} beside the "
            "background: convert to another layout, or join classes."
        )
    for item in content.items:
        content.lost["single objects (their pixels become areas of their class)"] += len(item.things)
        mask = _draw_mask(item, names) if content.mask is None else content.mask(item.index)
        path = folder / item.place("masks", ".png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(mask).save(path)
    save_text(folder / "classes.csv", csv_text(("name", "value"), *zip(names, range(len(names)), strict=True)))


def _draw_mask(item: Item, names: Sequence[str]) -> NDArray[np.uint8]:
    """Return the mask of the outlines of objects, the largest first; crowds are unlabelled pixels."""
    mask = np.zeros(item.size, dtype=np.uint8)
    object_masks = []
    for thing in item.things:
        if not thing.outline:
            raise UserError(
                f"a box of {thing.name!r} in {item.name!r} has no outline, but masks need one for each object: convert "
                "to another layout, or draw outlines."
            )
        object_masks.append((IGNORED if thing.crowd else names.index(thing.name), mask_of(item, thing)))
    for number, pixels in sorted(object_masks, key=lambda entry: -int(entry[1].sum())):
        mask[pixels] = number
    return mask


def _class_folder(item: Item) -> str:
    return item.labels[0].replace("/", "_").replace("\\", "_").lstrip(".") or "_" if item.labels else ""


def write_folders(content: Content, folder: Path) -> None:
    """Write no labels, since folder names are the classes; refuse a set that folders cannot represent.

    Each image needs exactly one class, and class names must give different folder names.
    """
    unsuitable = next((item for item in content.items if len(item.labels) != 1), None)
    if unsuitable is not None:
        raise UserError(
            f"{unsuitable.name!r} has {counted(len(unsuitable.labels), 'class', 'classes')}, but folders need one "
            "class per image: convert with --to csv."
        )
    names = {_class_folder(item).casefold(): item.labels[0] for item in content.items}
    if len(names) < len({item.labels[0] for item in content.items}):
        raise UserError(
            "two class names give the same folder name (they differ only in case or special characters): convert "
            "with --to csv."
        )
    changed = sum(_class_folder(item) != item.labels[0] for item in content.items)
    content.lost["original names of classes that folders cannot have"] += changed


LAYOUTS: dict[str, Layout] = {
    "yolo": Layout(("detect",), write_yolo),
    "coco": Layout(("detect", "segment"), write_coco),
    "voc": Layout(("detect",), write_voc, lambda item: f"JPEGImages/{item.name}"),
    "masks": Layout(("segment", "detect"), write_masks),
    "csv": Layout(("detect", "train"), write_csv),
    "folders": Layout(
        ("train",), write_folders, lambda item: "/".join(filter(None, (item.part, _class_folder(item), item.name)))
    ),
    "label-studio": Layout(("detect", "train", "segment"), write_label_studio),
    "cvat": Layout(("detect", "train", "segment"), write_cvat),
}
