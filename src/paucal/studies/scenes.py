"""Drawn scenes with boxes and masks, which replace photographs: handwritten digits on a noisy background.

Half of the built-in digits are reserved for training the initial weights of a study's runs. The other digits are used
unchanged to evaluate frozen features, and are divided among the train, val and test scenes. So no initial weights are
trained on a digit of a scene, and no digit of a test scene occurs in a training scene.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.boxes.annotations import run_lengths_of
from paucal.data.sources.opening import open_digits

# Names of the folders of scenes, of digits for training initial weights, and of all other digits.
SCENES, START_DIGITS, OTHER_DIGITS = "scenes", "digits", "other-digits"
DRAWN_FOLDER = "drawn"  # folder within a study's folder that contains these three folders
UNFINISHED = f".{DRAWN_FOLDER}-"  # prefix of the temporary folder into which images are drawn
DIGIT_FRACTIONS = {"train": 0.5, "val": 0.2, "test": 0.3}  # fraction of the scenes' digits in each split
SCENES_PER_TRAINING_SCENE = {"train": 1.0, "val": 0.2, "test": 0.5}  # scenes in each split, relative to train
MIN_DIGITS, MAX_DIGITS = 3, 6  # smallest and largest number of digits per scene
MIN_SIZE, MAX_SIZE = 0.28, 0.45  # side of a digit as a fraction of the scene's side
BACKGROUND_MEAN, BACKGROUND_STD = 60.0, 20.0  # mean and standard deviation of the background's grey levels
INK_LEVEL = 80  # digit pixels with a grey level above this value cover the background
MAX_TRIES = 30  # number of random positions that are tried before a digit is skipped


@dataclass(frozen=True)
class Scene:
    """A drawn image: (S, S) grey levels, the labels of N digits, and (N, S, S) masks, which do not overlap."""

    pixels: NDArray[np.uint8]
    labels: tuple[int, ...]
    masks: NDArray[np.bool_]

    @property
    def classes(self) -> NDArray[np.uint8]:
        """(S, S) class numbers: 0 for the background, otherwise the digit plus 1."""
        classes = np.zeros(self.pixels.shape, np.uint8)
        for label, mask in zip(self.labels, self.masks, strict=True):
            classes[mask] = label + 1
        return classes


def draw_data_sets(folder: Path, images: int, side: int, seed: int = 0) -> Path:
    """Write scenes and digits into a folder unless the folder exists; return the folder.

    `images` is the number of training scenes, and `side` the side of a scene in pixels. Several processes may draw at
    the same time: every process draws the same images, and the first to finish provides the folder.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder.parent) as parent:
        temporary = Path(parent) / folder.name
        _draw_into(temporary, images, side, seed)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def _draw_into(folder: Path, images: int, side: int, seed: int) -> None:
    """Write `digits/` and `other-digits/` with a folder for each class, and `scenes/` with a folder for each split."""
    digits = open_digits()
    rng = np.random.default_rng(seed)
    for_starts, by_split = split_digits(len(digits), rng)
    for name, indices in ((START_DIGITS, for_starts), (OTHER_DIGITS, np.concatenate(list(by_split.values())))):
        for index in indices:
            class_folder = folder / name / digits.classes[digits.labels[index]]
            class_folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(_digit_pixels(digits, index)).save(class_folder / f"{index:04d}.png")
    for split, indices in by_split.items():
        pool = [(_digit_pixels(digits, index), int(digits.labels[index])) for index in indices]
        count = max(4, round(SCENES_PER_TRAINING_SCENE[split] * images))
        scenes = [draw_scene(pool, side, rng) for _ in range(count)]
        for name in ("images", "masks"):
            (folder / SCENES / split / name).mkdir(parents=True)
        for number, scene in enumerate(scenes):
            Image.fromarray(scene.pixels).save(folder / SCENES / split / "images" / f"{number:04d}.png")
            Image.fromarray(scene.classes).save(folder / SCENES / split / "masks" / f"{number:04d}.png")
        (folder / SCENES / split / "boxes.json").write_text(json.dumps(_coco_document(scenes)))


def split_digits(count: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """Return the indices of the digits for training initial weights, and of the digits for each split of scenes."""
    for_starts, for_scenes = np.split(rng.permutation(count), [count // 2])
    ends = np.round(np.cumsum(list(DIGIT_FRACTIONS.values())) * len(for_scenes)).astype(int)[:-1]
    return for_starts, dict(zip(DIGIT_FRACTIONS, np.split(for_scenes, ends), strict=True))


def draw_scene(pool: Sequence[tuple[NDArray[np.uint8], int]], side: int, rng: np.random.Generator) -> Scene:
    """Return a square scene of digits of different sizes on noise; `pool` has (8, 8) grey levels with their labels."""
    pixels = rng.normal(BACKGROUND_MEAN, BACKGROUND_STD, (side, side))
    is_taken = np.zeros((side, side), bool)
    labels, masks = [], []
    for _ in range(rng.integers(MIN_DIGITS, MAX_DIGITS + 1)):
        digit, label = pool[int(rng.integers(len(pool)))]
        size = int(rng.uniform(MIN_SIZE, MAX_SIZE) * side)
        for _ in range(MAX_TRIES):
            top, left = rng.integers(0, side - size + 1, 2)
            square = slice(top, top + size), slice(left, left + size)
            if not is_taken[square].any():
                break
        else:
            continue  # no free square: skip the digit
        is_taken[square] = True
        grey = np.asarray(Image.fromarray(digit).resize((size, size), Image.Resampling.BICUBIC))
        mask = np.zeros((side, side), bool)
        mask[square] = grey > INK_LEVEL
        pixels[square] = np.where(grey > INK_LEVEL, grey, pixels[square])
        labels.append(label)
        masks.append(mask)
    object_masks = np.stack(masks) if masks else np.zeros((0, side, side), bool)
    return Scene(pixels.clip(0, 255).astype(np.uint8), tuple(labels), object_masks)


def _digit_pixels(digits: Any, index: int) -> NDArray[np.uint8]:
    return np.asarray(digits.store.read(int(index)).convert("L"))


def _coco_document(scenes: Sequence[Scene]) -> dict[str, Any]:
    images, annotations = [], []
    for number, scene in enumerate(scenes):
        height, width = scene.pixels.shape
        images.append({"id": number, "file_name": f"images/{number:04d}.png", "height": height, "width": width})
        for label, mask in zip(scene.labels, scene.masks, strict=True):
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            box = [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": label + 1,
                    "bbox": list(map(int, box)),
                    "area": int(mask.sum()),
                    "iscrowd": 0,
                    "segmentation": run_lengths_of(mask),
                }
            )
    categories = [{"id": label + 1, "name": str(label)} for label in range(10)]
    return {"images": images, "annotations": annotations, "categories": categories}
