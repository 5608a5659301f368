"""What looks wrong in masks that can be read: stray values, masks that may be inverted, images that are turned."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paucal.data.checking.findings import Finding
from paucal.data.decode import ambiguity_note
from paucal.data.images import ImageSet
from paucal.data.masks.coding import MaskCoding
from paucal.data.masks.measuring import Seen
from paucal.wording import counted

STRAY, TURNED, INVERTED, RESIZED = "stray-values", "turned-images", "perhaps-inverted", "perhaps-resized"
FEWEST_STEPS = 10  # pixels of a mask, below which they are no sign
RARE = 10_000  # pixels, of which a stray value has one at most
FEW, MANY = 0.35, 0.65  # share of an image that a class covers in one half of the masks and in the other
SIDES = 0.25  # share of the masks on each side, from which on it is no chance


def stray_values(seen: Seen, coding: MaskCoding) -> list[Finding]:
    """Return a finding on grey levels and colours that one mask has in hardly any pixel, each a class of its own."""
    if coding.kind not in ("grey", "colour") or len(seen.files) < 3:
        return []
    seen = seen.as_colours() if coding.kind == "colour" else seen
    total, found = sum(seen.pixels.values()), []
    for value in coding.values:
        files = seen.with_value(value)
        if len(files) == 1 and seen.pixels[value] * RARE <= total:
            found.append(f"{coding.shown(value)} in {counted(seen.pixels[value], 'pixel')} of {files[0].name}")
    if not found:
        return []
    words = counted(len(found), "stray value counts as a class", "stray values count as classes")
    shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
    return [Finding(STRAY, "misleads", f"{words}: {shown}", "correct the masks, or name the classes with --classes")]


def interpolated(seen: Seen, coding: MaskCoding) -> list[Finding]:
    """Return a finding on masks of numbers whose edges have the numbers between, as interpolation leaves them."""
    odd = [file for file in seen.files if file.steps >= FEWEST_STEPS and 2 * file.steps > file.jumps]
    if coding.kind != "index" or not odd:
        return []
    text = (
        f"in {counted(len(odd), 'mask')} ({odd[0].name}{', ...' if odd[1:] else ''}) numbers change step by step at "
        "edges, as after resizing by interpolation: the numbers between are then no classes"
    )
    return [Finding(RESIZED, "warning", text, "look at them; resize masks by the nearest pixel")]


def inverted(pixels: NDArray[np.int64]) -> list[Finding]:
    """Return a finding on masks of two classes that fall in two halves, as if some were inverted.

    Args:
        pixels: (N, K) pixels of each class in each image.
    """
    labelled = pixels.sum(1)
    both = np.flatnonzero((pixels > 0).all(1)) if pixels.shape[1] == 2 else np.zeros(0, dtype=np.int64)
    if len(both) < 4:
        return []
    share = pixels[both, 1] / labelled[both]
    few, many = share <= FEW, share >= MANY
    alike = abs(share[few].mean() + share[many].mean() - 1) < 0.1 if few.any() and many.any() else False
    if not alike or not (few | many).all() or min(few.mean(), many.mean()) < SIDES:
        return []
    odd = both[many if many.sum() <= few.sum() else few]
    text = (
        f"the second class covers {100 * share[few].mean():.0f} % of {counted(int(few.sum()), 'image')} and "
        f"{100 * share[many].mean():.0f} % of {counted(int(many.sum()), 'image')}, and nothing between: some masks may "
        "be inverted"
    )
    return [Finding(INVERTED, "warning", text, "look at some of each", tuple((int(place),) for place in odd))]


def ambiguous(places: Sequence[int], images: ImageSet) -> list[Finding]:
    """Return a finding on turned images whose size does not show whether their masks were drawn before the turn."""
    if not places:
        return []
    text, _, advice = ambiguity_note([images.keys[place] for place in places], "masks").rpartition("; ")
    return [Finding(TURNED, "warning", text, advice, tuple((place,) for place in places))]
