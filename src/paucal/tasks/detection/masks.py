"""Masks of objects as COCO's compressed run lengths, and conversion of outlines to masks.

faster-coco-eval (the extra `detection`) draws polygons, compresses masks and computes their IoU. Run lengths from files
are decompressed and checked here before they are passed to faster-coco-eval.
"""

import math
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.models.detection.roi_heads import paste_masks_in_image

from paucal.data.boxes.annotations import Corners, unpack_run_lengths
from paucal.types import UserError
from paucal.wording import counted, short_repr

BACKEND, INSTALL_COMMAND = "faster_coco_eval", 'pip install "paucal[detection]"'
MIN_POINTS, MAX_POLYGONS = 3, 10_000  # minimum points per polygon, and maximum polygons per outline
MAX_PERIMETER = 1_000_000  # maximum length of an outline in pixels; drawing an outline this long takes about 100 MB
MIN_MASK_PROBABILITY = 0.5  # minimum mask probability at which a pixel counts as part of the object
REMEDY = "correct the outline, or ignore all outlines with paucal detect --masks off"


class RunLengths(TypedDict):
    """A mask: its [height, width] in pixels, and its run lengths as COCO's compressed string."""

    size: list[int]
    counts: bytes


class AnnotatedBox(NamedTuple):
    """A box in pixels, with its outline as the "segmentation" in the annotation file (None or empty if unknown)."""

    corners: Corners
    name: str
    crowd: bool
    outline: Any
    error_prefix: str  # beginning of error messages, such as "a.json gives 'a.png' an outline of 'cat'"


def mask_functions() -> ModuleType:
    """Return faster-coco-eval's functions for masks."""
    if find_spec(BACKEND) is None:
        raise UserError(
            f"reading outlines of objects needs faster-coco-eval, which is not installed: {INSTALL_COMMAND}."
        )
    return import_module(f"{BACKEND}.core.mask")


def pack_mask(mask: NDArray) -> RunLengths:
    """Compress an (H, W) mask of 0 and 1, or of bool, to run lengths."""
    return mask_functions().encode(np.asfortranarray(mask, dtype=np.uint8))


def unpack_mask(runs: RunLengths) -> NDArray[np.uint8]:
    """Decompress valid run lengths to an (H, W) mask of 0 and 1."""
    counts = unpack_run_lengths(runs["counts"])
    values = np.arange(len(counts), dtype=np.uint8) % 2
    height, width = runs["size"]
    return np.repeat(values, counts).reshape(width, height).T


def stack_masks(masks: Sequence[RunLengths], size: tuple[int, int]) -> Tensor:
    """Return masks as one (N, H, W) uint8 tensor, resized to `size` = (H, W) by nearest-neighbour interpolation."""
    stacked = torch.zeros((len(masks), *size), dtype=torch.uint8)
    for target, runs in zip(stacked, masks, strict=True):
        mask = unpack_mask(runs)
        if mask.shape != size:  # resize one mask at a time, since the annotated image may be much larger
            sides = zip(size, mask.shape, strict=True)
            rows, columns = (((np.arange(new) + 0.5) * old / new).astype(np.int64) for new, old in sides)
            mask = mask[rows][:, columns]
        target.copy_(torch.from_numpy(np.ascontiguousarray(mask)))
    return stacked


def paste_masks(probabilities: Tensor, boxes: Tensor, size: tuple[int, int]) -> tuple[RunLengths, ...]:
    """Return the masks in an image of `size`, from (N, 1, 28, 28) probabilities within (N, 4) boxes in pixels."""
    # Masks are pasted one at a time: a hundred masks of a large photograph at once would take gigabytes.
    return tuple(
        pack_mask((paste_masks_in_image(mask[None], box[None], size)[0, 0] >= MIN_MASK_PROBABILITY).numpy())
        for mask, box in zip(probabilities, boxes, strict=True)
    )


def mask_overlaps(
    masks: Sequence[RunLengths], objects: Sequence[RunLengths], crowd: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the (D, G) IoU of masks with objects; for a crowd, the intersection divided by the mask's area."""
    if not len(masks) or not len(objects):
        return np.zeros((len(masks), len(objects)))
    overlaps = mask_functions().iou(list(masks), list(objects), crowd.astype(int).tolist())
    return np.asarray(overlaps, dtype=np.float64)


def masks_of_outlines(
    boxes: Sequence[AnnotatedBox], size: tuple[int, int], tally: Counter[str]
) -> tuple[RunLengths, ...] | None:
    """Return the mask of each box of an image; None if any box has no outline, not counting crowds.

    If a crowd has no outline, or an outline covers no pixel, the whole box is the mask. Boxes without an outline are
    counted as "without_outline", and outlines that cover no pixel as "without_pixel".
    """
    masks: list[RunLengths] = []
    n_missing = 0
    for box in boxes:
        if box.outline:
            mask = mask_of_outline(box.outline, size, box.error_prefix)
            if not int(mask_functions().area(mask)):
                tally["without_pixel"] += 1
                mask = _mask_of_box(box.corners, size)
            else:
                left, top, width, height = mask_functions().toBbox(mask).tolist()
                edges = box.corners
                if left >= edges[2] or top >= edges[3] or left + width <= edges[0] or top + height <= edges[1]:
                    raise UserError(f"{box.error_prefix} that is outside its box: {REMEDY}.")
            masks.append(mask)
        elif box.crowd:
            masks.append(_mask_of_box(box.corners, size))
        else:
            n_missing += 1
    tally["without_outline"] += n_missing
    return None if n_missing else tuple(masks)


def mask_of_outline(outline: Any, size: tuple[int, int], error_prefix: str) -> RunLengths:
    """Return the mask of a box's "segmentation"; `error_prefix` is the beginning of error messages.

    The outline consists of polygons as x, y, x, y, ..., or is {"size": [height, width], "counts": ...} with run lengths
    as a list or as COCO's compressed string.
    """
    if isinstance(outline, dict):
        lengths, counts = _check_run_lengths(outline, size, error_prefix), outline["counts"]
        if isinstance(counts, str):
            return RunLengths(size=list(size), counts=counts.encode())
        return mask_functions().frPyObjects({"size": list(size), "counts": lengths.tolist()}, *size)
    functions, polygons = mask_functions(), _check_polygons(outline, size, error_prefix)
    return functions.merge(functions.frPyObjects(polygons, *size))


def check_outline(outline: Any, size: tuple[int, int], error_prefix: str) -> None:
    """Raise a UserError for an invalid outline; the arguments are those of `mask_of_outline`."""
    if isinstance(outline, dict):
        _check_run_lengths(outline, size, error_prefix)
    else:
        _check_polygons(outline, size, error_prefix)


def _check_polygons(outline: Any, size: tuple[int, int], error_prefix: str) -> list[list[float]]:
    """Return the polygons of an outline as lists of floats; raise a UserError for invalid polygons."""
    if not isinstance(outline, list) or not all(isinstance(polygon, list) for polygon in outline):
        raise UserError(f"{error_prefix}, which is {short_repr(outline)}, expected polygons or run lengths: {REMEDY}.")
    if len(outline) > MAX_POLYGONS:
        raise UserError(f"{error_prefix} with {len(outline):,} polygons, expected at most {MAX_POLYGONS:,}: {REMEDY}.")
    height, width = size
    perimeter = 0.0
    for polygon in outline:
        if not all(type(value) is int or (type(value) is float and math.isfinite(value)) for value in polygon):
            raise UserError(f"{error_prefix} with a polygon {short_repr(polygon)}, expected numbers: {REMEDY}.")
        if len(polygon) % 2:
            count = f"{len(polygon)} coordinates"
            raise UserError(f"{error_prefix} with a polygon of {count}, expected x, y, x, y, ...: {REMEDY}.")
        if len(polygon) < 2 * MIN_POINTS:
            count = counted(len(polygon) // 2, "point")
            raise UserError(f"{error_prefix} with a polygon of {count}, expected 3 or more: {REMEDY}.")
        for x, y in zip(polygon[::2], polygon[1::2], strict=True):
            # Points just outside the image are common and are cut off. Points far outside indicate another image.
            if not (-width <= x <= 2 * width and -height <= y <= 2 * height):
                raise UserError(
                    f"{error_prefix} with a point at {short_repr(x)} {short_repr(y)}, far outside the image: {REMEDY}."
                )
        points = np.asarray(polygon, dtype=np.float64).reshape(-1, 2)
        perimeter += float(np.abs(points - np.roll(points, 1, axis=0)).max(1).sum())
    if perimeter > MAX_PERIMETER:
        raise UserError(f"{error_prefix} of more than {MAX_PERIMETER:,} pixels in length: {REMEDY}.")
    return [[float(value) for value in polygon] for polygon in outline]


def _check_run_lengths(outline: dict[str, Any], size: tuple[int, int], error_prefix: str) -> NDArray[np.int64]:
    """Return the run lengths of a mask; raise a UserError if they are invalid."""
    stated, counts = outline.get("size"), outline.get("counts")
    if not isinstance(stated, list) or [*stated] != [*size] or any(type(side) is not int for side in stated):
        raise UserError(
            f"{error_prefix} whose size is {short_repr(stated)}, expected {[*size]} (height, width): {REMEDY}."
        )
    try:
        if isinstance(counts, str):
            lengths = unpack_run_lengths(counts.encode("utf-8", "surrogatepass"))
        elif not isinstance(counts, list) or not counts or any(type(count) is not int for count in counts):
            raise ValueError("expected integers, or COCO's compressed string")
        elif max(map(abs, counts)) >= 1 << 35:
            raise ValueError("a number is too large for any image")
        else:
            lengths = np.asarray(counts, dtype=np.int64)
    except ValueError as problem:
        raise UserError(f"{error_prefix} with run lengths that cannot be read ({problem}): {REMEDY}.") from None
    pixels = size[0] * size[1]
    # The largest length is checked before the sum, so that the sum cannot overflow.
    if lengths.min() < 0 or lengths.max() > pixels or int(lengths.sum()) != pixels:
        raise UserError(f"{error_prefix} with run lengths that do not add up to the image's {pixels} pixels: {REMEDY}.")
    return lengths


def _mask_of_box(box: Corners, size: tuple[int, int]) -> RunLengths:
    """Return a mask of the pixels of a box; at least one pixel is set."""
    left, top = min(round(box[0]), size[1] - 1), min(round(box[1]), size[0] - 1)
    right, bottom = max(round(box[2]), left + 1), max(round(box[3]), top + 1)
    mask = np.zeros(size, dtype=np.uint8)
    mask[top:bottom, left:right] = 1
    return pack_mask(mask)
