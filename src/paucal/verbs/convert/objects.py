"""The objects of an image as layouts write them: outlines as polygons or masks, and areas of classes as objects."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paucal.data.boxes.annotations import box_of_runs, run_lengths_of
from paucal.data.images import UNKNOWN
from paucal.data.masks.coding import IGNORED
from paucal.tasks.detection.masks import check_outline, mask_of_outline, unpack_mask
from paucal.verbs.convert.content import Content, Item, Thing

BACKGROUND = "background"
UNKNOWN_LABELS = "unknown labels (their images count as not of the class)"
CROWDS, OUTLINES = "crowds and difficult objects, left out", "outlines (their boxes are kept)"


def save_text(path: Path, text: str) -> None:
    """Write a text file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def count_unknown_labels(content: Content) -> None:
    """Count the unknown labels of whole images as lost; without them, an image is not of the class."""
    if content.kind == "train" and content.images.multi_hot is not None:
        content.lost[UNKNOWN_LABELS] += int((content.images.multi_hot == UNKNOWN).sum())


def objects_of(content: Content, item: Item) -> Sequence[Thing]:
    """Return the objects of an image; in sets of masks, the pixels of each class as one object with run lengths."""
    return tuple(_class_areas(content, item)) if content.kind == "segment" else item.things


def _class_areas(content: Content, item: Item) -> Iterator[Thing]:
    assert content.mask is not None
    mask = content.mask(item.index)
    content.lost["unlabelled pixels, in images"] += bool((mask == IGNORED).any())
    for name, number in content.numbers.items():
        if name == BACKGROUND or not (mask == number).any():
            continue
        runs = run_lengths_of(mask == number)
        box = box_of_runs(runs)
        assert box is not None
        yield Thing(name, box, outline=runs)


def without_crowds(content: Content, item: Item) -> list[Thing]:
    """Return the objects of an image except crowds, which are counted as lost."""
    objects = objects_of(content, item)
    content.lost[CROWDS] += sum(thing.crowd for thing in objects)
    return [thing for thing in objects if not thing.crowd]


def outline_of(item: Item, thing: Thing) -> Any:
    """Return the outline of an object, a false value if it is unknown; raises a UserError if it is invalid."""
    if thing.outline:
        check_outline(thing.outline, item.size, _context(item, thing))
    return thing.outline


def polygon_of(item: Item, thing: Thing) -> list[float] | None:
    """Return the outline of an object as a single polygon; None if it has none."""
    outline = outline_of(item, thing)
    return outline[0] if isinstance(outline, list) and len(outline) == 1 else None


def mask_of(item: Item, thing: Thing) -> NDArray[np.bool_]:
    """Return the (H, W) pixels within the outline of an object."""
    return unpack_mask(mask_of_outline(thing.outline, item.size, _context(item, thing))).astype(np.bool_)


def _context(item: Item, thing: Thing) -> str:
    return f"{item.name!r} has an outline of {thing.name!r}"
