"""Matching of images to masks if each class has its own mask files, by the names of folders or files."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from paucal.data.masks.matching import File, Matches
from paucal.data.masks.naming import TOKENS, fold, is_decoy_folder, is_decoy_name

MAX_CLASSES = 64
MIN_IMAGES = 2  # a name that occurs with fewer images is not taken for a class
_SEPARATORS = re.compile(r"[\s_.,+~-]+")
ImageAndClass = tuple[str, str]  # key of an image, name of a class


def match_classes(images: Sequence[File], masks: Sequence[File]) -> tuple[Matches, dict[str, str]] | None:
    """Return the masks of each image, and the class of each mask by its key; None if files are not named by class.

    The name of the class is a folder above the masks (`masks/cat/1.png`), the end of the file name (`1_cat.png`), or
    the file name in a folder for each image (`1/cat.png`). All masks must be named in the same way.
    """
    for match in (_match_by_folder, _match_by_ending, _match_by_name):
        hits = match(images, masks)
        if hits is None or not _are_classes(hits.values()):
            continue
        masks_by_image: dict[str, list[str]] = defaultdict(list)
        classes = {key: name for key, (_, name) in hits.items()}
        for key, (image, _) in hits.items():
            masks_by_image[image].append(key)
        ordered = {image: sorted(keys, key=lambda key: classes[key]) for image, keys in masks_by_image.items()}
        without_masks = [image.key for image in images if image.key not in masks_by_image]
        return Matches(ordered, without_masks), classes
    return None


def _are_classes(hits: Iterable[ImageAndClass]) -> bool:
    """Return whether names are plausible classes: 2 to 64, each with several images and one mask per image."""
    images_of: dict[str, list[str]] = defaultdict(list)
    for image, name in hits:
        images_of[name].append(image)
    has_duplicates = len({fold(name) for name in images_of}) < len(images_of)
    decoys = [name for name in images_of if is_decoy_folder(name) or is_decoy_name(name) or name.isdigit()]
    is_once_per_image = all(len(set(images)) == len(images) >= MIN_IMAGES for images in images_of.values())
    return 2 <= len(images_of) <= MAX_CLASSES and is_once_per_image and not has_duplicates and not decoys


def _match_by_folder(images: Sequence[File], masks: Sequence[File]) -> dict[str, ImageAndClass] | None:
    image_keys = {(image.place, fold(image.stem)): image.key for image in images}
    hits: dict[str, ImageAndClass] = {}
    for mask in masks:
        folder_splits = [(mask.place[:n] + mask.place[n + 1 :], mask.place[n]) for n in range(len(mask.place))]
        matches = [(image_keys.get((place, fold(mask.stem))), name) for place, name in folder_splits]
        matches = [(image, name) for image, name in matches if image is not None]
        if len(matches) != 1:
            return None
        image, name = matches[0]
        spellings = [part for part in PurePosixPath(mask.key).parts[:-1] if fold(part) == name]
        hits[mask.key] = image, [name, *spellings][-1]
    return hits


def _match_by_ending(images: Sequence[File], masks: Sequence[File]) -> dict[str, ImageAndClass] | None:
    image_keys = {(image.place, fold(image.stem)): image.key for image in images}
    hits: dict[str, ImageAndClass] = {}
    for mask in masks:
        gaps = reversed([*_SEPARATORS.finditer(mask.stem)])
        pairs = ((image_keys.get((mask.place, fold(mask.stem[: gap.start()]))), mask.stem[gap.end() :]) for gap in gaps)
        image, ending = next(((image, ending) for image, ending in pairs if image), ("", ""))
        name = _class_name(ending)
        if not image or not name:
            return None
        hits[mask.key] = image, name
    return hits


def _match_by_name(images: Sequence[File], masks: Sequence[File]) -> dict[str, ImageAndClass] | None:
    keys_by_place: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for image in images:
        for place in {image.place, (*image.place, fold(image.stem))}:
            keys_by_place[place].append(image.key)
    hits: dict[str, ImageAndClass] = {}
    for mask in masks:
        keys, name = keys_by_place.get(mask.place, []), _class_name(mask.stem)
        if len(keys) != 1 or not mask.place or not name:
            return None
        hits[mask.key] = keys[0], name
    return hits


def _class_name(text: str) -> str:
    """Return a name without the words that mean "mask"."""
    return " ".join(word for word in _SEPARATORS.split(text) if word and not re.fullmatch(TOKENS, word, re.IGNORECASE))
