"""Images with boxes, as `paucal check` looks at them."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from paucal.data.checking.findings import Finding
from paucal.data.images import ImageSet
from paucal.data.sources.stores import FileStore
from paucal.transfer.detection.annotations import SMALLEST, Annotated
from paucal.transfer.detection.opening import described, holds_boxes, open_boxed
from paucal.types import UserError
from paucal.verbs.checking.masks import BOXES
from paucal.wording import counted, percent

BAD_BOXES = "bad-boxes"
FEW = 10  # boxes: a class that has fewer is hardly learnt, and its score says nothing
TINY = 8.0  # pixels of the longer side: a cell or two of the finest map
SMALL, LARGE = 32.0**2, 96.0**2  # pixels: COCO's bounds of the areas of small and large objects
SHOWN = 12  # classes that are named
MOST = 0.5  # share of images without a box from which on it is likelier that they were never annotated


def open_with_boxes(data: str) -> tuple[ImageSet, list[Finding]] | None:
    """Open a folder of images with boxes, or COCO's JSON of one; None for any other place.

    Boxes that do not do are a finding, with the sentence that `paucal detect` would say.
    """
    place = Path(os.path.expanduser(data))
    if not holds_boxes(place):
        return None
    try:
        root, found = described(place)
    except UserError as problem:
        return _alone(place, problem)
    there = [one for one in found if _is_inside(root, one.key)]
    if not there:
        return None
    try:
        return (images := open_boxed(place).images), [*_opening(found, images.keys), *box_findings(found, images.keys)]
    except UserError as problem:
        images = _without_classes(root, there)
        return images, [*_opening(found, images.keys), _refused(problem), *box_findings(there, images.keys)]


def box_findings(found: Sequence[Annotated], keys: Sequence[str]) -> list[Finding]:
    """Return what is wrong with boxes, or good to know of them.

    Args:
        found: the images as their files describe them.
        keys: of the images in the order of the set.
    """
    places = {key: place for place, key in enumerate(keys)}
    known = [one for one in found if one.key in places]
    corners = [np.asarray(one.boxes, dtype=np.float64).reshape(-1, 4) for one in known]
    sides = [boxes[:, 2:] - boxes[:, :2] for boxes in corners]
    at = [places[one.key] for one in known]
    return [
        *_sized(sides),
        *_few(known),
        *_marked(
            at,
            [np.asarray((side < SMALLEST).any(axis=1)) for side in sides],
            "empty-boxes",
            "without an area",
            "draw them anew",
        ),
        *_marked(at, [_outside(*two) for two in zip(known, corners, strict=True)], *_OUTSIDE),
        *_marked(at, [_tiny(side) for side in sides], *_TINY),
        *_marked(at, [_repeated(*two) for two in zip(known, corners, strict=True)], *_REPEATED),
        *_bare([place for place, boxes in zip(at, corners, strict=True) if not len(boxes)], len(known)),
    ]


_OUTSIDE = ("outside-boxes", "outside of the image they are of", "correct them, or look whether images were exchanged")
_TINY = ("tiny-boxes", f"under {TINY:g} pixels", "label no smaller ones, or cut the images into parts and enlarge them")
_REPEATED = ("repeated-boxes", "drawn twice on one object", "remove one of each, or the second counts as a mistake")


def _opening(found: Sequence[Annotated], keys: Sequence[str]) -> list[Finding]:
    counts = Counter(name for one in found for name in one.names)
    words = f"{counted(len(keys), 'image')} with {counted(counts.total(), 'box', 'boxes')} of "
    words += f"{counted(len(counts), 'class', 'classes')}: this is data for paucal detect"
    shown = ", ".join(f"{name} {count:,}" for name, count in counts.most_common(SHOWN))
    more = f", and {len(counts) - SHOWN} more" if len(counts) > SHOWN else ""
    return [Finding(BOXES, "note", words), Finding("boxes-per-class", "note", f"boxes: {shown}{more}")]


def _sized(sides: Sequence[np.ndarray]) -> list[Finding]:
    areas = np.concatenate([side.prod(1) for side in sides]) if sides else np.zeros(0)
    if not len(areas):
        return []
    shares = [(areas < SMALL).mean(), ((areas >= SMALL) & (areas < LARGE)).mean(), (areas >= LARGE).mean()]
    small, medium, large = (percent(float(share), ".0f") for share in shares)
    words = f"{small} of the boxes are small (under 32x32 pixels), {medium} medium, {large} large (from 96x96 up); "
    half = f"half have a side under {np.median(np.sqrt(areas.clip(0))):.0f} pixels"
    return [Finding("box-sizes", "note", words + half)]


def _few(found: Sequence[Annotated]) -> list[Finding]:
    counts = Counter(name for one in found for name in one.names)
    few: Mapping[str, int] = {name: count for name, count in counts.items() if count < FEW}
    if not few:
        return []
    names = ", ".join(f"{name} {count}" for name, count in list(few.items())[:SHOWN])
    words = f"{counted(len(few), 'class', 'classes')} with fewer than {FEW} boxes: {names}"
    return [Finding("scarce-classes", "warning", words, "label more of them, or join classes")]


def _marked(at: Sequence[int], marks: Sequence[np.ndarray], name: str, words: str, advice: str) -> list[Finding]:
    """Return a finding on the boxes that are marked, with their images."""
    count = sum(int(mark.sum()) for mark in marks)
    if not count:
        return []
    groups = tuple((place,) for place, mark in zip(at, marks, strict=True) if mark.any())
    level = "misleads" if name == "outside-boxes" else "warning"
    text = f"{counted(count, 'box', 'boxes')} {words}, in {counted(len(groups), 'image')}"
    return [Finding(name, level, text, advice, groups)]


def _outside(one: Annotated, boxes: np.ndarray) -> np.ndarray:
    """Return which boxes have nothing of the image in them, as far as its file says how large it is."""
    height, width = one.size or (np.inf, np.inf)
    return (boxes[:, 0] >= width) | (boxes[:, 1] >= height) | (boxes[:, 2] <= 0) | (boxes[:, 3] <= 0)


def _tiny(sides: np.ndarray) -> np.ndarray:
    return (sides.max(1, initial=0.0) < TINY) & (sides >= SMALLEST).all(1)


def _repeated(one: Annotated, boxes: np.ndarray) -> np.ndarray:
    """Return which boxes are those of one before them, to a pixel, with the same class."""
    seen: set[tuple[object, ...]] = set()
    marks = np.zeros(len(boxes), dtype=np.bool_)
    for place, (name, box) in enumerate(zip(one.names, np.round(np.nan_to_num(boxes)).tolist(), strict=True)):
        entry = (name, *box)
        marks[place] = entry in seen
        seen.add(entry)
    return marks


def _bare(places: Sequence[int], total: int) -> list[Finding]:
    if not places:
        return []
    many = len(places) > MOST * total
    words = f"{counted(len(places), 'image')} of {total} without a box: they teach what is no object"
    advice = "look whether all of them were annotated; leave those out that were not" if many else ""
    return [Finding("images-without-boxes", "warning" if many else "note", words, advice, tuple((p,) for p in places))]


def _refused(problem: UserError) -> Finding:
    text, _, advice = str(problem).rstrip(".").rpartition(": ")
    return Finding(BAD_BOXES, "misleads", text or advice, advice if text else "correct it")


def _alone(place: Path, problem: UserError) -> tuple[ImageSet, list[Finding]] | None:
    """Return the images of a folder whose annotations cannot be read, by themselves."""
    from paucal.data.sources.opening import open_images

    try:
        images = open_images(str(place if place.is_dir() else place.parent), labelled=False)
    except UserError:
        raise problem from None
    return images, [_refused(problem)]


def _without_classes(root: Path, found: Sequence[Annotated]) -> ImageSet:
    """Return images that have boxes which do not do as a set without labels."""
    declared = {one.key: one.declared for one in found}
    keys = list(declared)
    parts = list(declared.values()) if all(declared.values()) else [""] * len(keys)
    return ImageSet(
        name=root.name,
        location=str(root.resolve()),
        classes=(),
        keys=keys,
        labels=np.full(len(keys), -1, dtype=np.int64),
        declared=parts,
        store=FileStore(root, keys),
    )


def _is_inside(root: Path, key: str) -> bool:
    path = (root / key).resolve()
    return path.is_relative_to(root.resolve()) and path.is_file()
