"""Random sets of images with masks: what training sees is what was put in, or the set is refused.

`trial` writes a set in one of the layouts that people have (two folders, parts above, below or in the names of folders,
files side by side, VOC's lists, Cityscapes, a folder for each image), with masks in one of their codings, opens it as
`paucal segment` does, and compares images, classes of pixels, pixels that nobody has labelled, and parts. By hand:

    PYTHONPATH=tests python -m promises.masks 700
"""

import random
import shutil
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from paucal.data.masks.coding import IGNORED
from paucal.tasks.segmentation.images import open_segmentation_data
from paucal.tasks.segmentation.settings import SegmentSettings
from paucal.types import UserError
from promises import mask_layouts
from promises.mask_layouts import PARTS, Array, Case, Draw, Item, grey_image

LAYOUTS = [
    *([mask_layouts.two_folders] * 5),
    *(mask_layouts.part_folders, mask_layouts.part_names, mask_layouts.side_by_side, mask_layouts.voc),
    *(mask_layouts.voc, mask_layouts.flags, mask_layouts.cityscapes),
]
STEMS = ["scan", "IMG", "2007_000", "benign (", "Blut zelle ", "é", "猫", "a.b-", "Slide copy ", "x_"]


def trial(folder: Path, seed: int) -> str:
    """Make a random set in a folder, open it, and compare; returns "read", or "refused: " with the sentence.

    Raises:
        AssertionError: What was read is not what was put in.
    """
    return outcome(make(folder, seed))


def outcome(case: Case) -> str:
    """Open a set and compare; see `trial`."""
    try:
        found = open_segmentation_data(SegmentSettings(**case.settings), _no_bar, None)
    except UserError as problem:
        said = str(problem).strip()
        if not said or "\n" in said:
            raise AssertionError(f"{said!r} is no sentence") from problem
        return f"refused: {said}"
    left = dict(enumerate(case.items))
    assert len(found.images) == len(left), f"{len(found.images)} of {len(left)} images"
    for place, key in enumerate(found.images.keys):
        image = np.asarray(found.images.store.read(place)).astype(int)
        number = min(left, key=lambda one: _distance(image, left[one].image))
        item = left.pop(number)
        assert _distance(image, item.image) < 6, f"{key}: no image that was put in"
        assert found.masks.read(place).tolist() == item.classes.tolist(), f"{key}: other classes of pixels"
        assert found.images.declared_splits[place] == item.part, (
            f"{key}: {found.images.declared_splits[place]!r}, not {item.part!r}"
        )
        if {item.part for item in case.items} == set(PARTS):
            assert found.split.parts[place] == item.part, f"{key}: used in another part"
    return "read"


def make(folder: Path, seed: int) -> Case:
    """Write a random set into an empty folder."""
    chance = random.Random(seed)
    numbers = np.random.default_rng(seed)
    coding = chance.choice([_index, _index, _binary, _binary, _ones, _palette, _grey, _colour, _colour_table])
    count = chance.randint(6, 11)
    classes = 2 if coding in (_binary, _ones) else chance.randint(2, 5)
    items = _items(chance, numbers, count, classes)
    layout = chance.choice(LAYOUTS)
    parts = chance.random() < 0.5
    if parts:
        for place, item in enumerate(items):
            item.part = "train" if place < count - 3 else ("val", "test", "test")[place - count + 3]
    case = Case(items, {"data": str(folder), "workers": 0})
    case.is_binary = coding in (_binary, _ones)
    draw = coding(case, chance, classes, folder)
    if chance.random() < 0.25:
        draw = _spoiled(case, chance, draw, coding not in (_index, _ones))
    layout(folder, case, chance, draw)
    case.is_sound &= _learnt(case, "train") >= _learnt(case, "val") | _learnt(case, "test") or not parts
    if chance.random() < 0.4:
        mask_layouts.litter(folder, chance)
    return case


def _learnt(case: Case, part: str) -> set[int]:
    """Return the classes that images of a part show."""
    return {int(one) for item in case.items if item.part == part for one in np.unique(item.classes)} - {IGNORED}


def _items(chance: random.Random, numbers: np.random.Generator, count: int, classes: int) -> list[Item]:
    """Return images that differ in all pixels, and areas of classes of which each is in several of them."""
    begin = chance.choice(STEMS)
    end = ")" if begin.endswith("(") else ""
    places = chance.sample(range(1, 60), count)
    names = [f"{begin}{number:0{chance.choice([2, 3])}d}{end}" for number in places]
    if len(set(names)) < count:
        names = [f"{begin}{number:03d}{end}" for number in places]
    items = []
    for place, name in enumerate(names):
        height, width = (2 * chance.randint(8, 16) for _ in range(2))
        blocks = numbers.integers(0, 256, (height // 2, width // 2, 3), dtype=np.uint8)
        areas = np.zeros((height, width), dtype=np.uint8)
        for number in range(1, classes):
            if chance.random() < 0.7 or place % (classes - 1) == number - 1:
                top, left = 2 * chance.randint(0, height // 2 - 4), 2 * chance.randint(0, width // 2 - 4)
                areas[top : top + 2 * chance.randint(2, 4), left : left + 2 * chance.randint(2, 4)] = number
        image = np.kron(blocks // 8, np.ones((2, 2, 1), dtype=np.uint8)) + np.uint8(place * 20)
        items.append(Item(image, areas, "", name))
    return items


# Codings: each sets what the classes will be, and returns what draws a mask of class numbers.


def _ignore_some(case: Case, chance: random.Random) -> None:
    """Leave some pixels of most images unlabelled."""
    for item in case.items:
        if chance.random() < 0.8 or item is case.items[0]:
            item.classes[:4, :4] = IGNORED


def _index(case: Case, chance: random.Random, classes: int, folder: Path) -> Draw:
    void = chance.choice([None, 255, 255, 9])
    if void is not None:
        _ignore_some(case, chance)
    if void == 255:  # an image with objects and pixels that nobody has labelled, as VOC's have
        for item in case.items:
            item.classes[6:8, :4] = 1
    if void == 9:
        case.settings["ignore"] = [9]
    deep = chance.random() < 0.1
    return lambda found: grey_image(np.where(found == IGNORED, void or 0, found), deep)


def _binary(case: Case, chance: random.Random, classes: int, folder: Path) -> Draw:
    kind = chance.choice(["L", "L", "RGB", "1", "some 1"])

    def draw(found: Array) -> Image.Image:
        picture = grey_image(found * 255)
        if kind == "1" or (kind == "some 1" and found.shape[0] % 4 == 0):
            return picture.convert("1")
        return picture.convert("RGB") if kind == "RGB" else picture

    return draw


def _ones(case: Case, chance: random.Random, classes: int, folder: Path) -> Draw:
    return grey_image


def _palette(case: Case, chance: random.Random, classes: int, folder: Path) -> Draw:
    colours = [chance.randrange(256) for _ in range(3 * 256)]
    if chance.random() < 0.5:
        _ignore_some(case, chance)
        for item in case.items:
            item.classes[6:8, :4] = 1

    def draw(found: Array) -> Image.Image:
        picture = grey_image(found)
        picture.putpalette(colours)
        return picture

    return draw


def _grey(case: Case, chance: random.Random, classes: int, folder: Path) -> Draw:
    levels = np.asarray([round(number * 255 / (classes - 1)) for number in range(classes)] + [0] * 251)
    return lambda found: grey_image(levels[found])


def _colours(chance: random.Random, classes: int) -> Array:
    others = [(r, g, b) for r in (0, 128, 255) for g in (0, 64, 192) for b in (0, 255)][1:]
    return np.asarray([(0, 0, 0), *chance.sample(others, classes - 1)], dtype=np.uint8)


def _colour(case: Case, chance: random.Random, classes: int, folder: Path) -> Draw:
    table = _colours(chance, classes)
    ranks = np.argsort(np.argsort([int(r) << 16 | int(g) << 8 | int(b) for r, g, b in table]))
    drawn = {id(item): item.classes for item in case.items}
    for item in case.items:
        item.classes = ranks[drawn[id(item)]].astype(np.uint8)
    back = np.argsort(ranks)
    return lambda found: Image.fromarray(table[back[found]])


def _colour_table(case: Case, chance: random.Random, classes: int, folder: Path) -> Draw:
    table = _colours(chance, classes)
    void = (1, 2, 3)
    if chance.random() < 0.5:
        _ignore_some(case, chance)
        case.settings["ignore"] = list(void)
    rows = [f"class{number},{','.join(map(str, colour))}" for number, colour in enumerate(table.tolist())]
    file = folder.parent / f"{folder.name}.csv"
    file.write_bytes(b"\xef\xbb\xbf" * chance.randint(0, 1) + "\n".join(["name,r,g,b", *rows]).encode())
    case.settings["classes"] = str(file)
    full = np.zeros((256, 3), dtype=np.uint8)
    full[: len(table)], full[IGNORED] = table, void
    return lambda found: Image.fromarray(full[found])


def _spoiled(case: Case, chance: random.Random, draw: Draw, is_wide: bool) -> Draw:
    """Return what draws some masks in another way than the others; a flag may say what is meant.

    Args:
        case: Set that is spoiled.
        chance: Draws what is done.
        draw: What draws a mask.
        is_wide: Whether the values of classes lie far apart.
    """
    case.is_sound = False
    two = all(set(np.unique(item.classes)) <= {0, 1} for item in case.items)
    kinds = ["blurred", "lossy", "turned", "photographs", *(["mixed", "nearly", "palettes"] * 2 * two)]
    kind = chance.choice(kinds if is_wide else kinds[1:])  # numbers that are blurred are numbers
    if kind == "mixed" and chance.random() < 0.5:
        case.settings["mask_values"] = "binary"
    count, every = iter(range(1000)), chance.choice([2, 3])

    def spoil(found: Array) -> Image.Image:
        is_odd = next(count) % every == 1
        if kind in ("mixed", "nearly"):
            return grey_image(found * ({"mixed": 1, "nearly": 254}[kind] if is_odd else 255))
        if kind == "palettes":
            picture = grey_image(1 - found if is_odd else found)
            picture.putpalette([255, 255, 255, 0, 0, 0] if is_odd else [0, 0, 0, 255, 255, 255])
            return picture
        return _damaged(draw(found), kind) if is_odd else draw(found)

    return spoil


def _damaged(picture: Image.Image, kind: str) -> Image.Image:
    if kind == "blurred":
        smooth = Image.Resampling.BICUBIC
        return picture.convert("RGB").resize((99, 97), smooth).resize(picture.size, smooth)
    if kind == "turned":  # of a square image nobody can tell: it is made a bit smaller
        turned = picture.transpose(Image.Transpose.ROTATE_90)
        return turned.crop((0, 0, turned.width - 1, turned.height)) if turned.width == turned.height else turned
    if kind == "photographs":
        noise = np.random.default_rng(0).integers(0, 256, (picture.height, picture.width, 3), dtype=np.uint8)
        return Image.fromarray(noise)
    picture.info["lossy"] = True
    return picture


def _distance(one: Array, other: Array) -> float:
    return float(np.abs(one - other.astype(int)).mean()) if one.shape == other.shape else float("inf")


@contextmanager
def _no_bar(name: str):
    yield lambda done, total: None


def main() -> None:
    """Run trials from the seed 0 on, and count what came of them."""
    counts: Counter[str] = Counter()
    for seed in range(*map(int, sys.argv[1:3])):
        root = Path(tempfile.mkdtemp(prefix="promise-"))
        (folder := root / "set").mkdir()
        try:
            case = make(folder, seed)
            said = outcome(case)
            told = "read" if said == "read" else "refused"
            counts[f"{told}, {'sound' if case.is_sound else 'spoiled'}"] += 1
            if told == "refused" and case.is_sound:
                print(seed, said.replace(str(root), ""))
        except Exception as problem:  # the seed is what is needed
            counts["wrong"] += 1
            print(seed, type(problem).__name__, str(problem)[:300])
        shutil.rmtree(root)
    print(dict(counts))


if __name__ == "__main__":
    main()
