"""Recognition of masks among the images of a set, so that masks are not used as photographs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from paucal.data.decode import UnreadableImage
from paucal.data.images import ImageSet, evenly_spaced
from paucal.data.masks.mask_files import pack_colours
from paucal.data.masks.matching import match_masks_by_name
from paucal.data.masks.naming import MASK_WORDS, folder_role
from paucal.data.masks.pairs import find_folders_by_colours, separate_images_and_masks
from paucal.data.stores import Store
from paucal.types import UserError
from paucal.wording import counted, was_or_were

MIN_NAMED_FRACTION = 0.1  # smallest fraction of files named like masks for which the names are not a coincidence
SAMPLED_NAMES = 4096  # largest number of file names that are checked for words such as "mask"
MAX_READ_MASKS = 5  # number of files whose colours are counted
MAX_COLOURS = 256  # maximum number of colours in a mask; photographs have more
_WORD = re.compile(rf"(?:^|[\W_])(?:{MASK_WORDS})(?:$|[\W_]|\d)", re.IGNORECASE)


@dataclass(frozen=True)
class MasksInSet:
    """Masks that a set of images contains.

    Attributes:
        keys: Keys of the masks.
        example: Key of an image and key of the mask with a matching name; two empty strings if no names match.
    """

    keys: frozenset[str]
    example: tuple[str, str] = ("", "")

    def describe(self) -> str:
        """Return a phrase with the number of masks and an example."""
        image, mask = self.example
        example = f" ({mask!r} of {image!r})" if image else ""
        return f"{counted(len(self.keys), 'mask')}{example}"


def find_masks_in_set(keys: Sequence[str], store: Store) -> MasksInSet | None:
    """Return the masks in a set of images; None if there are no masks, or so few that the names are a coincidence.

    The names of folders suffice if all folders are named after images or masks (`images/`, `masks/`, `trainannot/`).
    If only file names suggest masks (`x.png`, `x_mask.png`), or if there are other folders, the colours in up to 5
    masks are counted as well. For two folders with other names, but equal file names, only the colours are used.
    """
    if not _may_have_masks(keys):
        if (folders := find_folders_by_colours(keys, store)) is None:
            return None
        images, masks = (sorted(key for key in keys if key.startswith(f"{folder}/")) for folder in folders)
        return MasksInSet(frozenset(masks), (images[0], masks[0]))
    files = separate_images_and_masks(keys)
    mask_keys = frozenset((*(file.key for file in files.masks), *files.others))
    if not files.images or len(mask_keys) < max(1, MIN_NAMED_FRACTION * len(keys)):
        return None
    named_keys = set(keys) - set(files.others)
    are_folders_enough = all(_has_content(key, "mask" if key in mask_keys else "image") for key in named_keys)
    try:
        masks_by_image = match_masks_by_name(files.images, files.masks).masks
        are_matched = 2 * sum(map(len, masks_by_image.values())) >= len(mask_keys)
    except UserError:  # `paucal segment` refuses these masks with the same error
        masks_by_image, are_matched = {}, True
    if not are_folders_enough and not (are_matched and _have_few_colours(keys, mask_keys, store)):
        return None
    example = next(((image, image_masks[0]) for image, image_masks in masks_by_image.items()), ("", ""))
    return MasksInSet(mask_keys, example)


def exclude_masks(images: ImageSet) -> ImageSet:
    """Return a set without the masks among its images; a note says how many masks were left out."""
    masks = None if images.stream is not None else find_masks_in_set(images.keys, images.store)
    if masks is None:
        return images
    images_only = np.flatnonzero([key not in masks.keys for key in images.keys])
    return images.select(images_only, f"{masks.describe()} {was_or_were(len(masks.keys))} left out")


def _may_have_masks(keys: Sequence[str]) -> bool:
    """Return whether the names of the folders, or of a sample of the files, suggest masks.

    File names are sampled, since a set may have millions of images.
    """
    folders = {key.rpartition("/")[0] for key in keys}
    if any(map(_WORD.search, folders)):
        return True
    if any(_has_content(f"{folder}/", content) for folder in folders for content in ("mask", "other")):
        return True
    sample = [keys[int(index)] for index in evenly_spaced(len(keys), SAMPLED_NAMES)]
    n_named = sum(_WORD.search(key.rpartition("/")[2].rpartition(".")[0]) is not None for key in sample)
    return n_named >= MIN_NAMED_FRACTION / 2 * len(sample)


def _has_content(key: str, content: str) -> bool:
    """Return whether the names of a file's folders say that it is, for example, a "mask" (see `FolderRole.content`).

    Folders that are named only after a split (`train/`) count as folders of images.
    """
    roles = [folder_role(name) for name in PurePosixPath(key.rpartition("/")[0]).parts]
    default = "image" if any(role.part for role in roles) else ""
    return next((role.content for role in reversed(roles) if role.content), default) == content


def _have_few_colours(keys: Sequence[str], masks: frozenset[str], store: Store) -> bool:
    """Read up to 5 of the masks, and return whether none has more than 256 colours, as photographs have."""
    indices = [index for index, key in enumerate(keys) if key in masks]
    for index in indices[:: max(1, len(indices) // MAX_READ_MASKS)][:MAX_READ_MASKS]:
        try:
            colours = len(np.unique(pack_colours(np.asarray(store.read(index)))))
        except UnreadableImage:
            continue
        if colours > MAX_COLOURS:
            return False
    return True
