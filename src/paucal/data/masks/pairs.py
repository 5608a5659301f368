"""Pairs of images and masks, found in the folder layouts and naming schemes of published sets, tables and archives."""

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from paucal.data.decoded.cache_folder import unpacked_archives_folder, usable_disk_bytes
from paucal.data.masks.matching import Matches, describe_left_out, match_masks_by_class, match_masks_by_name
from paucal.data.masks.naming import folder_role
from paucal.data.masks.panoptic import PANOPTIC_NAME, draw_panoptic
from paucal.data.masks.part_lists import read_part_lists
from paucal.data.masks.recognition import (
    ImageAndMaskFiles,
    files_of_two_folders,
    find_folders_by_colours,
    separate_images_and_masks,
)
from paucal.data.sources.archive import COMPRESSED_SUFFIXES, ArchiveStore, archive_entries, is_archive, shared_folder
from paucal.data.sources.folder import find_images
from paucal.data.sources.locating import leads_out, plain_path
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.sources.table_columns import (
    IMAGE_COLUMNS,
    SPLIT_COLUMNS,
    first_position,
    normalise_column_name,
    refuse_repeated_columns,
)
from paucal.data.sources.table_reading import TABLE_SUFFIXES, read_table
from paucal.data.splits.part_names import PART_BY_WORD
from paucal.data.stores import FileStore
from paucal.reading import is_regular
from paucal.types import NoLabelsError, UserError
from paucal.wording import counted, left_out_notes

MASK_COLUMNS = ("mask", "mask_path", "mask_file", "mask_name", "segmentation", "segmentation_path", "annotation_path")
# Suffixes of images, masks, lists of splits, lists of classes, and COCO's panoptic JSON files in archives.
UNPACKED_SUFFIXES = (*IMAGE_SUFFIXES, ".txt", ".csv", ".json")


@dataclass(frozen=True)
class ImageMaskPair:
    """An image and its masks."""

    key: str  # path of the image relative to the root of the images, with forward slashes
    masks: tuple[Path, ...]  # mask files of the image; several masks are joined
    part: str = ""  # split that folders or lists declare: "train", "val" or "test"; "" if not declared
    classes: tuple[str, ...] = ()  # class that each mask marks; empty if the values in the files give the classes


@dataclass(frozen=True)
class ImageMaskPairs:
    """All images of a set that have masks, sorted by their keys, which are relative to `root`."""

    root: Path
    pairs: tuple[ImageMaskPair, ...]
    notes: tuple[str, ...]  # notes on the declared split and on files that are left out


def find_pairs(data: Path, images: Path | None = None, masks: Path | None = None) -> ImageMaskPairs:
    """Find images and their masks in the folder `data`, or in the folders `images` and `masks` instead.

    `data` has a folder of images and a folder of masks, either at the top (`images/`, `masks/`, perhaps with folders
    for train, val and test inside) or in the folder of each split (`train/images/`, `train/masks/`, or `train/`,
    `trainannot/`), or images and masks side by side (`x.jpg`, `x_mask.png`). It may also be a zip or tar file of such
    a folder, or a table with a column of images and a column of masks.
    """
    if (images is None) != (masks is None):
        raise UserError(
            "--images and --masks must be given together: give both, or a folder that contains images and masks."
        )
    if images is None or masks is None:
        if data.is_file() and is_archive(data):
            folder, notes = _unpack(data)
            pairs = find_pairs(folder)
            return replace(pairs, notes=(*pairs.notes, *notes))
        if is_mask_table(data):
            return _read_mask_table(data)
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
    return _match_and_split(images, masks, files_of_two_folders(images, masks), [images, images.resolve().parent])


def _match_and_split(root: Path, mask_root: Path, files: ImageAndMaskFiles, bases: Iterable[Path]) -> ImageMaskPairs:
    """Match images to masks, and read the split of each image from folder names or from lists.

    The keys of images are relative to `root`, and the keys of masks to `mask_root`. Lists of splits are searched in the
    folders `bases` and in the folders above images and masks.
    """
    problem: UserError | None = None
    classes: dict[str, str] = {}  # class of each mask, if each class has its own mask files
    try:
        matches = match_masks_by_name(files.images, files.masks)
    except UserError as error:
        problem, matches = error, Matches()
    if not matches.masks:
        class_match = match_masks_by_class(files.images, files.masks)
        if class_match is None and problem is not None:
            raise problem
        matches, classes = class_match or (matches, {})
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
    parts, unmatched_lines, notes = read_part_lists(bases, [file.key for file in files.images])
    if parts:
        for key, part in folders.items():
            if part and parts.get(key, part) != part:
                raise UserError(
                    f"{key!r} is in the folder for {part}, but in the list for {parts[key]}: correct the folder or the "
                    "list, or remove the lists."
                )
        unlisted = [key for key in folders if key not in parts]
        if unlisted and unmatched_lines:
            raise UserError(
                f"the split lists name {unmatched_lines[0]}, but there is no such image, and the lists omit the image "
                f"{unlisted[0]!r}: correct or remove the lists."
            )
        notes += describe_left_out(unlisted, "image that is in no list", "images that are in no list")
        return {key: parts[key] for key in folders if key in parts}, notes
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


def is_mask_table(file: Path) -> bool:
    """Return whether a file is a table with a column of images and a column of masks."""
    if not file.is_file() or file.suffix.lower() not in TABLE_SUFFIXES:
        return False
    try:
        return _column_positions(read_table(file, 1).rows[0].cells) is not None
    except (UserError, OSError, IndexError):
        return False


def _read_mask_table(file: Path) -> ImageMaskPairs:
    """Read a table of images and masks; an image may have several masks, one in each row."""
    header, *rows = read_table(file).rows
    columns = _column_positions(header.cells)
    assert columns is not None
    image_column, mask_column, part_column = columns
    used_columns = [position for position in columns if position is not None]
    refuse_repeated_columns(file, list(map(normalise_column_name, header.cells)), used_columns)
    masks_and_part: dict[str, tuple[list[Path], str]] = {}
    n_without_mask = n_repeated = 0
    for row in rows:
        context = f"line {row.line} of {file}"
        if len(row.cells) <= max(image_column, mask_column, part_column or 0):
            raise UserError(
                f"{context} has {counted(len(row.cells), 'cell')}, but the first line has {len(header.cells)}: "
                "correct the line."
            )
        part = "" if part_column is None else row.cells[part_column].strip().lower()
        if part and part not in PART_BY_WORD:
            raise UserError(f"{context} has the split {part[:80]!r}, expected train, val or test: correct the line.")
        if not row.cells[mask_column].strip():
            n_without_mask += 1
            continue
        image, mask = (_resolve_path(row.cells[column], file, context) for column in (image_column, mask_column))
        masks, first_part = masks_and_part.setdefault(image, ([], PART_BY_WORD.get(part, "")))
        if first_part != PART_BY_WORD.get(part, ""):
            raise UserError(f"{context} puts {image!r} into a second split: put each image into one split.")
        if Path(mask) in masks:
            n_repeated += 1
        else:
            masks.append(Path(mask))
    if not masks_and_part:
        raise UserError(f"{file} contains no masks: fill in the column {header.cells[mask_column]!r}.")
    root = Path(os.path.commonpath([os.path.dirname(image) for image in masks_and_part]))
    notes = left_out_notes(n_without_mask, "image without a mask", "images without a mask")
    notes += left_out_notes(n_repeated, f"repeated row of {file.name}", f"repeated rows of {file.name}")
    pairs = [
        ImageMaskPair(Path(image).relative_to(root).as_posix(), tuple(masks), part)
        for image, (masks, part) in masks_and_part.items()
    ]
    return ImageMaskPairs(root, tuple(sorted(pairs, key=lambda pair: pair.key)), tuple(notes))


def _column_positions(cells: Sequence[str]) -> tuple[int, int, int | None] | None:
    """Return the positions of the columns of images, masks and splits; the last is None if there are no splits.

    The result is None unless there are a column of images and a column of masks.
    """
    column_names = list(map(normalise_column_name, cells))
    image, mask, part = (first_position(column_names, names) for names in (IMAGE_COLUMNS, MASK_COLUMNS, SPLIT_COLUMNS))
    return None if image is None or mask is None else (image, mask, part)


def _resolve_path(cell: str, file: Path, context: str) -> str:
    path = plain_path(cell)
    if leads_out(path) and not (os.path.isabs(path) and ".." not in path.split("/") and "\0" not in path):
        raise UserError(f"{context} has a path outside of the table's folder ({path[:80]!r}): correct the path.")
    absolute = os.path.join(os.path.abspath(file.parent), path)
    if not os.path.isfile(absolute):
        raise UserError(f"{context} names {path[:80]!r}, but there is no such file: correct the path.")
    return absolute


def _unpack(archive: Path) -> tuple[Path, tuple[str, ...]]:
    """Unpack an archive into the cache folder, unless it is there; return the folder, and notes on skipped files."""
    if archive.name.lower().endswith(COMPRESSED_SUFFIXES):
        raise UserError(f"{str(archive)!r} is compressed as a whole: unpack it, and give the folder.")
    stat = archive.resolve().stat()
    digest = hashlib.sha256(
        f"{archive.resolve()} {stat.st_size} {stat.st_mtime_ns} {UNPACKED_SUFFIXES}".encode()
    ).hexdigest()[:32]
    folder = unpacked_archives_folder() / digest
    listed_entries, notes = archive_entries(archive)
    entries = {entry.name.replace("\\", "/"): entry for entry in listed_entries}
    entries = {name: entry for name, entry in entries.items() if name.lower().endswith(UNPACKED_SUFFIXES)}
    base = shared_folder(list(entries), 1)
    sizes = {folder / name.removeprefix(base): entry.size for name, entry in entries.items()}
    if _is_complete(folder, sizes):
        return folder, notes
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    total, free_space = sum(entry.size for entry in entries.values()), usable_disk_bytes(folder.parent)
    if total > free_space:
        raise UserError(
            f"{str(archive)!r} contains {total / 2**30:.3g} GiB of images and masks, but only "
            f"{free_space / 2**30:.3g} GiB are free in the cache folder: unpack the archive elsewhere, and give the "
            "folder."
        )
    store = ArchiveStore(archive.resolve(), list(entries.values()))
    with TemporaryDirectory(dir=folder.parent, prefix="unfinished-", ignore_cleanup_errors=True) as target:
        for index, name in enumerate(entries):
            path = Path(target, name.removeprefix(base))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(store.source(index))
        if not _is_complete(folder, sizes):  # if complete, another process has unpacked the archive
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # another process may have finished in between
                os.replace(target, folder)
    if not _is_complete(folder, sizes):
        raise UserError(
            f"{str(archive)!r} cannot be unpacked into {folder}: unpack the archive into another folder yourself, and "
            "give that folder."
        )
    return folder, notes


def _is_complete(folder: Path, sizes: Mapping[Path, int]) -> bool:
    """Return whether all files exist with the expected sizes; some systems delete files that are unused for weeks."""
    return folder.is_dir() and all(is_regular(file) and file.stat().st_size == size for file, size in sizes.items())
