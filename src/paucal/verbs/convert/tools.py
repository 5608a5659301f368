"""The layouts of labelling tools: Label Studio's tasks and CVAT XML, with outlines as polygons or masks."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from paucal.data.boxes.annotations import run_lengths_of
from paucal.data.boxes.label_studio import encode_brush
from paucal.verbs.convert.content import (
    AnnotatedObject,
    LabelledImage,
    LabelledSet,
    count_unknown_labels,
    mask_of,
    polygon_of,
    save_text,
    without_crowds,
)

_LOCAL = "/data/local-files/?d="  # Label Studio's prefix for files in local storage
# Label Studio controls as (tag, name), by the type of result that a control produces.
_CONTROLS = {
    "choices": ("Choices", "choice"),
    "rectanglelabels": ("RectangleLabels", "label"),
    "polygonlabels": ("PolygonLabels", "polygon"),
    "brushlabels": ("BrushLabels", "brush"),
}


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
