"""Matching of images to masks by the names of folders or files, for sets with separate mask files for each class."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from paucal.data.masks.matching import Folders, Matches, NormalisedFile
from paucal.data.masks.naming import MASK_WORDS, is_decoy_folder, is_decoy_name
from paucal.data.sources.locating import fold_name

MAX_CLASSES = 64  # maximum number of names that can be classes
MIN_IMAGES = 2  # minimum number of images whose masks have the name of a class
_SEPARATORS = re.compile(r"[\s_.,+~-]+")
ImageAndClass = tuple[str, str]  # key of an image, name of a class


def match_masks_by_class(
    images: Sequence[NormalisedFile], masks: Sequence[NormalisedFile]
) -> tuple[Matches, dict[str, str]] | None:
    """Match masks to images in a set with separate mask files for each class.

    The class may be the name of a folder above the masks (`masks/cat/1.png`), the end of the file name (`1_cat.png`),
    or the file name in a folder for each image (`1/cat.png`). All masks must be named in the same way.

    Returns:
        The masks of each image, and the class of each mask by the key of the mask; None if masks are not named after
        classes.
    """
    for match in (_match_by_folder, _match_by_ending, _match_by_name):
        matched_masks = match(images, masks)
        if matched_masks is None or not _are_plausible_classes(matched_masks.values()):
            continue
        masks_by_image: dict[str, list[str]] = defaultdict(list)
        for key, (image, _) in sorted(matched_masks.items(), key=lambda item: item[1][1]):
            masks_by_image[image].append(key)
        unmatched_images = [image.key for image in images if image.key not in masks_by_image]
        return Matches(dict(masks_by_image), unmatched_images), {key: name for key, (_, name) in matched_masks.items()}
    return None


def _are_plausible_classes(pairs: Iterable[ImageAndClass]) -> bool:
    """Return whether the names in (image, name) pairs may be classes: 2 to 64 names, each once in several images."""
    images_by_name: dict[str, list[str]] = defaultdict(list)
    for image, name in pairs:
        images_by_name[name].append(image)
    has_similar_names = len({fold_name(name) for name in images_by_name}) < len(images_by_name)
    decoys = [name for name in images_by_name if is_decoy_folder(name) or is_decoy_name(name) or name.isdigit()]
    is_once_per_image = all(len(set(images)) == len(images) >= MIN_IMAGES for images in images_by_name.values())
    return 2 <= len(images_by_name) <= MAX_CLASSES and is_once_per_image and not has_similar_names and not decoys


def _keys_by_name(images: Sequence[NormalisedFile]) -> dict[tuple[Folders, str], str]:
    return {(image.folders, fold_name(image.stem)): image.key for image in images}


def _match_by_folder(
    images: Sequence[NormalisedFile], masks: Sequence[NormalisedFile]
) -> dict[str, ImageAndClass] | None:
    image_keys = _keys_by_name(images)
    matches_by_mask: dict[str, ImageAndClass] = {}
    for mask in masks:
        folder_splits = [(mask.folders[:n] + mask.folders[n + 1 :], mask.folders[n]) for n in range(len(mask.folders))]
        matches = [(image_keys.get((folders, fold_name(mask.stem))), name) for folders, name in folder_splits]
        matches = [(image, name) for image, name in matches if image is not None]
        if len(matches) != 1:
            return None
        image, name = matches[0]
        spellings = [part for part in PurePosixPath(mask.key).parts[:-1] if fold_name(part) == name]
        matches_by_mask[mask.key] = image, [name, *spellings][-1]
    return matches_by_mask


def _match_by_ending(
    images: Sequence[NormalisedFile], masks: Sequence[NormalisedFile]
) -> dict[str, ImageAndClass] | None:
    image_keys = _keys_by_name(images)
    matches_by_mask: dict[str, ImageAndClass] = {}
    for mask in masks:
        splits = [(mask.stem[: gap.start()], mask.stem[gap.end() :]) for gap in _SEPARATORS.finditer(mask.stem)]
        pairs = ((image_keys.get((mask.folders, fold_name(base))), ending) for base, ending in reversed(splits))
        image, ending = next((pair for pair in pairs if pair[0]), ("", ""))
        name = _class_name(ending)
        if not image or not name:
            return None
        matches_by_mask[mask.key] = image, name
    return matches_by_mask


def _match_by_name(
    images: Sequence[NormalisedFile], masks: Sequence[NormalisedFile]
) -> dict[str, ImageAndClass] | None:
    keys_by_folders: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for image in images:
        for folders in {image.folders, (*image.folders, fold_name(image.stem))}:
            keys_by_folders[folders].append(image.key)
    matches_by_mask: dict[str, ImageAndClass] = {}
    for mask in masks:
        keys, name = keys_by_folders.get(mask.folders, []), _class_name(mask.stem)
        if len(keys) != 1 or not mask.folders or not name:
            return None
        matches_by_mask[mask.key] = keys[0], name
    return matches_by_mask


def _class_name(text: str) -> str:
    """Return the class in a file name, or in the end of a file name: the text without words that mean "mask"."""
    words = filter(None, _SEPARATORS.split(text))
    return " ".join(word for word in words if not re.fullmatch(MASK_WORDS, word, re.IGNORECASE))
