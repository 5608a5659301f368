"""Pairs of images and masks, found in the folder layouts and naming schemes of published sets."""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from paucal.data.decode import UnreadableImage
from paucal.data.images import evenly_spaced
from paucal.data.masks.by_class import match_masks_by_class
from paucal.data.masks.mask_files import pack_colours
from paucal.data.masks.mask_table import is_mask_table, read_mask_table
from paucal.data.masks.matching import Matches, NormalisedFile, describe_left_out, match_masks_by_name
from paucal.data.masks.naming import (
    ends_in_mask_words,
    folder_role,
    image_bases,
    parse_mask_name,
    parse_numbered_name,
    without_suffix,
)
from paucal.data.masks.panoptic import PANOPTIC_NAME, draw_panoptic
from paucal.data.masks.part_lists import read_part_lists
from paucal.data.masks.unpacking import unpack
from paucal.data.sources.archive import is_archive
from paucal.data.sources.folder import find_images
from paucal.data.sources.locating import fold_name
from paucal.data.splits.part_names import split_among_words
from paucal.data.stores import FileStore, Store
from paucal.types import NoLabelsError, UserError
from paucal.wording import counted

_SAMPLED_PAIRS = 5  # number of pairs of an image and a mask whose colours are counted
MAX_MASK_COLOURS, MIN_PHOTO_COLOURS = 32, 256  # number of colours in a file: masks have at most 32, photos above 256
_JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")


@dataclass(frozen=True)
class ImageMaskPair:
    """An image and its masks.

    Attributes:
        key: Path of the image relative to the root of the images, with forward slashes.
        masks: Mask files of the image; several masks are joined.
        part: "train", "val" or "test", as declared by folders or lists; "" if not declared.
        classes: Class that each mask file marks; empty if the values in the files give the classes.
    """

    key: str
    masks: tuple[Path, ...]
    part: str = ""
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageMaskPairs:
    """All images of a set that have masks.

    Attributes:
        root: Folder to which the keys are relative.
        pairs: Images with their masks, sorted by key.
        notes: Sentences for the user on the declared split and on files that are left out.
    """

    root: Path
    pairs: tuple[ImageMaskPair, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ImageAndMaskFiles:
    """The image files and the mask files of a set, separated by their names.

    `others` are keys of labels of another kind, such as files in VOC's `SegmentationObject` and COCO's
    `panoptic_train2017`.
    """

    images: tuple[NormalisedFile, ...]
    masks: tuple[NormalisedFile, ...]
    others: tuple[str, ...] = ()


def find_pairs(data: Path, images: Path | None = None, masks: Path | None = None) -> ImageMaskPairs:
    """Find images and their masks in a folder, or in two folders.

    Args:
        data: Folder with a folder of images and a folder of masks, either at the top (`images/`, `masks/`, perhaps with
            folders for train, val and test inside) or in the folder of each split (`train/images/`, `train/masks/`, or
            `train/`, `trainannot/`). The folder may also contain images and masks side by side (`x.jpg`, `x_mask.png`).
            A zip or tar file of such a folder, or a table with a column of images and a column of masks, is also
            supported.
        images: Folder of the images. If `images` and `masks` are given, `data` is not used.
        masks: Folder of the masks.
    """
    if (images is None) != (masks is None):
        raise UserError(
            "--images and --masks must be given together: give both, or a folder that contains images and masks."
        )
    if images is None or masks is None:
        if data.is_file() and is_archive(data):
            folder, notes = unpack(data)
            pairs = find_pairs(folder)
            return replace(pairs, notes=(*pairs.notes, *notes))
        if is_mask_table(data):
            table = read_mask_table(data)
            return ImageMaskPairs(table.root, tuple(ImageMaskPair(*row) for row in sorted(table.rows)), table.notes)
        _require_folder(data, "DATA")
        panoptic, notes = draw_panoptic(data)
        if panoptic:
            drawn_pairs = tuple(ImageMaskPair(key, (mask,), part) for key, mask, part in sorted(panoptic))
            return ImageMaskPairs(data, drawn_pairs, (f"the masks are drawn from {PANOPTIC_NAME}", *notes))
        keys = find_images(data)
        files = separate_images_and_masks(keys)
        if not files.masks and (folders := find_folders_by_colours(keys, FileStore(data.resolve(), keys))):
            image_folder, mask_folder = folders
            pairs = find_pairs(data, data / image_folder, data / mask_folder)
            note = f"the files of {mask_folder} have few colours, and are used as masks of the images in {image_folder}"
            return replace(pairs, notes=(note, *pairs.notes))
        if not files.images or not files.masks:
            raise NoLabelsError(
                f"DATA: {str(data)!r} contains no {'masks' if files.images else 'images'}: expected a folder of "
                "images (images, JPEGImages, ...) and a folder of masks (masks, labels, annotations, ...) with files "
                "of the same names, or masks beside their images (NAME_mask.png). For other folder names, give "
                "--images and --masks."
            )
        return _match_and_split(data, data, files, [data])
    for flag, folder in (("--images", images), ("--masks", masks)):
        _require_folder(folder, flag)
    return _match_and_split(images, masks, _files_of_two_folders(images, masks), [images, images.resolve().parent])


def separate_images_and_masks(keys: Sequence[str]) -> ImageAndMaskFiles:
    """Separate image files from mask files by the names of their folders, or else by file names."""
    keys_by_content: dict[str, list[str]] = {"image": [], "mask": [], "other": [], "": []}
    for key in keys:
        contents = (folder_role(name).content for name in reversed(PurePosixPath(key).parts[:-1]))
        keys_by_content[next(filter(None, contents), "")].append(key)  # content of the innermost folder that tells it
    images, masks, others, unknown = (keys_by_content[content] for content in ("image", "mask", "other", ""))
    if not masks:
        masks = [key for key in unknown if any(map(ends_in_mask_words, PurePosixPath(key).parts[:-1]))]
        unknown = sorted(set(unknown) - set(masks))
    if not masks and not others:
        return _separate_by_file_names(keys)
    image_files = tuple(_to_file(key, single_word=not images) for key in images or unknown)
    return ImageAndMaskFiles(image_files, tuple(map(_to_file, masks)), tuple(others))


def _files_of_two_folders(images: Path, masks: Path) -> ImageAndMaskFiles:
    """Return the images and masks of two folders; the folders may be equal, or one may be inside the other."""
    if images.resolve() == masks.resolve():
        return _separate_by_file_names(find_images(images))
    return ImageAndMaskFiles(_files_except(images, masks), _files_except(masks, images))


def _files_except(folder: Path, other: Path) -> tuple[NormalisedFile, ...]:
    """Return the files of a folder; if `other` is a subfolder, without its files."""
    keys, inner = find_images(folder), other.resolve()
    if inner.is_relative_to(folder.resolve()):
        keys = [key for key in keys if not (folder / key).resolve().is_relative_to(inner)]
    return tuple(map(_to_file, keys))


def _separate_by_file_names(keys: Sequence[str]) -> ImageAndMaskFiles:
    files = [_to_file(key, all_folders=True) for key in keys]
    bases = {(file.folders, fold_name(name)): file for file in files for name in (*image_bases(file.stem), file.stem)}
    masks = []
    for file in files:
        names = (*parse_mask_name(file.stem, strict=True), *parse_numbered_name(file.stem, strict=True))
        image_names = {fold_name(base) for name in names for base in (name.base, without_suffix(name.base))}
        if any(bases.get((file.folders, base), file) is not file for base in image_names):
            masks.append(file)
    mask_keys = {file.key for file in masks or _find_masks_beside_jpegs(files)}
    images = tuple(_to_file(file.key) for file in files if file.key not in mask_keys)
    return ImageAndMaskFiles(images, tuple(_to_file(file.key) for file in files if file.key in mask_keys))


def _find_masks_beside_jpegs(files: Sequence[NormalisedFile]) -> list[NormalisedFile]:
    """Return the masks of a set in which `x.png` is the mask of `x.jpg`; an empty list if the set has other files."""
    pairs: dict[tuple[tuple[str, ...], str], list[NormalisedFile]] = defaultdict(list)
    for file in files:
        pairs[file.folders, fold_name(file.stem)].append(file)
    mask_files = [[file for file in pair if not file.key.lower().endswith(_JPEG)] for pair in pairs.values()]
    are_pairs = all(len(pair) == 2 and len(masks) == 1 for pair, masks in zip(pairs.values(), mask_files, strict=True))
    return [masks[0] for masks in mask_files] if are_pairs else []


def find_folders_by_colours(keys: Sequence[str], store: Store) -> tuple[str, str] | None:
    """Return the folder of photographs and the folder of masks, if a set consists of two such folders, else None.

    The folders may have any names. The files of the two folders must have the same names and image sizes. Masks are
    recognised by their small number of colours.
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
    sampled = [names[int(index)] for index in evenly_spaced(len(names), _SAMPLED_PAIRS)]
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
    """Return the `File` of a key.

    With `single_word`, one word of a folder's name, such as "train", is enough to declare the split. With
    `all_folders`, `File.folders` includes folders named after images or masks.
    """
    path = PurePosixPath(key)
    roles = [(name, folder_role(name)) for name in path.parts[:-1]]
    folders = [role.part or ("" if role.content else fold_name(name)) for name, role in roles]
    part = next((role.part for _, role in roles if role.part), "")
    if single_word and not part:
        part = next((word_part for name, _ in roles if (word_part := split_among_words(name))), "")
    stem = unicodedata.normalize("NFC", path.stem)
    return NormalisedFile(key, path.parts[:-1] if all_folders else tuple(name for name in folders if name), stem, part)


def _match_and_split(root: Path, mask_root: Path, files: ImageAndMaskFiles, bases: Iterable[Path]) -> ImageMaskPairs:
    """Match images to masks, and read the split of each image from folder names or from lists.

    The keys of images are relative to `root`, and the keys of masks to `mask_root`. Lists of splits are searched in the
    folders `bases` and in the folders above images and masks.
    """
    matches, classes = _match_masks(files)
    if not matches.masks:
        image, mask = (group[0].key if group else "missing" for group in (files.images, files.masks))
        raise UserError(
            f"none of the {counted(len(files.images), 'image')} has a mask with its name. The first image is "
            f"{image!r}, and the first mask is {mask!r}: give each mask the name of its image, except for the suffix."
        )
    image_folders = {_path_above_named_folder(file.key) for file in files.images} - {""}
    mask_folders = {_path_above_named_folder(file.key, n_more=1) for file in files.masks} - {""}
    bases = [*bases, *(root / path for path in sorted(image_folders))]
    bases += [mask_root / path for path in sorted(mask_folders)]
    parts, notes = _assign_splits(matches, files, bases)
    pairs = []
    for key in sorted(matches.masks.keys() & parts.keys()):
        masks = matches.masks[key]
        mask_classes = tuple(classes[mask] for mask in masks if classes)
        pairs.append(ImageMaskPair(key, tuple(mask_root / mask for mask in masks), parts[key], mask_classes))
    return ImageMaskPairs(root, tuple(pairs), (*matches.describe(bool(classes)), *notes))


def _match_masks(files: ImageAndMaskFiles) -> tuple[Matches, dict[str, str]]:
    """Return the masks of each image and, if each class has its own mask files, the class of each mask."""
    problem: UserError | None = None
    try:
        matches = match_masks_by_name(files.images, files.masks)
    except UserError as error:
        problem, matches = error, Matches()
    if matches.masks:
        return matches, {}
    class_match = match_masks_by_class(files.images, files.masks)
    if class_match is None and problem is not None:
        raise problem
    return class_match or (matches, {})


def _path_above_named_folder(key: str, n_more: int = 0) -> str:
    """Return the path above the outermost folder named after images or masks, plus the next `n_more` folders."""
    parts = PurePosixPath(key).parts[:-1]
    index = next((index + n_more for index, name in enumerate(parts) if folder_role(name).content), len(parts))
    return "/".join(parts[:index])


def _assign_splits(
    matches: Matches, files: ImageAndMaskFiles, bases: Iterable[Path]
) -> tuple[dict[str, str], list[str]]:
    """Return the split of each image that has masks ("" if not declared), and notes on images that are not listed."""
    folders = {file.key: file.part for file in files.images if file.key in matches.masks}
    lists = read_part_lists(bases, [file.key for file in files.images])
    notes = list(lists.notes)
    if lists.parts:
        for key, part in folders.items():
            if part and lists.parts.get(key, part) != part:
                raise UserError(
                    f"{key!r} is in the folder for {part}, but in the list for {lists.parts[key]}: correct the folder "
                    "or the list, or remove the lists."
                )
        unlisted = [key for key in folders if key not in lists.parts]
        if unlisted and lists.unmatched_lines:
            raise UserError(
                f"the split lists name {lists.unmatched_lines[0]}, but there is no such image, and the lists "
                f"omit the image {unlisted[0]!r}: correct or remove the lists."
            )
        notes += describe_left_out(unlisted, "image that is in no list", "images that are in no list")
        return {key: lists.parts[key] for key in folders if key in lists.parts}, notes
    without_part = [key for key, part in folders.items() if not part]
    if without_part and len(without_part) < len(folders):
        notes.append(
            f"{counted(len(without_part), 'image is', 'images are')} outside of the folders for train, val and test, "
            f"so these folders do not declare a split: {', '.join(without_part[:3])}"
        )
        folders = dict.fromkeys(folders, "")
    return folders, notes


def _require_folder(path: Path, flag: str) -> None:
    if not path.is_dir():
        problem = "is not a folder" if path.exists() else "does not exist"
        error_class = NoLabelsError if path.exists() else UserError  # a file may have labels of another kind
        raise error_class(f"{flag}: {str(path)!r} {problem}; give a folder of image files.")
