"""What a detector has found, as COCO's JSON."""

import json
from collections.abc import Sequence
from typing import Any

from paucal.tasks.detection.instance_masks.run_lengths import unpacked
from paucal.tasks.detection.judging import Found


def coco_document(
    keys: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    found: Sequence[Found],
    classes: Sequence[str],
    category_ids: Sequence[int],
) -> str:
    """Return detections as COCO's JSON, with a "score" in each; programs that show annotations show it.

    Masks are written as packed lengths of runs, and an object's area is then that of its mask.

    Args:
        keys: path of each image.
        sizes: (height, width) of each, in pixels.
        found: in each.
        classes: names of the labels.
        category_ids: the number of each class.
    """
    images = [
        {"id": number, "file_name": key, "height": size[0], "width": size[1]}
        for number, (key, size) in enumerate(zip(keys, sizes, strict=True), 1)
    ]
    annotations: list[dict[str, Any]] = []
    for number, one in enumerate(found, 1):
        for place in range(len(one)):
            numbers = {"id": len(annotations) + 1, "image_id": number}
            annotations.append({**numbers, **_annotation(one, place, category_ids)})
    categories = [{"id": number, "name": name} for number, name in zip(category_ids, classes, strict=True)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    return json.dumps(content, ensure_ascii=False) + "\n"


def _annotation(found: Found, place: int, category_ids: Sequence[int]) -> dict[str, Any]:
    left, top, right, bottom = found.boxes[place].tolist()
    sides = [left, top, right - left, bottom - top]
    content = {
        "category_id": category_ids[int(found.labels[place])],
        "bbox": [round(value, 2) for value in sides],
        "area": round(sides[2] * sides[3], 2),
        "iscrowd": 0,
        "score": round(float(found.scores[place]), 5),
    }
    if found.masks is None:
        return content
    mask = found.masks[place]
    written = {"size": list(mask["size"]), "counts": mask["counts"].decode("ascii")}
    return {**content, "area": int(unpacked(mask).sum()), "segmentation": written}
