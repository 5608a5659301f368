"""Images with masks, as `paucal check` looks at them."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from paucal.data.checking.findings import Finding, refusal
from paucal.data.checking.survey import Survey
from paucal.data.images import ImageSet
from paucal.data.masks.coding import read_class_names
from paucal.data.masks.masked_images import MaskedImages, images_of_pairs, read_masks, require_enough
from paucal.data.masks.pairs import Pairs, find_pairs
from paucal.data.masks.recognition import masks_among
from paucal.data.sources.folder import find_images
from paucal.data.sources.stores import FileStore
from paucal.data.verify import verify_images
from paucal.tasks.segmentation.rules import CELL, crop_side
from paucal.types import UserError
from paucal.verbs.check.settings import CheckSettings
from paucal.wording import counted, percent

MASKS, BAD_MASKS, BOXES, SMALL = "masks", "bad-masks", "boxes", "small-crops"
# Findings whose advice is for labels of whole images; alike images may well show other objects.
OF_CLASSIFIERS = ("imbalance", "alike-with-other-labels", "small-images")
SCARCE = 0.001  # of the labelled pixels: a class that has fewer is hardly learnt


def open_masked(settings: CheckSettings) -> tuple[ImageSet, list[Finding]] | None:
    """Open images with masks as `paucal segment` does; None where masks are evidently not meant.

    What `paucal segment` would refuse is a finding, with its sentence.
    """
    root = Path(os.path.expanduser(settings.data))  # pathlib's raises where there is no such user
    places = [None if text is None else Path(os.path.expanduser(text)) for text in (settings.images, settings.masks)]
    given = (settings.images, settings.masks, settings.mask_values, settings.ignore)
    if not any(one is not None for one in given) and not _has_masks(root):
        return None
    try:
        pairs = find_pairs(root, *places)
    except UserError as problem:
        return _alone(places[0] or root, problem), [refusal(BAD_MASKS, problem)]
    images = images_of_pairs(pairs, str((places[0] or root).resolve()))
    try:
        if settings.on_bad_image == "skip":
            images = verify_images(images, "skip")[0]
        named = None if settings.classes is None else read_class_names(Path(settings.classes))
        masked = read_masks(images, pairs, settings.mask_values, settings.ignore, named)
        require_enough(masked)
    except UserError as problem:
        return images, [_opening(pairs), refusal(BAD_MASKS, problem)]
    return _described(masked, pairs)


def for_masks(found: Sequence[Finding]) -> list[Finding]:
    """Return findings without advice for labels of whole images, where these images have masks or boxes."""
    if not any(one.name in (MASKS, BOXES) for one in found):
        return list(found)
    return [one for one in found if one.name not in OF_CLASSIFIERS]


def crop_findings(opening: Sequence[Finding], survey: Survey, device: str) -> list[Finding]:
    """Return a finding on images that fill less than half the side of the crops that `paucal segment` would choose.

    Args:
        opening: Findings of `open_masked`; of other images nothing is said.
        survey: What was seen of the images.
        device: Device whose crops are meant.
    """
    short = survey.sizes[survey.readable].min(axis=1)
    if not len(short) or not any(one.name == MASKS for one in opening):
        return []
    side, _ = crop_side(device, int(np.median(short)))
    small = np.flatnonzero(2 * short < side)
    if not len(small):
        return []
    most = max(CELL, 2 * int(short.min()) // CELL * CELL)
    words = (
        f"{counted(len(small), 'image fills', 'images fill')} less than half the side of the {side}-pixel crops that "
        f"paucal segment would train on (the smallest is {int(short.min())} pixels)"
    )
    advice = f"train with crops that they fill: --img-size {most}" if most < side else "take larger copies"
    groups = tuple((int(survey.readable[place]),) for place in small)
    return [Finding(SMALL, "warning" if len(small) < len(short) / 2 else "note", words, advice, groups)]


def _has_masks(root: Path) -> bool:
    if not root.is_dir():
        return False
    keys = find_images(root)
    return masks_among(keys, FileStore(root, keys)) is not None


def _alone(root: Path, problem: UserError) -> ImageSet:
    """Return the images of a folder whose masks cannot be found.

    Raises:
        UserError: There are no images.
    """
    keys = find_images(root) if root.is_dir() else []
    if not keys:
        raise problem
    return ImageSet(
        name=root.resolve().name,
        location=str(root.resolve()),
        classes=(),
        keys=keys,
        labels=np.full(len(keys), -1, dtype=np.int64),
        declared=[""] * len(keys),
        store=FileStore(root.resolve(), keys),
    )


def _opening(pairs: Pairs) -> Finding:
    words = f"{counted(len(pairs.pairs), 'image')} with masks: this is data for paucal segment"
    return Finding(MASKS, "note", words)


def _described(masked: MaskedImages, pairs: Pairs) -> tuple[ImageSet, list[Finding]]:
    totals = masked.pixels.sum(0)
    labelled = max(int(totals.sum()), 1)
    shares = {name: int(count) / labelled for name, count in zip(masked.images.classes, totals, strict=True)}
    shown = ", ".join(f"{name} {percent(share)}" for name, share in list(shares.items())[:12])
    found = [_opening(pairs), Finding("pixels", "note", f"share of the labelled pixels: {shown}"), *masked.findings]
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
