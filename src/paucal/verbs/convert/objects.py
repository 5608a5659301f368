"""Objects of an image and their outlines, for the functions that write layouts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paucal.data.boxes.annotations import box_of_runs, run_lengths_of
from paucal.data.images import UNKNOWN
from paucal.data.masks.coding import IGNORED
from paucal.tasks.detection.masks import check_outline, mask_of_outline, unpack_mask
from paucal.verbs.convert.content import AnnotatedObject, LabelledImage, LabelledSet

BACKGROUND = "background"
# Descriptions of labels that a layout cannot store.
UNKNOWN_LABELS = "unknown labels (they become negative labels)"
CROWDS, OUTLINES = "crowds and difficult objects, left out", "outlines (their boxes are kept)"


def save_text(path: Path, text: str) -> None:
    """Write a text file, and create its parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def count_unknown_labels(content: LabelledSet) -> None:
    """Count unknown labels as lost, since they become negative labels in a layout that only lists classes."""
    if content.kind == "train" and content.images.multi_hot is not None:
        content.lost[UNKNOWN_LABELS] += int((content.images.multi_hot == UNKNOWN).sum())


def list_objects(content: LabelledSet, item: LabelledImage) -> Sequence[AnnotatedObject]:
    """Return the objects of an image; if its label is a mask, one object per class with all pixels of the class."""
    return tuple(_objects_of_mask(content, item)) if content.kind == "segment" else item.objects


def _objects_of_mask(content: LabelledSet, item: LabelledImage) -> Iterator[AnnotatedObject]:
    assert content.mask is not None
    mask = content.mask(item.index)
    content.lost["unlabelled pixels, in images"] += bool((mask == IGNORED).any())
    for name, number in content.class_numbers.items():
        if name == BACKGROUND or not (mask == number).any():
            continue
        runs = run_lengths_of(mask == number)
        box = box_of_runs(runs)
        assert box is not None
        yield AnnotatedObject(name, box, outline=runs)


def without_crowds(content: LabelledSet, item: LabelledImage) -> list[AnnotatedObject]:
    """Return the objects of an image except crowds, which are counted as lost."""
    objects = list_objects(content, item)
    content.lost[CROWDS] += sum(obj.crowd for obj in objects)
    return [obj for obj in objects if not obj.crowd]


def checked_outline(item: LabelledImage, obj: AnnotatedObject) -> Any:
    """Return the outline of an object (None or empty if unknown); raise a UserError if the outline is invalid."""
    if obj.outline:
        check_outline(obj.outline, item.size, _context(item, obj))
    return obj.outline


def polygon_of(item: LabelledImage, obj: AnnotatedObject) -> list[float] | None:
    """Return the outline of an object if it is a single polygon, as alternating x and y coordinates; otherwise None."""
    outline = checked_outline(item, obj)
    return outline[0] if isinstance(outline, list) and len(outline) == 1 else None


def mask_of(item: LabelledImage, obj: AnnotatedObject) -> NDArray[np.bool_]:
    """Return an (H, W) mask of the pixels inside an object's outline."""
    return unpack_mask(mask_of_outline(obj.outline, item.size, _context(item, obj))).astype(np.bool_)


def _context(item: LabelledImage, obj: AnnotatedObject) -> str:
    return f"{item.name!r} has an outline of {obj.name!r}"
