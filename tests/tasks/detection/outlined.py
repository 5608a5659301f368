"""Small sets of images with outlines: discs and rectangles on grey, as COCO JSON with polygons."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIZE = (64, 96)  # height, width
COLOURS = {"disc": (220, 30, 30), "rectangle": (30, 30, 220)}
POINTS = 32  # of a disc's outline


def outline(name: str, left: float, top: float, width: float, height: float) -> list[float]:
    """Return x and y in turn, of the rectangle or of the ellipse in it."""
    if name == "rectangle":
        return [left, top, left + width, top, left + width, top + height, left, top + height]
    turns = np.linspace(0, 2 * np.pi, POINTS, endpoint=False)
    x, y = left + width / 2 * (1 + np.cos(turns)), top + height / 2 * (1 + np.sin(turns))
    return [float(value) for pair in zip(x, y, strict=True) for value in pair]


def drawn(name: str, left: int, top: int, width: int, height: int) -> np.ndarray:
    """Return the (H, W) bool mask of an object, found pixel by pixel."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    if name == "rectangle":
        return (x > left) & (x < left + width) & (y > top) & (y < top + height)
    a, b = (x - left - width / 2) / (width / 2), (y - top - height / 2) / (height / 2)
    return a * a + b * b < 1


def scenes(count: int, seed: int = 0) -> list[tuple[np.ndarray, list[tuple]]]:
    """Return images with one to three objects, and (name, left, top, width, height) of each."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        pixels = np.full((*SIZE, 3), 128, dtype=np.uint8)
        pixels += generator.integers(0, 12, pixels.shape, dtype=np.uint8)
        rows = []
        for place in range(int(generator.integers(1, 4))):
            name = str(generator.choice(list(COLOURS)))
            left = place * SIZE[1] // 3 + int(generator.integers(0, 6))
            top = int(generator.integers(0, SIZE[0] // 2))
            width, height = (int(side) for side in generator.integers(18, 26, 2))
            rows.append((name, left, top, width, height))
            pixels[drawn(*rows[-1])] = COLOURS[name]
        made.append((pixels, rows))
    return made


def write_outlined(folder: Path, count: int = 6, seed: int = 0) -> Path:
    """Write images and `_annotations.coco.json` beside them; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, (pixels, rows) in enumerate(scenes(count, seed)):
        Image.fromarray(pixels).save(folder / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": SIZE[1], "height": SIZE[0]})
        for row in rows:
            told = {"category_id": 3 if row[0] == "disc" else 7, "bbox": list(row[1:]), "iscrowd": 0}
            place = {"id": len(annotations) + 1, "image_id": number}
            annotations.append({**place, **told, "segmentation": [outline(*row)]})
    categories = [{"id": 3, "name": "disc"}, {"id": 7, "name": "rectangle"}]
    file = folder / "_annotations.coco.json"
    file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return file
