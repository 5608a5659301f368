"""Recognition of masks among images, so that no mask is used as a photograph."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from paucal.data.decode import UnreadableImage
from paucal.data.images import ImageSet, evenly_spaced
from paucal.data.masks.mask_files import pack_colours
from paucal.data.masks.matching import match
from paucal.data.masks.naming import TOKENS, folder_role
from paucal.data.masks.pairs import find_image_and_mask_folders, twin_folders
from paucal.data.stores import Store
from paucal.types import UserError
from paucal.wording import counted, was

MIN_NAMED_SHARE = 0.1  # of files named like masks; with a smaller share, the names are a coincidence
SAMPLE = 4096  # names that are checked first
MAX_READ = 5  # files that are read to count their colours
MAX_COLOURS = 256  # maximum number of colours in a mask; photographs have more
_WORD = re.compile(rf"(?:^|[\W_])(?:{TOKENS})(?:$|[\W_]|\d)", re.IGNORECASE)


@dataclass(frozen=True)
class MasksAmong:
    """The keys of the masks in a set of images; if names match, `example` has an image and its mask."""

    keys: frozenset[str]
    example: tuple[str, str] = ("", "")

    def describe(self) -> str:
        """Return the number of masks, with an example."""
        image, mask = self.example
        example = f" ({mask!r} of {image!r})" if image else ""
        return f"{counted(len(self.keys), 'mask')}{example}"


def masks_among(keys: Sequence[str], store: Store) -> MasksAmong | None:
    """Return the masks in a set of images; None without masks, or if only a few names match by coincidence.

    The names of folders suffice if all folders are named after images or masks (`images/`, `masks/`, `trainannot/`).
    If only files are named so (`x.png`, `x_mask.png`), or there are other folders, the colours in a few masks are
    counted as well. Two folders of other names with files of the same names are distinguished only by colours.
    """
    if not _may_have_masks(keys):
        return _masks_of_twins(keys, store)
    sides = find_image_and_mask_folders(keys)
    masks = frozenset((*(file.key for file in sides.masks), *sides.others))
    if not sides.images or len(masks) < max(1, MIN_NAMED_SHARE * len(keys)):
        return None
    folders_suffice = all(_is_sided(key, "mask" if key in masks else "image") for key in set(keys) - set(sides.others))
    try:
        masks_of = match(sides.images, sides.masks).masks
        matched = 2 * sum(map(len, masks_of.values())) >= len(masks)
    except UserError:  # masks that `paucal segment` refuses
        masks_of, matched = {}, True
    if not folders_suffice and not (matched and _have_few_colours(keys, masks, store)):
        return None
    return MasksAmong(masks, next(((image, image_masks[0]) for image, image_masks in masks_of.items()), ("", "")))


def _masks_of_twins(keys: Sequence[str], store: Store) -> MasksAmong | None:
    folders = twin_folders(keys, store)
    if folders is None:
        return None
    images, masks = (sorted(key for key in keys if key.startswith(f"{folder}/")) for folder in folders)
    return MasksAmong(frozenset(masks), (images[0], masks[0]))


def without_masks(images: ImageSet) -> ImageSet:
    """Return a set of images without the masks among them."""
    masks = None if images.stream is not None else masks_among(images.keys, images.store)
    if masks is None:
        return images
    images_only = np.flatnonzero([key not in masks.keys for key in images.keys])
    return images.select(images_only, f"{masks.describe()} {was(len(masks.keys))} left out")


def _may_have_masks(keys: Sequence[str]) -> bool:
    """Whether a quick check of some of the names allows for masks; a set may have millions of images."""
    folders = {key.rpartition("/")[0] for key in keys}
    if any(map(_WORD.search, folders)):
        return True
    if any(_is_sided(f"{folder}/", side) for folder in folders for side in ("mask", "other")):
        return True
    sample = [keys[int(index)] for index in evenly_spaced(len(keys), SAMPLE)]
    n_named = sum(_WORD.search(key.rpartition("/")[2].rpartition(".")[0]) is not None for key in sample)
    return n_named >= MIN_NAMED_SHARE / 2 * len(sample)


def _is_sided(key: str, side: str) -> bool:
    """Whether the folders above a file name a side; if they name only a split (`train/`), the side is "image"."""
    roles = [folder_role(name) for name in PurePosixPath(key.rpartition("/")[0]).parts]
    default = "image" if any(role.part for role in roles) else ""
    return next((role.side for role in reversed(roles) if role.side), default) == side


def _have_few_colours(keys: Sequence[str], masks: frozenset[str], store: Store) -> bool:
    """Whether masks have few colours, unlike photographs."""
    indices = [index for index, key in enumerate(keys) if key in masks]
    for index in indices[:: max(1, len(indices) // MAX_READ)][:MAX_READ]:
        try:
            colours = len(np.unique(pack_colours(np.asarray(store.read(index)))))
        except UnreadableImage:
            continue
        if colours > MAX_COLOURS:
            return False
    return True
