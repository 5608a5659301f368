"""Real images as a folder, with copies, near copies, wrong labels and broken files put in on purpose."""

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

from paucal.data.images import ImageSet
from paucal.data.sources.opening import open_images

DATA = Path(os.environ.get("PAUCAL_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))


def _resized(image: Image.Image) -> Image.Image:
    return image.resize([max(8, side * 3 // 4) for side in image.size], Image.Resampling.BICUBIC)


def _cropped(image: Image.Image) -> Image.Image:
    """Cut 3 % off every side, a pixel at least."""
    across, down = (max(1, round(0.03 * side)) for side in image.size)
    return image.crop((across, down, image.width - across, image.height - down))


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "saved again": lambda image: image,
    "resized": _resized,
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.1),
    "less contrast": lambda image: ImageEnhance.Contrast(image).enhance(0.9),
    "cropped": _cropped,
}
UNCUT = [name for name in CHANGES if name != "cropped"]


@dataclass(frozen=True)
class Planted:
    """What was put where.

    Attributes:
        folder: of the images, with train and test below it.
        exact: pairs of keys with the same bytes, the first in train, the second in test.
        near: pairs of keys, the second changed a little.
        changes: how, for each of these pairs.
        flipped: keys whose class folder is a wrong one.
        broken: keys of files that cannot be read.
    """

    folder: Path
    exact: set[frozenset[str]]
    near: set[frozenset[str]]
    changes: dict[frozenset[str], str]
    flipped: set[str]
    broken: set[str]


def plant(
    folder: Path,
    source: str,
    count: int,
    seed: int = 0,
    copies: int = 12,
    flips: int = 0,
    changes: Sequence[str] = UNCUT,
) -> Planted:
    """Write `count` images of a real set as train and test folders, and plant what a check has to find."""
    images = open_images(DATA / source)
    generator = np.random.default_rng(seed)
    chosen = generator.permutation(len(images))[:count]
    keys, data = [], {}
    flipped = set()
    for place, index in enumerate(chosen.tolist()):
        label = int(images.labels[index])
        name = f"{'train' if place % 5 else 'test'}/{{}}/{place:05}.png"
        if place < flips:
            label = int((label + generator.integers(1, len(images.classes))) % len(images.classes))
            name = f"train/{{}}/{place:05}.png"
        key = name.format(images.classes[label])
        flipped |= {key} if place < flips else set()
        keys.append(key)
        data[key] = images.store.source(index)  # type: ignore[attr-defined]
    train = [key for key in keys if key.startswith("train") and key not in flipped]
    exact = {_copied(data, key, f"copy{n}") for n, key in enumerate(train[:copies])}
    how = {
        _changed(data, key, f"near{n}", changes[n % len(changes)]): changes[n % len(changes)]
        for n, key in enumerate(train[copies : 2 * copies])
    }
    broken = _break(data, train[-4:])
    for key, content in data.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return Planted(folder, exact, set(how), how, flipped, broken)


def _copied(data: dict[str, bytes], key: str, name: str) -> frozenset[str]:
    twin = f"test/{key.split('/')[1]}/{name}.png"
    data[twin] = data[key]
    return frozenset({key, twin})


def _changed(data: dict[str, bytes], key: str, name: str, change: str) -> frozenset[str]:
    """Change an image in one of the ways above and save it as JPEG, which most of them would be on their way."""
    buffer = io.BytesIO()
    CHANGES[change](Image.open(io.BytesIO(data[key])).convert("RGB")).save(buffer, "JPEG", quality=80)
    twin = f"test/{key.split('/')[1]}/{name}.jpg"
    data[twin] = buffer.getvalue()
    return frozenset({key, twin})


def _break(data: dict[str, bytes], keys: list[str]) -> set[str]:
    truncated, empty, text, bomb = keys
    data[truncated] = data[truncated][: len(data[truncated]) // 2]
    data[empty] = b""
    data[text] = b"this is no picture"
    buffer = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(buffer, "PNG")
    data[bomb] = buffer.getvalue()
    return set(keys)


def found_pairs(images: ImageSet, groups) -> set[frozenset[str]]:
    """Return all pairs of keys within groups of positions."""
    return {
        frozenset({images.keys[a], images.keys[b]})
        for group in groups
        for place, a in enumerate(group)
        for b in group[:place]
    }


def precision_and_recall(found: set, planted: set) -> tuple[float, float]:
    """Return the share of what was found that was planted, and of what was planted that was found."""
    both = len(found & planted)
    return both / max(len(found), 1), both / max(len(planted), 1)
