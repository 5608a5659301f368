"""Matches masks to images by the names of files and folders, also in sets with a mask file for each class."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePosixPath

from paucal.data.masks.naming import (
    MASK_WORDS,
    NUMBERED_NAME,
    MaskName,
    image_bases,
    is_decoy_folder,
    is_decoy_name,
    name_without_mask_words,
    parse_mask_name,
    parse_numbered_name,
    shorter_names,
    without_suffix,
)
from paucal.data.sources.locating import fold_name
from paucal.data.splits.part_names import PART_BY_WORD
from paucal.types import UserError
from paucal.wording import counted, join_first_few, left_out_notes

MAX_NAMES_SHOWN = 5  # maximum number of class names in a message
FOLDER = "folder"  # `MaskName.kind` of masks in a folder that belongs to one image
# If each class has its own mask files: maximum number of classes, and minimum number of images with a mask of a class.
MAX_CLASS_NAMES, MIN_CLASS_IMAGES = 64, 2
_SEPARATORS = re.compile(r"[\s_.,+~-]+")
Folders = tuple[str, ...]
ImageAndName = tuple["NormalisedFile", MaskName]  # the image of a mask, and the parsed name of the mask
ImageAndClass = tuple[str, str]  # key of an image, name of a class


@dataclass(frozen=True)
class NormalisedFile:
    """An image or mask file, with its name and folders in normalised form, so that files can be compared."""

    key: str  # path relative to the searched folder, with forward slashes
    folders: Folders  # folded names of the folders in `key`, without folders named after images or masks
    stem: str  # file name without suffix, in Unicode's form NFC
    part: str = ""  # "train", "val" or "test", if a folder is named after a split


@dataclass(frozen=True)
class Matches:
    """Keys of the masks of each image by the key of the image, and keys of files without a match."""

    masks: dict[str, list[str]] = field(default_factory=dict)
    unmatched_images: list[str] = field(default_factory=list)
    unmatched_masks: list[str] = field(default_factory=list)
    decoys: list[str] = field(default_factory=list)  # files named like coloured masks for display, or instance masks

    def describe(self, by_class: bool = False) -> list[str]:
        """Return notes on files that are left out and, unless each class has its own files, on joined masks."""
        notes = [
            *describe_left_out(self.unmatched_images, "image without a mask", "images without masks"),
            *describe_left_out(self.unmatched_masks, "mask without an image", "masks without images"),
            *describe_left_out(self.decoys, "mask of another kind", "masks of another kind"),
        ]
        keys_with_several = [key for key, masks in self.masks.items() if len(masks) > 1]
        if keys_with_several and not by_class:
            text = f"{counted(len(keys_with_several), 'image has', 'images have')} several masks, which are joined"
            examples = f"{join_first_few(self.masks[keys_with_several[0]])} of {keys_with_several[0]}"
            notes.append(f"{text}: a pixel is foreground if any mask marks it ({examples})")
        return notes


def match_masks_by_name(images: Sequence[NormalisedFile], masks: Sequence[NormalisedFile]) -> Matches:
    """Find the masks of each image by file names and folder names."""
    return _Matching(images, masks).run()


class _Matching:
    """A search that applies naming rules from the most to the least certain, and records which images have masks."""

    def __init__(self, images: Sequence[NormalisedFile], masks: Sequence[NormalisedFile]) -> None:
        self._images, self._masks = images, masks
        self._index = _Index((image.folders, image) for image in images)
        self._index_without_folders = _Index(((), image) for image in images)
        self._assigned: dict[str, list[tuple[NormalisedFile, MaskName]]] = {}

    def run(self) -> Matches:
        name_rules = (self._find_exact, self._find_without_words, self._find_numbered, self._find_by_name_and_number)
        remaining = self._search_other_folders(self.search((*name_rules, self._find_in_folder)))
        self._refuse_files_named_after_classes()
        decoys = [mask for mask in remaining if self._is_decoy(mask)]
        unmatched = [mask for mask in remaining if not self._is_decoy(mask)]
        for mask in unmatched:
            for base in shorter_names(mask.stem):
                image = self._index.find(mask.folders, base, mask) or self._index_without_folders.find_unique(base)
                if image is not None and image.key in self._assigned:
                    first = self._assigned[image.key][0][0]
                    raise UserError(
                        f"the mask {mask.key!r} is named after {image.key!r}, which has the mask {first.key!r}: number "
                        f"these masks if they mark objects of one class ({base}_mask_1, {base}_mask_2); otherwise move "
                        "one mask out of the folder."
                    )
        self._refuse_appended_numbers(unmatched)
        matched = [image for image in self._images if image.key in self._assigned]
        masks_by_image = {image.key: self._select_masks(image, decoys) for image in matched}
        unmatched_images = [image.key for image in self._images if image.key not in self._assigned]
        decoy_keys = sorted(mask.key for mask in decoys)  # computed last, since `_select_masks` adds decoys
        return Matches(masks_by_image, unmatched_images, [mask.key for mask in unmatched], decoy_keys)

    def search(self, finders: Iterable[Callable[[NormalisedFile], ImageAndName | None]]) -> list[NormalisedFile]:
        """Assign masks to images by applying each finder in turn; return the masks that remain without an image."""
        remaining = list(self._masks)
        for find in finders:
            results = [(mask, find(mask)) for mask in remaining]  # all masks are looked up before any is assigned
            for mask, image_and_name in results:
                if image_and_name is not None:
                    self._assigned.setdefault(image_and_name[0].key, []).append((mask, image_and_name[1]))
            remaining = [mask for mask, image_and_name in results if image_and_name is None]
        return remaining

    def _find_exact(self, mask: NormalisedFile) -> ImageAndName | None:
        image = self._index.find(mask.folders, mask.stem, mask)
        return image and (image, MaskName(mask.stem))

    def _find_without_words(self, mask: NormalisedFile) -> ImageAndName | None:
        """Find the image after removing words for masks from the mask's name, and words for images from image names.

        For example, the masks `a_mask` and `a.jpg` belong to the image `a`, the mask `a_mask` also to an image `a_sat`,
        and the masks `mask_1` and `1` to the image `img_1`.
        """
        return self._find_first(mask, [*parse_mask_name(mask.stem), MaskName(mask.stem)])

    def _find_numbered(self, mask: NormalisedFile) -> ImageAndName | None:
        """Find the image `a`, or an image `a_1` without a mask, for the mask `a_mask_1`; refuse it if both exist."""
        matches = [self._find_first(mask, [name]) for name in parse_numbered_name(mask.stem)]
        candidates = [pair for pair in matches if pair and (pair[1].number or pair[0].key not in self._assigned)]
        if len({image.key for image, _ in candidates}) > 1:
            raise UserError(
                f"the mask {mask.key!r} may belong to {candidates[0][0].key!r} or to {candidates[-1][0].key!r}: rename "
                "the mask so that its name begins with the full name of its image."
            )
        return candidates[0] if candidates else None

    def _find_by_name_and_number(self, mask: NormalisedFile) -> ImageAndName | None:
        """Find the image `a` for the masks `a_1` and `a_2`, if previous rules have found no images."""
        match = NUMBERED_NAME.fullmatch(mask.stem)
        return None if match is None or self._assigned else self._find_first(mask, [MaskName(match[1], "", match[2])])

    def _find_in_folder(self, mask: NormalisedFile) -> ImageAndName | None:
        """Find the image of a folder of masks: the only image in the folder, or the image with the folder's name.

        The image `7/images/7.png` is found for all masks `7/masks/*`, and the image `7.png` for all masks `7/*`.
        """
        if not mask.folders or mask.folders[-1] in PART_BY_WORD or self._is_decoy(mask):
            return None
        images = self._index.by_folder.get(mask.folders, [])
        image = images[0] if len(images) == 1 else self._index.find(mask.folders[:-1], mask.folders[-1], mask)
        if image is None or any(not name.number for _, name in self._assigned.get(image.key, ())):
            return None
        return image, MaskName(image.stem, FOLDER, fold_name(mask.stem))

    def _search_other_folders(self, masks: Sequence[NormalisedFile]) -> list[NormalisedFile]:
        """Find images for masks whose folders are nested differently, by file names that only one image has."""
        names = Counter(fold_name(image.stem) for image in self._images)
        flat_images = [replace(image, folders=()) for image in self._images if names[fold_name(image.stem)] == 1]
        inner = _Matching(flat_images, [replace(mask, folders=()) for mask in masks if not self._is_decoy(mask)])
        name_rules = [inner._find_exact, inner._find_without_words, inner._find_numbered]
        inner.search(name_rules if self._assigned else [*name_rules, inner._find_by_name_and_number])
        folders_by_mask = {mask.key: mask.folders for mask in self._masks}
        for key, masks_and_names in inner._assigned.items():
            all_masks = [mask for mask, _ in [*self._assigned.get(key, ()), *masks_and_names]]
            if len({folders_by_mask[mask.key] for mask in all_masks}) > 1:
                raise UserError(
                    f"{all_masks[0].key!r} and {all_masks[-1].key!r} are masks of {key!r} in two folders: join the "
                    "masks into one file for each image, with a value for each class, or give one folder with --masks."
                )
            self._assigned.setdefault(key, []).extend(masks_and_names)
        assigned = {mask.key for masks_and_names in inner._assigned.values() for mask, _ in masks_and_names}
        return [mask for mask in masks if mask.key not in assigned]

    def _find_first(self, mask: NormalisedFile, names: Iterable[MaskName]) -> ImageAndName | None:
        """Return the image of the first parsed name that belongs to an image, and this name."""
        for name in names:
            for base in dict.fromkeys((name.base, without_suffix(name.base))):
                for is_stripped in (False, True):
                    if image := self._index.find(mask.folders, base, mask, is_stripped):
                        return image, name
        return None

    def _is_decoy(self, mask: NormalisedFile) -> bool:
        return is_decoy_name(mask.stem) or any(is_decoy_folder(name) for name in mask.folders)

    def _refuse_appended_numbers(self, unmatched: Sequence[NormalisedFile]) -> None:
        """Raise a UserError if masks are named like images with a number appended (mask `a072` of image `a07`).

        The same number must be appended to the names of more than half of the images.
        """
        images = {(file.folders, fold_name(file.stem)): file for file in self._images if file.key in self._assigned}
        pairs_by_number: dict[str, list[tuple[NormalisedFile, NormalisedFile]]] = defaultdict(list)
        for mask in unmatched:
            for cut in range(1, len(mask.stem)):
                if mask.stem[cut:].isdigit() and (image := images.get((mask.folders, fold_name(mask.stem[:cut])))):
                    pairs_by_number[mask.stem[cut:]].append((mask, image))
        for number, pairs in pairs_by_number.items():
            if len(pairs) > max(1, len(images) / 2):
                mask, image = pairs[0]
                raise UserError(
                    f"the mask {mask.key!r} has no image of the same name. The names of {counted(len(pairs), 'mask')} "
                    f"consist of the name of an image (here {image.key!r}) and {number!r}. If this is another mask of "
                    f"the image, rename the mask to {image.stem}_mask_{number}; otherwise move masks without an image "
                    "out of the folder."
                )

    def _refuse_files_named_after_classes(self) -> None:
        """Refuse masks of one image that seem to be named after classes, such as `7/liver.png` and `7/spleen.png`."""
        images_by_name: dict[str, set[str]] = defaultdict(set)
        for key, masks_and_names in self._assigned.items():
            for mask, parsed in masks_and_names:
                if parsed.kind == FOLDER and (name := name_without_mask_words(mask.stem)):
                    images_by_name[name].add(key)
        names = sorted(name for name, keys in images_by_name.items() if len(keys) > 1)
        if len(names) > 1:
            listed_names = ", ".join(map(repr, names[:MAX_NAMES_SHOWN]))
            raise UserError(
                f"each image has a folder of masks whose names look like classes ({listed_names}): join these masks "
                "into one file for each image, with a value for each class."
            )

    def _select_masks(self, image: NormalisedFile, decoys: list[NormalisedFile]) -> list[str]:
        """Return the sorted keys of an image's masks.

        Of Cityscapes' masks, which have two codings, those in the coding that is not used are appended to `decoys`.
        """
        pairs = self._assigned[image.key]
        kinds = {name.kind for _, name in pairs}
        if len(kinds) > 1 and all(kind.endswith("ids") for kind in kinds):  # labelIds and labelTrainIds
            decoys += [mask for mask, name in pairs if "train" not in name.kind]
            pairs = [(mask, name) for mask, name in pairs if "train" in name.kind]
        pairs = sorted(pairs, key=lambda pair: (len(pair[1].number), pair[1].number, pair[0].key))
        names = {(name.kind, name.number) for _, name in pairs}
        if len(pairs) > 1 and (len(names) < len(pairs) or len({kind for kind, _ in names}) > 1):
            raise UserError(
                f"{pairs[0][0].key!r} and {pairs[1][0].key!r} are masks of one image, {image.key!r}: remove one mask, "
                "or number the masks if they mark objects of one class (NAME_mask_1, NAME_mask_2)."
            )
        return [mask.key for mask, _ in pairs]


class _Index:
    """Index of images by folder and file name, with and without words such as "image" in the name."""

    def __init__(self, images: Iterable[tuple[Folders, NormalisedFile]]) -> None:
        self._by_name: dict[tuple[Folders, str], list[NormalisedFile]] = defaultdict(list)
        self._by_stripped_name: dict[tuple[Folders, str], list[NormalisedFile]] = defaultdict(list)
        self.by_folder: dict[Folders, list[NormalisedFile]] = defaultdict(list)
        for folders, image in images:
            self.by_folder[folders].append(image)
            self._by_name[folders, fold_name(image.stem)].append(image)
            for base in image_bases(image.stem):
                self._by_stripped_name[folders, fold_name(base)].append(image)

    def find_unique(self, stem: str) -> NormalisedFile | None:
        """Return the only image with a name, with or without words such as "image", in an index without folders."""
        key = ((), fold_name(stem))
        images = self._by_name.get(key) or self._by_stripped_name.get(key, [])
        return images[0] if len(images) == 1 else None

    def find(
        self, folders: Folders, stem: str, mask: NormalisedFile, is_stripped: bool = False
    ) -> NormalisedFile | None:
        """Return the image in `folders` with the name `stem` or, if `is_stripped`, without words such as "image".

        If the names of several images differ only in case, the image with the same case as `stem` is returned. `mask`
        is the mask to name in the error message if there are several images.
        """
        images = (self._by_stripped_name if is_stripped else self._by_name).get((folders, fold_name(stem)), [])
        if len(images) > 1:
            images = [image for image in images if image.stem == stem] or images
        if len(images) > 1:
            raise UserError(
                f"the images {images[0].key!r} and {images[1].key!r} have the same name, but masks such as "
                f"{mask.key!r} are matched to images by name: rename one of the images and its mask."
            )
        return images[0] if images else None


def match_masks_by_class(
    images: Sequence[NormalisedFile], masks: Sequence[NormalisedFile]
) -> tuple[Matches, dict[str, str]] | None:
    """Match masks to images in a set with mask files for each class, and return the class of each mask by its key.

    The class may be the name of a folder above the masks (`masks/cat/1.png`), the end of the file name (`1_cat.png`),
    or the file name in a folder for each image (`1/cat.png`), in the same way for all masks. The result is None if
    masks are not named after classes.
    """
    image_keys = {(image.folders, fold_name(image.stem)): image.key for image in images}
    keys_by_folders: dict[Folders, list[str]] = defaultdict(list)
    for image in images:
        for folders in {image.folders, (*image.folders, fold_name(image.stem))}:
            keys_by_folders[folders].append(image.key)
    for find in (
        partial(_find_by_folder, image_keys=image_keys),
        partial(_find_by_ending, image_keys=image_keys),
        partial(_find_by_name, keys_by_folders=keys_by_folders),
    ):
        matches: dict[str, ImageAndClass] = {}
        for mask in masks:
            match = find(mask)
            if match is None:  # usually the first mask, since few sets name masks after classes
                break
            matches[mask.key] = match
        if len(matches) < len(masks) or not _are_plausible_classes(matches.values()):
            continue
        masks_by_image: dict[str, list[str]] = defaultdict(list)
        for key, (image_key, _) in sorted(matches.items(), key=lambda item: item[1][1]):
            masks_by_image[image_key].append(key)
        unmatched_images = [image.key for image in images if image.key not in masks_by_image]
        return Matches(dict(masks_by_image), unmatched_images), {key: name for key, (_, name) in matches.items()}
    return None


def _are_plausible_classes(pairs: Iterable[ImageAndClass]) -> bool:
    """Return whether the names in (image, name) pairs may be classes: 2 to 64 names, each once in several images."""
    images_by_name: dict[str, list[str]] = defaultdict(list)
    for image, name in pairs:
        images_by_name[name].append(image)
    has_similar_names = len({fold_name(name) for name in images_by_name}) < len(images_by_name)
    decoys = [name for name in images_by_name if is_decoy_folder(name) or is_decoy_name(name) or name.isdigit()]
    is_once_per_image = all(len(set(images)) == len(images) >= MIN_CLASS_IMAGES for images in images_by_name.values())
    return 2 <= len(images_by_name) <= MAX_CLASS_NAMES and is_once_per_image and not has_similar_names and not decoys


def _find_by_folder(mask: NormalisedFile, image_keys: Mapping[tuple[Folders, str], str]) -> ImageAndClass | None:
    folder_splits = [(mask.folders[:n] + mask.folders[n + 1 :], mask.folders[n]) for n in range(len(mask.folders))]
    matches = [(image_keys.get((folders, fold_name(mask.stem))), name) for folders, name in folder_splits]
    matches = [(image, name) for image, name in matches if image is not None]
    if len(matches) != 1:
        return None
    image, name = matches[0]
    spellings = [part for part in PurePosixPath(mask.key).parts[:-1] if fold_name(part) == name]
    return image, [name, *spellings][-1]


def _find_by_ending(mask: NormalisedFile, image_keys: Mapping[tuple[Folders, str], str]) -> ImageAndClass | None:
    splits = [(mask.stem[: gap.start()], mask.stem[gap.end() :]) for gap in _SEPARATORS.finditer(mask.stem)]
    pairs = ((image_keys.get((mask.folders, fold_name(base))), ending) for base, ending in reversed(splits))
    image, ending = next((pair for pair in pairs if pair[0]), ("", ""))
    name = _class_name(ending)
    return (image, name) if image and name else None


def _find_by_name(mask: NormalisedFile, keys_by_folders: Mapping[Folders, Sequence[str]]) -> ImageAndClass | None:
    keys, name = keys_by_folders.get(mask.folders, []), _class_name(mask.stem)
    return (keys[0], name) if len(keys) == 1 and mask.folders and name else None


def _class_name(text: str) -> str:
    """Return the class in a file name, or in the end of a file name: the text without words that mean "mask"."""
    words = filter(None, _SEPARATORS.split(text))
    return " ".join(word for word in words if not re.fullmatch(MASK_WORDS, word, re.IGNORECASE))


def describe_left_out(names: Sequence[str], singular: str, plural: str) -> list[str]:
    """Return a list with a sentence about files that are left out; the list is empty if `names` is empty."""
    return [f"{note}: {join_first_few(names)}" for note in left_out_notes(len(names), singular, plural)]
