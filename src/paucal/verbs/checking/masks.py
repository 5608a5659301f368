"""Folders of images with masks, as `paucal check` looks at them."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paucal.data.checking.findings import Finding
from paucal.data.images import ImageSet
from paucal.data.masks.masked_images import MaskedImages, image_set, with_masks
from paucal.data.masks.pairs import IMAGE_FOLDERS, MASK_FOLDERS, Pairs, find_pairs
from paucal.data.sources.folder import PARTS, ignored
from paucal.types import UserError
from paucal.wording import counted, percent

MASKS, BAD_MASKS, BOXES = "masks", "bad-masks", "boxes"
# Findings whose advice is for labels of whole images; alike images may well show other objects.
OF_CLASSIFIERS = ("imbalance", "alike-with-other-labels")
SCARCE = 0.001  # of the labelled pixels: a class that has fewer is hardly learnt


def open_masked(data: str) -> tuple[ImageSet, list[Finding]] | None:
    """Open a folder that has a folder of images and one of masks in it, and nothing else; None for any other place.

    Masks that do not do are a finding, with the sentence that `paucal segment` would say.
    """
    root = Path(os.path.expanduser(data))  # pathlib's raises where there is no such user
    if not _has_both(root):
        return None
    try:
        pairs = find_pairs(root)
    except UserError:
        return None
    images = image_set(pairs, str(root.resolve()))
    try:
        masked = with_masks(images, pairs.pairs)
    except UserError as problem:
        text, _, advice = str(problem).rstrip(".").partition("; ")
        return images, [_opening(pairs), Finding(BAD_MASKS, "misleads", text, advice or "correct the masks")]
    return _described(masked, pairs)


def for_masks(found: Sequence[Finding]) -> list[Finding]:
    """Return findings without advice for labels of whole images, where these images have masks or boxes."""
    if not any(one.name in (MASKS, BOXES) for one in found):
        return list(found)
    return [one for one in found if one.name not in OF_CLASSIFIERS]


def _has_both(root: Path) -> bool:
    """Return whether all folders at the top, or within parts, are of images or of masks, and there are both."""
    if not root.is_dir():
        return False
    names = _folders(root)
    if names and names <= set(PARTS):
        names = {name for part in root.iterdir() if part.is_dir() for name in _folders(part)}
    sides = names & set(IMAGE_FOLDERS), names & set(MASK_FOLDERS)
    return all(sides) and names == sides[0] | sides[1]


def _folders(root: Path) -> set[str]:
    return {child.name.lower() for child in root.iterdir() if child.is_dir() and not ignored(child.name)}


def _opening(pairs: Pairs) -> Finding:
    words = f"{counted(len(pairs.pairs), 'image')} with masks: this is data for paucal segment"
    return Finding(MASKS, "note", words)


def _described(masked: MaskedImages, pairs: Pairs) -> tuple[ImageSet, list[Finding]]:
    totals = masked.pixels.sum(0)
    labelled = max(int(totals.sum()), 1)
    shares = {name: int(count) / labelled for name, count in zip(masked.images.classes, totals, strict=True)}
    shown = ", ".join(f"{name} {percent(share)}" for name, share in list(shares.items())[:12])
    found = [_opening(pairs), Finding("pixels", "note", f"share of the labelled pixels: {shown}")]
    scarce = [name for name, share in shares.items() if share < SCARCE]
    if scarce:
        names = ", ".join(scarce[:8]) + (", ..." if len(scarce) > 8 else "")
        words = f"{counted(len(scarce), 'class', 'classes')} with under {percent(SCARCE)} of the pixels: {names}"
        found.append(Finding("scarce-classes", "warning", words, "label more of them, or join classes"))
    empty = int((masked.pixels.sum(1) == 0).sum())
    if empty:
        words = f"{counted(empty, 'mask')} without a labelled pixel"
        found.append(Finding("empty-masks", "warning", words, "label them, or leave these images out"))
    # What nobody shows is no class of the check: nothing could be said of its images.
    present = totals > 0
    names = tuple(name for name, there in zip(masked.images.classes, present, strict=True) if there)
    rows = masked.images.multi_hot
    assert rows is not None
    return replace(masked.images, classes=names, multi_hot=rows[:, present]), found
