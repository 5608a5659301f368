"""Sets of images with masks where other images are expected: recognised, so that no mask is taken for a photograph."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from paucal.data.decode import UnreadableImage
from paucal.data.images import ImageSet, evenly_spaced
from paucal.data.masks.matching import match
from paucal.data.masks.naming import TOKENS, folder_role
from paucal.data.masks.pairs import tell_sides
from paucal.data.masks.pixels import packed
from paucal.data.stores import Store
from paucal.types import UserError
from paucal.wording import counted, was

LEAST = 0.1  # share of a set's files that are masks by their names, below which the names mean something else
SAMPLE = 4096  # names that are looked at first
LOOKED_AT = 5  # files that are read to see whether they were drawn
DRAWN = 256  # colours: photographs have more
_WORD = re.compile(rf"(?:^|[\W_])(?:{TOKENS})(?:$|[\W_]|\d)", re.IGNORECASE)


@dataclass(frozen=True)
class MasksAmong:
    """The masks in a set of images.

    Attributes:
        keys: Keys of the masks.
        example: Key of an image and of its mask; "" for both where names do not tell which belong together.
    """

    keys: frozenset[str]
    example: tuple[str, str] = ("", "")

    def describe(self) -> str:
        """Return how many there are, with an example."""
        image, mask = self.example
        one = f" ({mask!r} of {image!r})" if image else ""
        return f"{counted(len(self.keys), 'mask')}{one}"


def masks_among(keys: Sequence[str], store: Store) -> MasksAmong | None:
    """Return the masks in a set of images; None where there are none, or so few that names deceive.

    Folders are believed where the whole names of all say that they hold images or masks (`images/`, `masks/`,
    `trainannot/`). Where only names of files say so (`x.png`, `x_mask.png`), or other folders lie beside them, a few
    masks are read: drawn ones have few colours.

    Args:
        keys: Paths of all images, with forward slashes.
        store: Reads them by position.
    """
    if not _may_have_masks(keys):
        return None
    sides = tell_sides(keys)
    if not sides.images or len(sides.masks) < max(1, LEAST * len(keys)):
        return None
    masks = frozenset((*(file.key for file in sides.masks), *sides.others))
    sure = all(_is_sided(key, "mask" if key in masks else "image") for key in set(keys) - set(sides.others))
    try:
        found = match(sides.images, sides.masks).masks
        matched = 2 * sum(map(len, found.values())) >= len(masks)
    except UserError:  # masks that `paucal segment` refuses
        found, matched = {}, True
    if not sure and not (matched and _are_drawn(keys, masks, store)):
        return None
    return MasksAmong(masks, next(((image, belonging[0]) for image, belonging in found.items()), ("", "")))


def without_masks(images: ImageSet) -> ImageSet:
    """Return a set of images without the masks among them, which would be taken for photographs."""
    found = None if images.stream is not None else masks_among(images.keys, images.store)
    if found is None:
        return images
    kept = np.flatnonzero([key not in found.keys for key in images.keys])
    return images.select(kept, f"{found.describe()} {was(len(found.keys))} left out")


def refuse_masks(images: ImageSet) -> None:
    """Refuse images and masks where images with classes are expected.

    Raises:
        UserError: There are masks among the images.
    """
    if found := masks_among(images.keys, images.store):
        raise UserError(
            f"{images.location} has masks among its images, {found.describe()}: `paucal segment` learns from masks; to "
            "classify, take the masks out, or give folders that are classes all the same other names."
        )


def _may_have_masks(keys: Sequence[str]) -> bool:
    """Whether names are worth a closer look, told quickly: a set may have millions of images."""
    folders = {key.rpartition("/")[0] for key in keys}
    if any(_is_sided(f"{folder}/", "mask") for folder in folders) or any(map(_WORD.search, folders)):
        return True
    some = [keys[int(place)] for place in evenly_spaced(len(keys), SAMPLE)]
    named = sum(_WORD.search(key.rpartition("/")[2].rpartition(".")[0]) is not None for key in some)
    return named >= LEAST / 2 * len(some)


def _is_sided(key: str, side: str) -> bool:
    """Whether the whole name of a folder above a file says its side; a folder of a part alone has images."""
    roles = [folder_role(name) for name in PurePosixPath(key.rpartition("/")[0]).parts]
    said = next((role.side for role in reversed(roles) if role.side), "image" if any(r.part for r in roles) else "")
    return said == side


def _are_drawn(keys: Sequence[str], masks: frozenset[str], store: Store) -> bool:
    """Whether masks have so few colours as drawn ones have."""
    places = [place for place, key in enumerate(keys) if key in masks]
    for place in places[:: max(1, len(places) // LOOKED_AT)][:LOOKED_AT]:
        try:
            colours = len(np.unique(packed(np.asarray(store.read(place)))))
        except UnreadableImage:
            continue
        if colours > DRAWN:
            return False
    return True
