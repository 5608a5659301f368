"""The layouts that `paucal convert` can write: a function for each layout, and the table `LAYOUTS`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image

from paucal.data.boxes.annotations import run_lengths_of, unpack_run_lengths
from paucal.data.boxes.label_studio import encode_brush
from paucal.data.images import UNKNOWN
from paucal.data.masks.coding import IGNORED, MAX_CLASSES
from paucal.types import UserError
from paucal.verbs.convert.content import (
    BACKGROUND,
    CROWDS,
    OUTLINES,
    AnnotatedObject,
    Kind,
    LabelledImage,
    LabelledSet,
    checked_outline,
    count_unknown_labels,
    list_objects,
    mask_of,
    polygon_of,
    save_text,
    without_crowds,
)
from paucal.wording import counted
from paucal.writing import csv_text

_LOCAL = "/data/local-files/?d="  # Label Studio's prefix for files in local storage
# Label Studio controls as (tag, name), by the type of result that a control produces.
_CONTROLS = {
    "choices": ("Choices", "choice"),
    "rectanglelabels": ("RectangleLabels", "label"),
    "polygonlabels": ("PolygonLabels", "polygon"),
    "brushlabels": ("BrushLabels", "brush"),
}


@dataclass(frozen=True)
class Layout:
    """A layout that can be written."""

    kinds: tuple[Kind, ...]  # supported kinds of labels in order of preference
    write: Callable[[LabelledSet, Path], None]  # writes the labels into a folder
    image_path: Callable[[LabelledImage], str] = lambda item: item.relative_path("images")  # below that folder


def write_yolo(content: LabelledSet, folder: Path) -> None:
    """Write data.yaml, and labels/*.txt with the same folders and names as images/."""
    names = list(content.class_numbers)
    for item in content.items:
        height, width = item.size
        sides, lines = (width, height), []
        for obj in item.objects:
            if obj.crowd:
                content.lost[CROWDS] += 1
                continue
            left, top, right, bottom = obj.box
            polygon = polygon_of(item, obj)
            content.lost[OUTLINES] += obj.outline is not None and polygon is None
            shape = polygon or ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
            values = [min(max(value / sides[n % 2], 0.0), 1.0) for n, value in enumerate(shape)]
            lines.append(" ".join([str(names.index(obj.name)), *(f"{value:.8f}" for value in values)]) + "\n")
        save_text(folder / item.relative_path("labels", ".txt"), "".join(lines))
    parts = {part or "train": f"images/{part}".rstrip("/") for part in content.splits}
    if content.splits == [""]:  # other programs require "val", even if its scores on training images mean nothing
        parts["val"] = parts["train"]
    # Without a key "path", other programs look for the images in the folder of this file.
    config = {**parts, "names": dict(enumerate(names))}
    save_text(folder / "data.yaml", yaml.safe_dump(config, allow_unicode=True, sort_keys=False))


def write_coco(content: LabelledSet, folder: Path) -> None:
    """Write annotations/instances_SPLIT.json, or instances_default.json for a set without splits."""
    for part in content.splits:
        images, annotations = [], []
        for item in content.items:
            if item.split != part:
                continue
            height, width = item.size
            images.append({"id": item.index + 1, "file_name": item.name, "width": width, "height": height})
            for obj in list_objects(content, item):
                left, top, right, bottom = obj.box
                outline = {"segmentation": checked_outline(item, obj)} if obj.outline else {}
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": item.index + 1,
                        "category_id": content.class_numbers[obj.name],
                        "bbox": [left, top, right - left, bottom - top],
                        "area": _object_area(obj),
                        "iscrowd": int(obj.crowd),
                        **({} if obj.score is None else {"score": obj.score}),
                        **outline,
                    }
                )
        categories = [{"id": number, "name": name} for name, number in content.class_numbers.items()]
        document = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
        save_text(folder / f"annotations/instances_{part or 'default'}.json", json.dumps(document, ensure_ascii=False))


def _object_area(obj: AnnotatedObject) -> float:
    """Return the area of an object in square pixels: that of its outline or, if it has no outline, that of its box."""
    if isinstance(obj.outline, list):
        sides = [np.asarray(polygon, dtype=np.float64).reshape(-1, 2).T for polygon in obj.outline]
        return float(sum(abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2 for x, y in sides))
    if isinstance(obj.outline, dict):
        counts = obj.outline["counts"]
        lengths = unpack_run_lengths(counts.encode()) if isinstance(counts, str) else counts
        return float(sum(lengths[1::2]))
    left, top, right, bottom = obj.box
    return (right - left) * (bottom - top)


def write_voc(content: LabelledSet, folder: Path) -> None:
    """Write Annotations/*.xml and, for each split, a list of its images in ImageSets/Main."""
    for item in content.items:
        height, width = item.size
        objects = ""
        for obj in item.objects:
            content.lost[OUTLINES] += obj.outline is not None
            tags = zip(("xmin", "ymin", "xmax", "ymax"), obj.box, strict=True)
            box = "".join(f"<{tag}>{value:.10g}</{tag}>" for tag, value in tags)
            name = f"<name>{escape(obj.name)}</name><difficult>{int(obj.crowd)}</difficult>"
            objects += f"<object>{name}<bndbox>{box}</bndbox></object>"
        size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        text = f"<annotation><filename>{escape(item.name)}</filename>{size}{objects}</annotation>\n"
        save_text(folder / f"Annotations/{item.stem}.xml", text)
    for part in filter(None, content.splits):
        lines = "".join(f"{item.stem}\n" for item in content.items if item.split == part)
        save_text(folder / f"ImageSets/Main/{part}.txt", lines)


def write_csv(content: LabelledSet, folder: Path) -> None:
    """Write boxes.csv with a row for each box, or labels.csv with a row for each image."""
    has_parts = content.splits != [""]
    if content.kind == "train":
        _write_classes(content, folder, has_parts)
        return
    rows: list[list[Any]] = [["filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax", "iscrowd"]]
    rows[0] += ["split"] * has_parts
    for item in content.items:
        start, end = [item.relative_path("images"), *item.size[::-1]], [item.split] * has_parts
        for obj in item.objects:
            content.lost[OUTLINES] += obj.outline is not None
            rows.append([*start, obj.name, *(f"{value:.10g}" for value in obj.box), int(obj.crowd), *end])
        if not item.objects:
            rows.append([*start, *[""] * 6, *end])
    save_text(folder / "boxes.csv", csv_text(*rows))


def _write_classes(content: LabelledSet, folder: Path, has_parts: bool) -> None:
    """Write labels.csv with a column of classes or, if images have several classes, a column of 1 and 0 per class."""
    multi_hot = content.images.multi_hot
    names = list(content.class_numbers)
    rows: list[list[Any]] = [["image_path", *(["label"] if multi_hot is None else names), *["split"] * has_parts]]
    for item in content.items:
        labels = item.labels or [""]
        if multi_hot is not None:
            labels = ["" if value == UNKNOWN else value for value in multi_hot[item.index].tolist()]
        rows.append([item.relative_path("images"), *labels, *[item.split] * has_parts])
    save_text(folder / "labels.csv", csv_text(*rows))


def write_masks(content: LabelledSet, folder: Path) -> None:
    """Write masks/*.png, whose pixel values are class numbers, and classes.csv with the class names."""
    from_boxes = content.kind == "detect"
    names = [name for name in content.class_numbers if name != BACKGROUND or not from_boxes]
    names = [BACKGROUND, *names] if from_boxes else names
    if len(names) > MAX_CLASSES:
        raise UserError(
            f"the objects have {len(names) - 1} classes, but masks can have at most {MAX_CLASSES - 1} in addition to "
            "the background: convert to another layout, or merge classes."
        )
    for item in content.items:
        content.lost["single objects (their pixels become areas of their class)"] += len(item.objects)
        mask = _draw_mask(item, names) if content.mask is None else content.mask(item.index)
        path = folder / item.relative_path("masks", ".png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(mask).save(path)
    save_text(folder / "classes.csv", csv_text(("name", "value"), *zip(names, range(len(names)), strict=True)))


def _draw_mask(item: LabelledImage, names: Sequence[str]) -> NDArray[np.uint8]:
    """Return an (H, W) mask with small objects drawn over large objects; the pixels of crowds are unlabelled."""
    mask = np.zeros(item.size, dtype=np.uint8)
    object_masks = []
    for obj in item.objects:
        if not obj.outline:
            raise UserError(
                f"a box of {obj.name!r} in {item.name!r} has no outline, but masks need the outline of each object: "
                "convert to another layout, or draw outlines."
            )
        object_masks.append((IGNORED if obj.crowd else names.index(obj.name), mask_of(item, obj)))
    for number, pixels in sorted(object_masks, key=lambda entry: -int(entry[1].sum())):
        mask[pixels] = number
    return mask


def _class_folder(item: LabelledImage) -> str:
    return item.labels[0].replace("/", "_").replace("\\", "_").lstrip(".") or "_" if item.labels else ""


def write_folders(content: LabelledSet, folder: Path) -> None:
    """Write no file, and only check that class folders can store the labels: one class per image, distinct names."""
    unsupported = next((item for item in content.items if len(item.labels) != 1), None)
    if unsupported is not None:
        raise UserError(
            f"{unsupported.name!r} has {counted(len(unsupported.labels), 'class', 'classes')}, but folders need one "
            "class per image: convert with --to csv."
        )
    names = {_class_folder(item).casefold(): item.labels[0] for item in content.items}
    if len(names) < len({item.labels[0] for item in content.items}):
        raise UserError(
            "two class names would have the same folder name (they differ only in case or special characters): convert "
            "with --to csv."
        )
    n_renamed = sum(_class_folder(item) != item.labels[0] for item in content.items)
    content.lost["images in a folder that cannot have the exact name of its class"] += n_renamed


def write_label_studio(content: LabelledSet, folder: Path) -> None:
    """Write a JSON list of tasks for each split, and label_config.xml, which defines the labelling interface."""
    kinds = {"train": ["choices"], "detect": ["rectanglelabels"], "segment": ["brushlabels"]}[content.kind]
    count_unknown_labels(content)
    for part in content.splits:
        tasks = []
        for item in content.items:
            if item.split == part:
                image = f"{_LOCAL}{quote(item.relative_path('images'))}"
                objects = without_crowds(content, item)
                results = [_region_entry(item, number, obj) for number, obj in enumerate(objects)]
                kinds += [result["type"] for result in results if result["type"] not in kinds]
                if content.kind == "train" and item.labels:
                    value = {"choices": list(item.labels)}
                    results = [{"from_name": "choice", "to_name": "image", "type": "choices", "value": value}]
                entry: dict[str, Any] = {"annotations": [{"result": results}]}
                if content.model:
                    score = {} if item.score is None else {"score": item.score}
                    entry = {"predictions": [{"model_version": content.model, **score, "result": results}]}
                tasks.append({"id": item.index + 1, "data": {"image": image}, **entry})
        save_text(folder / f"{part or 'tasks'}.json", json.dumps(tasks, ensure_ascii=False))
    choice_attribute = ' choice="multiple"' if content.images.multi_hot is not None and content.kind == "train" else ""
    controls = ""
    for tag, name in (_CONTROLS[kind] for kind in kinds):
        element = "Choice" if tag == "Choices" else "Label"
        labels = "".join(f"<{element} value={quoteattr(label)}/>" for label in content.class_numbers)
        controls += f'<{tag} name="{name}" toName="image"{choice_attribute}>{labels}</{tag}>'
    save_text(folder / "label_config.xml", f'<View><Image name="image" value="$image"/>{controls}</View>\n')


def _region_entry(item: LabelledImage, number: int, obj: AnnotatedObject) -> dict[str, Any]:
    height, width = item.size
    polygon = polygon_of(item, obj)
    value: dict[str, Any]
    if polygon is not None:
        pairs = zip(polygon[::2], polygon[1::2], strict=True)
        value = {"points": [[100 * x / width, 100 * y / height] for x, y in pairs], "closed": True}
        kind = "polygonlabels"
    elif obj.outline and (mask := mask_of(item, obj)).any():
        value, kind = {"format": "rle", "rle": encode_brush(mask)}, "brushlabels"
    else:
        left, top, right, bottom = (100 * edge / side for edge, side in zip(obj.box, (width, height) * 2, strict=True))
        value = {"x": left, "y": top, "width": right - left, "height": bottom - top, "rotation": 0}
        kind = "rectanglelabels"
    name = {"id": f"{item.index + 1}-{number + 1}", "from_name": _CONTROLS[kind][1], "to_name": "image", "type": kind}
    size_fields = {"original_width": width, "original_height": height, "image_rotation": 0}
    score = {} if obj.score is None else {"score": obj.score}
    return {**name, **size_fields, **score, "value": {**value, kind: [obj.name]}}


def write_cvat(content: LabelledSet, folder: Path) -> None:
    """Write annotations.xml in the format "CVAT for images 1.1"."""
    source = "auto" if content.model else "manual"
    count_unknown_labels(content)
    kinds, rows = set(), []
    for number, item in enumerate(content.items):
        height, width = item.size if content.kind != "train" else content.images.store.size(item.index)
        shapes = []
        for obj in without_crowds(content, item):
            tag, coordinates = _shape_tag(item, obj)
            kinds.add(tag)
            attributes = f'label={quoteattr(obj.name)} source="{source}" occluded="0" {coordinates} z_order="0"'
            shapes.append(f"<{tag} {attributes}/>")
        shapes += [f'<tag label={quoteattr(name)} source="{source}"/>' for name in item.labels]
        kinds |= {"tag"} if item.labels else set()
        subset = f" subset={quoteattr(item.split)}" if item.split else ""
        attributes = f'id="{number}" name={quoteattr(item.relative_path(""))}{subset} width="{width}" height="{height}"'
        rows.append(f"<image {attributes}>{''.join(shapes)}</image>")
    (shape,) = kinds if len(kinds) == 1 else ("any",)
    shape = "rectangle" if shape == "box" else shape
    names = "".join(f"<label><name>{escape(name)}</name><type>{shape}</type></label>" for name in content.class_numbers)
    task = f"<task><size>{len(rows)}</size><mode>annotation</mode><labels>{names}</labels></task>"
    header = f'<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n<version>1.1</version>\n<meta>{task}</meta>'
    save_text(folder / "annotations.xml", "\n".join([header, *rows, "</annotations>"]) + "\n")


def _shape_tag(item: LabelledImage, obj: AnnotatedObject) -> tuple[str, str]:
    polygon = polygon_of(item, obj)
    if polygon is not None:
        pairs = zip(polygon[::2], polygon[1::2], strict=True)
        return "polygon", f'points="{";".join(f"{x:.2f},{y:.2f}" for x, y in pairs)}"'
    if obj.outline and (mask := mask_of(item, obj)).any():
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        left, top = int(columns[0]), int(rows[0])
        cropped_mask = mask[top : rows[-1] + 1, left : columns[-1] + 1]
        extent = f'left="{left}" top="{top}" width="{cropped_mask.shape[1]}" height="{cropped_mask.shape[0]}"'
        runs_by_row = run_lengths_of(cropped_mask.T)["counts"]
        return "mask", f'rle="{", ".join(map(str, runs_by_row))}" {extent}'
    corners = zip(("xtl", "ytl", "xbr", "ybr"), obj.box, strict=True)
    return "box", " ".join(f'{name}="{value:.2f}"' for name, value in corners)


LAYOUTS: dict[str, Layout] = {
    "yolo": Layout(("detect",), write_yolo),
    "coco": Layout(("detect", "segment"), write_coco),
    "voc": Layout(("detect",), write_voc, lambda item: f"JPEGImages/{item.name}"),
    "masks": Layout(("segment", "detect"), write_masks),
    "csv": Layout(("detect", "train"), write_csv),
    "folders": Layout(
        ("train",), write_folders, lambda item: "/".join(filter(None, (item.split, _class_folder(item), item.name)))
    ),
    "label-studio": Layout(("detect", "train", "segment"), write_label_studio),
    "cvat": Layout(("detect", "train", "segment"), write_cvat),
}
