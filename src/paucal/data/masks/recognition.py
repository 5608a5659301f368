"""Separates the image files of a set from its mask files, so that masks are not used as photographs."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from paucal.data.decode import UnreadableImage
from paucal.data.images import ImageSet, evenly_spaced
from paucal.data.masks.mask_files import pack_colours
from paucal.data.masks.matching import NormalisedFile, match_masks_by_name
from paucal.data.masks.naming import (
    MASK_WORDS,
    ends_in_mask_words,
    folder_role,
    image_bases,
    parse_mask_name,
    parse_numbered_name,
    without_suffix,
)
from paucal.data.sources.folder import find_images
from paucal.data.sources.locating import fold_name
from paucal.data.splits.part_names import split_among_words
from paucal.data.stores import Store
from paucal.types import UserError
from paucal.wording import counted, was_or_were

MIN_NAMED_FRACTION = 0.1  # smallest fraction of files named like masks for which the names are not a coincidence
SAMPLED_NAMES = 4096  # largest number of file names that are checked for words such as "mask"
MAX_READ_FILES = 5  # maximum number of files per folder, or of masks per set, whose colours are counted
MIN_PHOTO_COLOURS = 256  # photographs have more colours than this
MAX_MASK_COLOURS = 32  # maximum number of colours in a mask whose folder has no name for masks
_WORD = re.compile(rf"(?:^|[\W_])(?:{MASK_WORDS})(?:$|[\W_]|\d)", re.IGNORECASE)
_JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")


@dataclass(frozen=True)
class ImageAndMaskFiles:
    """The image files and the mask files of a set, separated by their names."""

    images: tuple[NormalisedFile, ...]
    masks: tuple[NormalisedFile, ...]
    others: tuple[str, ...] = ()  # keys of labels of another kind, as in VOC's `SegmentationObject`


def separate_images_and_masks(keys: Sequence[str]) -> ImageAndMaskFiles:
    """Separate image files from mask files by the names of their folders, or else by file names."""
    keys_by_content: dict[str, list[str]] = {"image": [], "mask": [], "other": [], "": []}
    for key in keys:
        contents = (folder_role(name).content for name in reversed(PurePosixPath(key).parts[:-1]))
        keys_by_content[next(filter(None, contents), "")].append(key)  # the innermost folder with a known content
    images, masks, others, unknown = (keys_by_content[content] for content in ("image", "mask", "other", ""))
    if not masks:
        masks = [key for key in unknown if any(map(ends_in_mask_words, PurePosixPath(key).parts[:-1]))]
        unknown = sorted(set(unknown) - set(masks))
    if not masks and not others:
        return _separate_by_file_names(keys)
    image_files = tuple(_to_file(key, single_word=not images) for key in images or unknown)
    return ImageAndMaskFiles(image_files, tuple(map(_to_file, masks)), tuple(others))


def files_of_two_folders(images: Path, masks: Path) -> ImageAndMaskFiles:
    """Return the images and masks of two folders; the folders may be equal, or one may be inside the other."""
    if images.resolve() == masks.resolve():
        return _separate_by_file_names(find_images(images))
    groups = []
    for folder, other in ((images, masks), (masks, images)):
        keys, inner = find_images(folder), other.resolve()
        if inner.is_relative_to(folder.resolve()):
            keys = [key for key in keys if not (folder / key).resolve().is_relative_to(inner)]
        groups.append(tuple(map(_to_file, keys)))
    return ImageAndMaskFiles(*groups)


def _separate_by_file_names(keys: Sequence[str]) -> ImageAndMaskFiles:
    files = [_to_file(key, all_folders=True) for key in keys]
    bases = {(file.folders, fold_name(name)): file for file in files for name in (*image_bases(file.stem), file.stem)}
    masks = []
    for file in files:
        names = (*parse_mask_name(file.stem, strict=True), *parse_numbered_name(file.stem, strict=True))
        image_names = {fold_name(base) for name in names for base in (name.base, without_suffix(name.base))}
        if any(bases.get((file.folders, base), file) is not file for base in image_names):
            masks.append(file)
    if not masks:  # `x.png` may be the mask of `x.jpg`, if the set consists of such pairs
        pairs: dict[tuple[tuple[str, ...], str], list[NormalisedFile]] = defaultdict(list)
        for file in files:
            pairs[file.folders, fold_name(file.stem)].append(file)
        if all(len(pair) == 2 for pair in pairs.values()):
            others = [[file for file in pair if not file.key.lower().endswith(_JPEG)] for pair in pairs.values()]
            masks = [other for (other,) in others] if all(len(group) == 1 for group in others) else []
    mask_keys = {file.key for file in masks}
    images = tuple(_to_file(file.key) for file in files if file.key not in mask_keys)
    return ImageAndMaskFiles(images, tuple(_to_file(file.key) for file in files if file.key in mask_keys))


def find_folders_by_colours(keys: Sequence[str], store: Store) -> tuple[str, str] | None:
    """Return the folder of photographs and the folder of masks, told apart by their numbers of colours.

    The result is None unless the set consists of two folders with the same file names and image sizes, and the images
    of one folder have many colours and those of the other few.
    """
    files_by_folder: dict[str, dict[str, int]] = {}
    for index, key in enumerate(keys):
        folder, _, path = key.partition("/")
        files_by_folder.setdefault(folder, {})[str(PurePosixPath(path).with_suffix("")) if path else ""] = index
        if len(files_by_folder) > 2:
            return None
    folders = list(files_by_folder)
    if len(folders) != 2 or files_by_folder[folders[0]].keys() != files_by_folder[folders[1]].keys():
        return None
    names = sorted(files_by_folder[folders[0]])
    if 2 * len(names) != len(keys) or "" in names:
        return None
    sampled = [names[int(index)] for index in evenly_spaced(len(names), MAX_READ_FILES)]
    try:
        images = [[np.asarray(store.read(files_by_folder[folder][name])) for name in sampled] for folder in folders]
    except UnreadableImage:
        return None
    if any(first.shape[:2] != second.shape[:2] for first, second in zip(*images, strict=True)):
        return None
    colours = [[len(np.unique(pack_colours(image))) for image in folder_images] for folder_images in images]
    for photos, masks in ((0, 1), (1, 0)):
        if min(colours[photos]) > MIN_PHOTO_COLOURS and max(colours[masks]) <= MAX_MASK_COLOURS:
            return folders[photos], folders[masks]
    return None


def _to_file(key: str, single_word: bool = False, all_folders: bool = False) -> NormalisedFile:
    """Return the `NormalisedFile` at a path.

    With `single_word`, one word of a folder's name, such as "train", is enough to declare the split. With
    `all_folders`, the file's folders include folders named after images or masks.
    """
    path = PurePosixPath(key)
    roles = [(name, folder_role(name)) for name in path.parts[:-1]]
    folders = [role.part or ("" if role.content else fold_name(name)) for name, role in roles]
    part = next((role.part for _, role in roles if role.part), "")
    if single_word and not part:
        part = next((word_part for name, _ in roles if (word_part := split_among_words(name))), "")
    stem = unicodedata.normalize("NFC", path.stem)
    return NormalisedFile(key, path.parts[:-1] if all_folders else tuple(name for name in folders if name), stem, part)


@dataclass(frozen=True)
class MasksInSet:
    """Masks that a set of images contains."""

    keys: frozenset[str]
    example: tuple[str, str] = ("", "")  # keys of an image and of its mask; empty if no names match

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
    if not are_folders_enough:
        if not are_matched:
            return None
        indices = [index for index, key in enumerate(keys) if key in mask_keys]
        for index in indices[:: max(1, len(indices) // MAX_READ_FILES)][:MAX_READ_FILES]:
            with suppress(UnreadableImage):
                if len(np.unique(pack_colours(np.asarray(store.read(index))))) > MIN_PHOTO_COLOURS:
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
    """Return whether the names of the folders, or of a sample of the files, suggest masks."""
    folders = {key.rpartition("/")[0] for key in keys}
    if any(map(_WORD.search, folders)):
        return True
    if any(_has_content(f"{folder}/", content) for folder in folders for content in ("mask", "other")):
        return True
    sample = [keys[int(index)] for index in evenly_spaced(len(keys), SAMPLED_NAMES)]
    n_named = sum(_WORD.search(key.rpartition("/")[2].rpartition(".")[0]) is not None for key in sample)
    return n_named >= MIN_NAMED_FRACTION / 2 * len(sample)


def _has_content(key: str, content: str) -> bool:
    """Return whether a file's folders have this `FolderRole.content`; a folder named only after a split has images."""
    roles = [folder_role(name) for name in PurePosixPath(key.rpartition("/")[0]).parts]
    default = "image" if any(role.part for role in roles) else ""
    return next((role.content for role in reversed(roles) if role.content), default) == content
