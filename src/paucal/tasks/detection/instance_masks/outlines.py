"""The outlines of objects in COCO's files, as polygons or lengths of runs, checked before anything draws them."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from paucal.data.boxes.annotations import Corners, unpack_run_lengths
from paucal.tasks.detection.instance_masks.run_lengths import RunLengths, mask_program, packed
from paucal.types import UserError

FEWEST_POINTS, MOST_POLYGONS = 3, 10_000
MOST_PERIMETER = 1_000_000  # pixels: drawing takes memory by the length of an outline, some 100 MB for this
REMEDY = "correct it, or leave the outlines unread with --masks off"


def masks_of(
    outlines: Sequence[Any],
    boxes: Sequence[Corners],
    crowd: Sequence[bool],
    size: tuple[int, int],
    where: Sequence[str],
    tally: Counter[str],
) -> tuple[RunLengths, ...] | None:
    """Return the mask of each box of an image; None where a box that is learnt has no outline.

    The box itself is the mask of a crowd without an outline, which is only left aside by it, and of an outline that
    covers no pixel.

    Args:
        outlines: the "segmentation" of each box, as the file has it.
        boxes: (left, top, right, bottom) of each in pixels.
        crowd: whether each stands for many objects.
        size: (height, width) of the image.
        where: of each box, for messages: the file, the image and the class.
        tally: counts "bare" boxes, which have no outline, and "pixelless" ones, whose outline covers no pixel.

    Raises:
        UserError: an outline does not do; see `mask_of_outline`.
    """
    found: list[RunLengths] = []
    missing = 0
    for outline, box, many, words in zip(outlines, boxes, crowd, where, strict=True):
        if outline:
            mask = mask_of_outline(outline, size, words)
            if not int(mask_program().area(mask)):
                tally["pixelless"] += 1
                mask = _mask_of_box(box, size)
            else:
                _require_overlap(mask, box, words)
            found.append(mask)
        elif many:
            found.append(_mask_of_box(box, size))
        else:
            missing += 1
    tally["bare"] += missing
    return None if missing else tuple(found)


def mask_of_outline(outline: Any, size: tuple[int, int], where: str) -> RunLengths:
    """Return the mask of a box's "segmentation".

    Args:
        outline: a list of polygons, each x and y in turn, or {"size": [height, width], "counts": ...} with a list of
            lengths of runs or the text that they are packed into.
        size: (height, width) of the image in pixels.
        where: begins the messages.

    Raises:
        UserError: a polygon has fewer than 3 points, an odd number of coordinates, is no numbers, lies far outside of
            the image or is longer than can be drawn; or lengths of runs are those of another image, or no lengths.
    """
    if isinstance(outline, dict):
        return _mask_of_runs(outline, size, where)
    if not isinstance(outline, list) or not all(isinstance(one, list) for one in outline):
        raise UserError(f"{where}, which is {_short(outline)}, expected polygons or lengths of runs: {REMEDY}.")
    if len(outline) > MOST_POLYGONS:
        raise UserError(f"{where} of {len(outline):,} polygons, at most {MOST_POLYGONS:,} are read: {REMEDY}.")
    polygons = [_polygon(one, size, where) for one in outline]
    if sum(map(_perimeter, polygons)) > MOST_PERIMETER:
        raise UserError(f"{where} of more than {MOST_PERIMETER:,} pixels in length: {REMEDY}.")
    program = mask_program()
    return program.merge(program.frPyObjects(polygons, *size))


def _polygon(values: list[Any], size: tuple[int, int], where: str) -> list[float]:
    if not all(type(value) is int or (type(value) is float and math.isfinite(value)) for value in values):
        raise UserError(f"{where} with a polygon {_short(values)}, expected numbers: {REMEDY}.")
    if len(values) % 2:
        raise UserError(f"{where} with a polygon of {len(values)} coordinates, expected x and y in turn: {REMEDY}.")
    if len(values) < 2 * FEWEST_POINTS:
        raise UserError(f"{where} with a polygon of {len(values) // 2} points, expected 3 or more: {REMEDY}.")
    height, width = size
    for x, y in zip(values[::2], values[1::2], strict=True):
        # A little over the edge is usual, and cut there; further out it was meant for another image.
        if not (-width <= x <= 2 * width and -height <= y <= 2 * height):
            raise UserError(f"{where} with a point at {_short(x)} {_short(y)}, far outside of it: {REMEDY}.")
    return [float(value) for value in values]


def _perimeter(polygon: list[float]) -> float:
    points = np.asarray(polygon).reshape(-1, 2)
    return float(np.abs(points - np.roll(points, 1, axis=0)).max(1).sum())


def _mask_of_runs(outline: dict[str, Any], size: tuple[int, int], where: str) -> RunLengths:
    told, counts = outline.get("size"), outline.get("counts")
    if not isinstance(told, list) or [*told] != [*size] or any(type(side) is not int for side in told):
        raise UserError(f"{where} for an image of the height and width {_short(told)}: {REMEDY}.")
    try:
        lengths = _lengths(counts)
    except ValueError as problem:
        raise UserError(f"{where} as lengths of runs that cannot be read ({problem}): {REMEDY}.") from None
    pixels = size[0] * size[1]
    # The largest first: a sum of few numbers within the image cannot overflow.
    if lengths.min() < 0 or lengths.max() > pixels or int(lengths.sum()) != pixels:
        raise UserError(f"{where} as lengths of runs that do not add up to its {pixels} pixels: {REMEDY}.")
    if isinstance(counts, str):
        return RunLengths(size=list(size), counts=counts.encode())
    return mask_program().frPyObjects({"size": list(size), "counts": lengths.tolist()}, *size)


def _lengths(counts: Any) -> np.ndarray:
    if isinstance(counts, str):
        return unpack_run_lengths(counts.encode("utf-8", "surrogatepass"))
    if not isinstance(counts, list) or not counts or any(type(one) is not int for one in counts):
        raise ValueError("expected whole numbers, or the text that they are packed into")
    if max(map(abs, counts)) >= 1 << 35:
        raise ValueError("it has a number that is too large for any image")
    return np.asarray(counts, dtype=np.int64)


def _require_overlap(mask: RunLengths, box: Corners, where: str) -> None:
    left, top, width, height = mask_program().toBbox(mask).tolist()
    apart = left >= box[2] or top >= box[3] or left + width <= box[0] or top + height <= box[1]
    if apart:
        raise UserError(f"{where} that lies outside of its box: {REMEDY}.")


def _mask_of_box(box: Corners, size: tuple[int, int]) -> RunLengths:
    """Return the pixels of a box, one at least."""
    left, top = min(round(box[0]), size[1] - 1), min(round(box[1]), size[0] - 1)
    right, bottom = max(round(box[2]), left + 1), max(round(box[3]), top + 1)
    mask = np.zeros(size, dtype=np.uint8)
    mask[top:bottom, left:right] = 1
    return packed(mask)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
