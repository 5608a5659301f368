"""Masks as COCO keeps them: lengths of runs, column by column, packed into text.

faster-coco-eval, of the extra `detection`, draws polygons, packs masks and measures overlaps. Unpacking is done here:
text from files has to be checked before anything trusts it, and numpy is a hundred times as fast.
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TypedDict

import numpy as np
import torch
from numpy.typing import NDArray

from paucal.data.boxes.annotations import unpack_run_lengths
from paucal.types import UserError

BACKEND, EXTRA = "faster_coco_eval", 'pip install "paucal[detection]"'


class RunLengths(TypedDict):
    """A mask: its (height, width) in pixels, and the lengths of its runs of zeros and ones as packed text."""

    size: list[int]
    counts: bytes


def mask_program() -> ModuleType:
    """Return faster-coco-eval's functions for masks.

    Raises:
        UserError: the extra is not installed.
    """
    if find_spec(BACKEND) is None:
        raise UserError(f"outlines of objects are read by faster-coco-eval, which is not installed: {EXTRA}.")
    return import_module(f"{BACKEND}.core.mask")


def packed(mask: NDArray) -> RunLengths:
    """Return an (H, W) mask of 0 and 1, or of bool, as lengths of runs."""
    return mask_program().encode(np.asfortranarray(mask, dtype=np.uint8))


def unpacked(runs: RunLengths) -> NDArray[np.uint8]:
    """Return lengths of runs, which were checked, as an (H, W) mask of 0 and 1."""
    counts = unpack_run_lengths(runs["counts"])
    values = np.arange(len(counts), dtype=np.uint8) % 2
    height, width = runs["size"]
    return np.repeat(values, counts).reshape(width, height).T


def stacked(masks: Sequence[RunLengths], size: tuple[int, int]) -> torch.Tensor:
    """Return masks as one (N, H, W) uint8 tensor, each brought to a (height, width) by the nearest pixel."""
    made = torch.zeros((len(masks), *size), dtype=torch.uint8)
    for place, runs in zip(made, masks, strict=True):
        mask = unpacked(runs)
        if mask.shape != size:  # one by one: masks of the image as it was annotated may be much larger
            rows, columns = (
                ((np.arange(new) + 0.5) * old / new).astype(np.int64) for new, old in zip(size, mask.shape, strict=True)
            )
            mask = mask[rows][:, columns]
        place.copy_(torch.from_numpy(np.ascontiguousarray(mask)))
    return made


def mask_overlaps(
    masks: Sequence[RunLengths], objects: Sequence[RunLengths], crowd: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return (D, G) intersection over union; over the mask's own area where the object is a crowd."""
    if not len(masks) or not len(objects):
        return np.zeros((len(masks), len(objects)))
    found = mask_program().iou(list(masks), list(objects), crowd.astype(int).tolist())
    return np.asarray(found, dtype=np.float64)
