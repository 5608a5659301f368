"""Commands and photographs that the tests of the command line share."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from paucal.cli.main import main

# Small enough for seconds: 16 pixels, one block.
TINY = ["--img-size", "16", "-j", "0", "--model", "vit_mini", "--model-args", "depth=1", "--seed", "1"]
QUICK = [*TINY, "--epochs", "2"]
# A teacher and what learns from its label maps, on light changes.
PLAIN = ["--img-size", "32", "-j", "0", "--seed", "1", "-b", "12", "--rand-augment", "none", "--erase", "0"]
TEACHER = ["--model", "resnet10t", "--model-args", "channels=[8,8,16,16]", "stem_width=8", "--method", "supervised"]
# Masks in seconds.
SMALL = ["--model", "test_resnet", "--init", "none", "--img-size", "32", "--width", "8", "-b", "4", "-j", "0"]
LVVIT = ["--model", "lvvit_t", "--model-args", "embed_dim=32", "depth=1", "num_heads=2", "stem_width=8"]
WIDE: dict[str, Any] = {"size": (40, 20), "greys": (40, 85, 10)}


def make_photos(
    root: Path,
    classes: int = 3,
    each: int = 12,
    *,
    size: tuple[int, int] = (24, 20),
    greys: tuple[int, int, int] = (60, 70, 20),
    seed: int = 0,
) -> Path:
    """Make class folders of noise around one grey level per class.

    Args:
        root: of the class folders.
        classes: how many.
        each: images of each.
        size: (width, height) in pixels.
        greys: level of the first class, step to the next, and deviation of the noise.
        seed: of the noise.
    """
    generator = np.random.default_rng(seed)
    first, step, noise = greys
    for label in range(classes):
        folder = root / f"class{label}"
        folder.mkdir(parents=True)
        for number in range(each):
            pixels = generator.normal(first + step * label, noise, (size[1], size[0], 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def make_scenes(
    root: Path,
    count: int = 12,
    size: tuple[int, int] = (40, 48),
    parts: tuple[str, str] = ("images", "masks"),
    seed: int = 0,
) -> Path:
    """Make images of bright discs (class 1) and middling bars (class 2) on dark ground, and masks of them.

    Args:
        root: of the two folders.
        count: how many.
        size: (height, width) in pixels.
        parts: names of the folders.
        seed: of places and noise.
    """
    generator = np.random.default_rng(seed)
    rows, columns = np.mgrid[: size[0], : size[1]]
    for number in range(count):
        top, left, radius = generator.integers(8, 30), generator.integers(8, 40), generator.integers(5, 9)
        mask = ((rows - top) ** 2 + (columns - left) ** 2 < radius**2).astype(np.uint8)
        bar = generator.integers(0, size[1] - 6)
        mask[:, bar : bar + 5] = 2
        noise = generator.normal(0, 12, (*size, 3))
        image = (np.asarray([40, 210, 120])[mask][..., None] + noise).clip(0, 255).astype(np.uint8)
        for folder, picture in zip(parts, (image, mask), strict=True):
            (root / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(root / folder / f"{number:02d}.png")
    return root


def call(*argv) -> int:
    """Run a command; return its exit code."""
    return main([str(word) for word in argv])


def failure(capsys, *argv) -> str:
    """Run a command that must fail with exit code 2; return its one sentence."""
    capsys.readouterr()
    assert call(*argv) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err + captured.out
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    return lines[0]


def table(path: Path) -> list[dict[str, str]]:
    """Read a CSV file."""
    return list(csv.DictReader(path.read_text().splitlines()))
