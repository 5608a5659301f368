"""Small sets of images with boxes: coloured rectangles on grey, in both formats; and settings of a small detector."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

TINY = {
    **{"model": "test_resnet", "init": "none", "img_size": [96], "batch_size": 2, "device": "cpu", "workers": 0},
    **{"pyramid_channels": 16, "head_dim": 16, "regions": 32, "proposals": 64, "finest": 8, "anchor": 4},
}
COLOURS = {"red": (220, 30, 30), "blue": (30, 30, 220)}


def pictures(count: int, size: tuple[int, int] = (64, 96), seed: int = 0) -> list[tuple[Image.Image, list[tuple]]]:
    """Return images of (height, width) with one to three rectangles each, and (name, left, top, right, bottom)."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        pixels = np.full((*size, 3), 128, dtype=np.uint8)
        pixels += generator.integers(0, 12, pixels.shape, dtype=np.uint8)
        rows = []
        for place in range(int(generator.integers(1, 4))):  # side by side, so that they do not overlap
            name = str(generator.choice(list(COLOURS)))
            left = place * size[1] // 3 + int(generator.integers(0, 6))
            top = int(generator.integers(0, size[0] // 2))
            width, height = (int(side) for side in generator.integers(16, 26, 2))
            pixels[top : top + height, left : left + width] = COLOURS[name]
            rows.append((name, left, top, left + width, top + height))
        made.append((Image.fromarray(pixels), rows))
    return made


def write_voc(root: Path, count: int = 6, seed: int = 0) -> Path:
    (root / "JPEGImages").mkdir(parents=True)
    (root / "Annotations").mkdir()
    for number, (image, rows) in enumerate(pictures(count, seed=seed)):
        image.save(root / "JPEGImages" / f"{number}.png")
        write_xml(root / "Annotations" / f"{number}.xml", f"{number}.png", image.size, rows)
    return root


def write_xml(path: Path, name: str, size: tuple[int, int], rows: list[tuple]) -> None:
    objects = "".join(
        f"<object><name>{label}</name><bndbox><xmin>{left}</xmin><ymin>{top}</ymin><xmax>{right}</xmax>"
        f"<ymax>{bottom}</ymax></bndbox></object>"
        for label, left, top, right, bottom in rows
    )
    width, height = size
    path.write_text(
        f"<annotation><filename>{name}</filename><size><width>{width}</width><height>{height}</height></size>{objects}"
        "</annotation>"
    )


def coco(images: list[tuple[str, tuple[int, int], list[tuple]]], numbers: dict[str, int]) -> dict[str, Any]:
    """Return COCO JSON of (name, (width, height), rows)."""
    annotations = [
        {
            "id": 100 * place + index,
            "image_id": place,
            "category_id": numbers[row[0]],
            "bbox": [row[1], row[2], row[3] - row[1], row[4] - row[2]],
            "iscrowd": 0,
        }
        for place, (_, _, rows) in enumerate(images)
        for index, row in enumerate(rows)
    ]
    return {
        "images": [
            {"id": place, "file_name": name, "width": size[0], "height": size[1]}
            for place, (name, size, _) in enumerate(images)
        ],
        "annotations": annotations,
        "categories": [{"id": number, "name": name} for name, number in numbers.items()],
    }


def write_coco(folder: Path, count: int = 6, seed: int = 0, numbers: dict[str, int] | None = None) -> Path:
    """Write images and `_annotations.coco.json` beside them; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for number, (image, rows) in enumerate(pictures(count, seed=seed)):
        image.save(folder / f"{number}.png")
        listed.append((f"{number}.png", image.size, rows))
    file = folder / "_annotations.coco.json"
    file.write_text(json.dumps(coco(listed, numbers or {"red": 3, "blue": 7})))
    return file


def change(file: Path, **changes: Any) -> None:
    """Replace entries of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
