"""Images that show any of three coloured squares, made here: a set of several labels that a small network can learn."""

import csv
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}


def make_set(folder: Path, count: int = 60, seed: int = 0, separator: str = ";") -> Path:
    """Write images of 32 pixels with 0 to 3 squares on noise, and `labels.csv` with their colours; return the table."""
    folder.mkdir(parents=True, exist_ok=True)
    generator, rows = np.random.default_rng(seed), []
    for number in range(count):
        shown = [name for place, name in enumerate(COLOURS) if number >> place & 1]
        pixels = generator.integers(0, 60, (32, 32, 3), dtype=np.uint8)
        for name in shown:
            row, column = generator.integers(0, 22, 2)
            pixels[row : row + 10, column : column + 10] = COLOURS[name]
        Image.fromarray(pixels).save(folder / f"{number:03}.png")
        rows.append([f"{number:03}.png", separator.join(shown)])
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["image_path", "label"], *rows])
    return folder / "labels.csv"
