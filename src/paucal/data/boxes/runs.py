"""Lengths of runs, as COCO's files hold masks: of zeros and ones in turn, column by column, as numbers or as text.

Text from files has to be checked before anything trusts it, and numpy is a hundred times as fast as the usual program.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paucal.data.boxes.described import Corners

FIRST, BITS, MORE, SIGN = 48, 5, 0x20, 0x10  # of the text: its zero, bits of a character, "goes on" and "below zero"
MOST_CHARACTERS = 7  # of a number: 35 bits, and an image has fewer pixels
MOST_TEXT = 1 << 24  # characters of a mask


def unpacked_counts(text: bytes) -> NDArray[np.int64]:
    """Return the lengths of runs that a text stands for.

    Each character holds five bits of a number and whether it goes on, the lowest bits first; from the fourth number on
    it is the difference to the one before the last.

    Raises:
        ValueError: it is no such text; the message says what is wrong with it.
    """
    if len(text) > MOST_TEXT:
        raise ValueError(f"it has {len(text):,} characters, at most {MOST_TEXT:,} are read")
    codes = np.frombuffer(text, dtype=np.uint8).astype(np.int64) - FIRST
    if not len(codes) or codes.min() < 0 or codes.max() >= 64:
        raise ValueError("it is empty or has a character that stands for nothing")
    if codes[-1] & MORE:
        raise ValueError("it ends in the middle of a number")
    lasts = np.flatnonzero((codes & MORE) == 0)
    starts = np.concatenate([[0], lasts[:-1] + 1])
    lengths = lasts - starts + 1
    if lengths.max() > MOST_CHARACTERS:
        raise ValueError("it has a number that is too large for any image")
    place = np.arange(len(codes)) - np.repeat(starts, lengths)
    numbers = np.add.reduceat((codes & (MORE - 1)) << (BITS * place), starts)
    numbers -= np.where(codes[lasts] & SIGN, np.int64(1) << (BITS * lengths), 0)
    numbers[1::2] = np.cumsum(numbers[1::2])
    numbers[2::2] = np.cumsum(numbers[2::2])
    return numbers


def box_of_runs(outline: dict[str, Any]) -> Corners | None:
    """Return the box around a mask that a file holds as lengths of runs; None where it is empty, or no mask."""
    size, counts = outline.get("size"), outline.get("counts")
    if not isinstance(size, list) or len(size) != 2 or any(type(side) is not int or side < 1 for side in size):
        return None
    try:
        lengths = unpacked_counts(counts.encode()) if isinstance(counts, str) else np.asarray(counts, dtype=np.int64)
    except (ValueError, TypeError, OverflowError):
        return None
    height, pixels = size[0], size[0] * size[1]
    if lengths.ndim != 1 or lengths.min(initial=0) < 0 or lengths.max(initial=0) > pixels or lengths.sum() != pixels:
        return None
    ends = np.cumsum(lengths)
    first, last = (ends - lengths)[1::2][lengths[1::2] > 0], ends[1::2][lengths[1::2] > 0] - 1
    if not len(first):
        return None
    within = first // height == last // height  # a run over the end of a column holds its first and its last row
    top = int((first % height)[within].min()) if within.all() else 0
    bottom = int((last % height)[within].max()) if within.all() else height - 1
    return float(first[0] // height), float(top), float(last[-1] // height + 1), float(bottom + 1)


def runs_of(mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Return an (H, W) mask as lengths of runs, as COCO's files have them."""
    flat = np.concatenate([[False], mask.T.ravel(), [False]])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    edges = np.concatenate([[0], changes, [mask.size] if changes[-1:] != [mask.size] else []]).astype(np.int64)
    return {"size": list(mask.shape), "counts": np.diff(edges).tolist()}
