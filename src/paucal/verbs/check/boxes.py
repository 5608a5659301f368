"""Images with boxes, as `paucal check` looks at them."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from paucal.data.boxes.annotations import AnnotatedImage
from paucal.data.boxes.opening import find_boxes, read_boxes, without_labels
from paucal.data.boxes.tree import is_archive
from paucal.data.checking.findings import Finding
from paucal.data.images import ImageSet
from paucal.data.sources.opening import open_images
from paucal.tasks.detection.images import SMALLEST, check_annotations
from paucal.types import UserError
from paucal.verbs.check.masks import BOXES
from paucal.wording import counted, percent

BAD_BOXES = "bad-boxes"
FEW = 10  # boxes: a class that has fewer is hardly learnt, and its score says nothing
TINY = 8.0  # pixels of the shorter side: a cell or two of the finest map
SMALL, LARGE = 32.0**2, 96.0**2  # pixels: COCO's bounds of the areas of small and large objects
SHOWN = 12  # classes that are named
_WITH_ADVICE = re.compile(r"(.*): ([a-z][^:'\"{}]*)", re.DOTALL)  # no colon within a quoted value
MOST = 0.5  # share of images without a box from which on it is likelier that they were never annotated


def open_with_boxes(data: str) -> tuple[ImageSet, list[Finding]] | None:
    """Open a place with boxes in any layout that `paucal detect` reads or knows by name; None for any other place.

    Boxes that `paucal detect` would refuse are a finding, with its sentence.
    """
    place = Path(os.path.expanduser(data))
    try:
        found = find_boxes(place)
    except UserError:  # a damaged archive, which is a finding of whoever opens the images
        return None
    if found is None or (found.are_among_classes and _has_classes(data)):
        return None
    try:
        tree, annotations = read_boxes(place)
    except UserError as problem:
        return None if _has_classes(data) else _alone(place, problem)
    images = annotations.images
    try:
        boxed = check_annotations(tree, annotations).images
    except UserError as problem:
        boxed = without_labels(tree, annotations)
        return boxed, [*_opening(images, boxed.keys), _refused(problem), *box_findings(images, boxed.keys)]
    return boxed, [*_opening(images, boxed.keys), *box_findings(images, boxed.keys)]


def _has_classes(data: str) -> bool:
    try:
        classes = open_images(data).classes
    except UserError:
        return False
    return len(classes) > 1


def box_findings(found: Sequence[AnnotatedImage], keys: Sequence[str]) -> list[Finding]:
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
_TINY = (
    "tiny-boxes",
    f"under {TINY:g} pixels",
    "that is their shorter side: label no smaller ones, or cut the images into parts and enlarge them",
)
_REPEATED = ("repeated-boxes", "drawn twice on one object", "remove one of each, or the second counts as a mistake")


def _opening(found: Sequence[AnnotatedImage], keys: Sequence[str]) -> list[Finding]:
    counts = _learnt(found)
    words = f"{counted(len(keys), 'image')} with {counted(counts.total(), 'box', 'boxes')} of "
    words += f"{counted(len(counts), 'class', 'classes')}: this is data for paucal detect"
    shown = ", ".join(f"{name} {count:,}" for name, count in counts.most_common(SHOWN))
    more = f", and {len(counts) - SHOWN} more" if len(counts) > SHOWN else ""
    return [Finding(BOXES, "note", words), Finding("boxes-per-class", "note", f"boxes: {shown}{more}")]


def _learnt(found: Sequence[AnnotatedImage]) -> Counter[str]:
    """Count the boxes of each class that are learnt: none of crowds, none marked as difficult."""
    return Counter(name for one in found for name, many in zip(one.names, one.crowd, strict=True) if not many)


def _sized(sides: Sequence[np.ndarray]) -> list[Finding]:
    areas = np.concatenate([side.prod(1) for side in sides]) if sides else np.zeros(0)
    if not len(areas):
        return []
    shares = [(areas < SMALL).mean(), ((areas >= SMALL) & (areas < LARGE)).mean(), (areas >= LARGE).mean()]
    small, medium, large = (percent(float(share), ".0f") for share in shares)
    words = f"{small} of the boxes are small (under 32x32 pixels), {medium} medium, {large} large (from 96x96 up); "
    half = f"half have a side under {np.median(np.sqrt(areas.clip(0))):.0f} pixels"
    return [Finding("box-sizes", "note", words + half)]


def _few(found: Sequence[AnnotatedImage]) -> list[Finding]:
    counts = _learnt(found)
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


def _outside(one: AnnotatedImage, boxes: np.ndarray) -> np.ndarray:
    """Return which boxes have nothing of the image in them, as far as its file says how large it is."""
    height, width = one.size or (np.inf, np.inf)
    return (boxes[:, 0] >= width) | (boxes[:, 1] >= height) | (boxes[:, 2] <= 0) | (boxes[:, 3] <= 0)


def _tiny(sides: np.ndarray) -> np.ndarray:
    return np.asarray((sides < TINY).any(1) & (sides >= SMALLEST).all(1))


def _repeated(one: AnnotatedImage, boxes: np.ndarray) -> np.ndarray:
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
    words = f"{counted(len(places), 'image')} of {total} without a box: they are used as negatives"
    advice = "look whether all of them were annotated; leave those out that were not" if many else ""
    return [Finding("images-without-boxes", "warning" if many else "note", words, advice, tuple((p,) for p in places))]


def _refused(problem: UserError) -> Finding:
    words = str(problem).rstrip(".")
    found = _WITH_ADVICE.fullmatch(words)
    text, advice = (found[1], found[2]) if found else (words, "")
    return Finding(BAD_BOXES, "misleads", text, advice)


def _alone(place: Path, problem: UserError) -> tuple[ImageSet, list[Finding]]:
    """Return the images of a place whose annotations cannot be read, by themselves."""
    is_annotation = place.is_file() and not is_archive(place)
    try:
        images = open_images(str(place.parent if is_annotation else place), labelled=False)
    except UserError:
        raise problem from None
    return images, [_refused(problem)]
