"""Small sets of six images with boxes, as programs other than COCO's and Pascal VOC's write them."""

import json
from pathlib import Path
from typing import Any

from tasks.detection.made import pictures

NAMES = ["red", "blue"]
PART = {0: "train", 1: "train", 2: "train", 3: "val", 4: "test", 5: "test"}


def yolo_line(row: tuple, size: tuple[int, int], outline: bool = False) -> str:
    name, left, top, right, bottom = row
    width, height = size
    values = [(left + right) / 2 / width, (top + bottom) / 2 / height, (right - left) / width, (bottom - top) / height]
    if outline:
        corners = ((left, top), (right, top), (right, bottom), (left, bottom))
        values = [value for x, y in corners for value in (x / width, y / height)]
    return " ".join([str(NAMES.index(name)), *(f"{value:.8f}" for value in values)])


def write_yolo(root: Path, images: str = "images/{}", labels: str = "labels/{}", outline: bool = False) -> Path:
    for n, (image, rows) in enumerate(pictures(6)):
        for folder in (images, labels):
            (root / folder.format(PART[n])).mkdir(parents=True, exist_ok=True)
        image.save(root / images.format(PART[n]) / f"{n}.png")
        text = "\n".join(yolo_line(row, image.size, outline) for row in rows)
        (root / labels.format(PART[n]) / f"{n}.txt").write_text(text + "\n")
    return root


def labelme(shapes: list[dict[str, Any]], path: str, size: tuple[int, int] = (96, 64)) -> str:
    content = {"version": "5.0", "flags": {}, "shapes": shapes, "imagePath": path, "imageData": None}
    return json.dumps({**content, "imageHeight": size[1], "imageWidth": size[0]})


def write_labelme(root: Path, images: str = ".", path: str = "{}.png") -> Path:
    (root / images).mkdir(parents=True, exist_ok=True)
    (root / "labels" if images != "." else root).mkdir(exist_ok=True)
    for n, (image, rows) in enumerate(pictures(6)):
        image.save(root / images / f"{n}.png")
        shapes = [
            {"label": name, "points": [[left, top], [right, bottom]], "shape_type": "rectangle", "group_id": None}
            for name, left, top, right, bottom in rows
        ]
        folder = root if images == "." else root / "labels"
        (folder / f"{n}.json").write_text(labelme(shapes, path.format(n)))
    return root


def shapes_of(rows: list[tuple], kind: str) -> str:
    found = ""
    for name, left, top, right, bottom in rows:
        if kind == "box":
            found += f'<box label="{name}" xtl="{left}" ytl="{top}" xbr="{right}" ybr="{bottom}"/>'
        elif kind == "polygon":
            points = f"{left},{top};{right},{top};{right},{bottom};{left},{bottom}"
            found += f'<polygon label="{name}" points="{points}"/>'
        else:
            width, height = right - left, bottom - top
            place = f'left="{left}" top="{top}" width="{width}" height="{height}"'
            found += f'<mask label="{name}" rle="0, {width * height}" {place}/>'
    return found


def write_cvat(root: Path, kind: str = "box", subset: bool = False, extra: str = "") -> Path:
    (root / "images").mkdir(parents=True, exist_ok=True)
    text = ""
    for n, (image, rows) in enumerate(pictures(6)):
        image.save(root / "images" / f"{n}.png")
        part = f' subset="{"Train" if n < 4 else "Validation"}"' * subset
        shapes = shapes_of(rows, kind) + extra * (n == 0)
        text += f'<image id="{n}" name="{n}.png"{part} width="96" height="64">{shapes}<tag label="x"/></image>'
    (root / "annotations.xml").write_text(f"<annotations><version>1.1</version>{text}</annotations>")
    return root


def region(row: tuple, size: tuple[int, int], kind: str = "rectangle") -> dict[str, Any]:
    """Return the result of a region as Label Studio writes it."""
    name, left, top, right, bottom = row
    x, y, across, down = (
        100 * value / side for value, side in zip((left, top, right - left, bottom - top), size * 2, strict=True)
    )
    value: dict[str, Any] = {"x": x, "y": y, "width": across, "height": down, "rotation": 0}
    if kind == "polygon":
        value = {"points": [[x, y], [x + across, y], [x + across, y + down], [x, y + down]], "closed": True}
    value[f"{kind}labels"] = [name]
    stated = {"original_width": size[0], "original_height": size[1], "image_rotation": 0}
    return {**stated, "type": f"{kind}labels", "value": value, "id": name, "from_name": "label", "to_name": "image"}


def task(image: str, results: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"id": 1, "data": {"image": image}, "annotations": [{"result": results, **more}], "predictions": []}


def short_task(image: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a task in the short form, JSON-MIN."""
    label = [{**one["value"], **{name: one[name] for name in one if name.startswith("orig")}} for one in results]
    return {"image": image, "id": 1, "label": label, "annotator": 1, "created_at": "2024-01-01T00:00:00Z"}


def write_label_studio(
    root: Path, kind: str = "rectangle", name: str = "/data/upload/1/{}.png", short: bool = False
) -> Path:
    (root / "images").mkdir(parents=True, exist_ok=True)
    tasks = []
    for n, (image, rows) in enumerate(pictures(6)):
        image.save(root / "images" / f"{n}.png")
        results = [region(row, image.size, kind) for row in rows]
        tasks.append((short_task if short else task)(name.format(n), results))
    (root / "project-1-at-2024.json").write_text(json.dumps(tasks))
    return root


PIXELS = ["filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax"]
SHARES = ["ImageID", "Source", "LabelName", "Confidence", "XMin", "XMax", "YMin", "YMax", "IsGroupOf"]


def rows_of(n: int, header: list[str]) -> list[list[str]]:
    image, rows = pictures(6)[n]
    width, height = image.size
    found = []
    for name, left, top, right, bottom in rows:
        edges = {"xmin": left, "ymin": top, "xmax": right, "ymax": bottom}
        shares = {"XMin": left / width, "XMax": right / width, "YMin": top / height, "YMax": bottom / height}
        others = {"width": width, "height": height, "class": name, "LabelName": name, "IsGroupOf": 0, "Confidence": 1}
        values = {"filename": f"{n}.png", "ImageID": str(n), "Source": "x", **others, **edges, **shares}
        found.append([str(values[column]) for column in header])
    return found


def write_tables(
    root: Path, header: list[str], files: dict[str, range], delimiter: str = ",", encoding: str = "utf-8"
) -> Path:
    (root / "images").mkdir(parents=True, exist_ok=True)
    for name, numbers in files.items():
        lines = [header, *(row for n in numbers for row in rows_of(n, header))]
        text = "\n".join(delimiter.join(row) for row in lines)
        (root / name).write_bytes(text.encode(encoding))
    for n, (image, _) in enumerate(pictures(6)):
        image.save(root / "images" / f"{n}.png")
    return root
