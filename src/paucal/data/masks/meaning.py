"""Classes of masks: the coding of the mask values, and the class names from tables in the set."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from paucal.data.masks.coding import (
    CodingKind,
    MaskCoding,
    NamedClasses,
    find_coding,
    read_class_names,
    require_same_coding,
)
from paucal.data.masks.mask_files import MaskStatistics
from paucal.data.masks.naming import folder_role
from paucal.data.masks.pairs import ImageMaskPairs
from paucal.data.splits.part_names import PART_BY_WORD
from paucal.reading import is_regular
from paucal.types import UserError

# File names of tables of classes. The first name is used by SegNet and CamVid, the second by CVAT and Datumaro, and the
# third by Roboflow.
CLASS_TABLES = (
    *("class_dict.csv", "labelmap.txt", "_classes.csv", "label_colors.txt", "label_colours.txt", "class_dict_seg.csv"),
    *("classes.csv", "colormap.csv", "labels.csv", "classes.txt", "labels.txt"),
)
MAX_PARENTS = 5  # number of folders above a file that are searched for tables of classes


class UncodedMasks(NamedTuple):
    """Inputs for choosing the coding of masks: their statistics, and the arguments of `read_masks`."""

    stats: MaskStatistics
    pairs: ImageMaskPairs
    kind: CodingKind | None
    ignore: Sequence[int] | None
    named_classes: NamedClasses | None
    coding: MaskCoding | None


class MaskClasses(NamedTuple):
    """The classes of a set of masks; `file_coding` differs from `coding` if each class has its own mask files."""

    coding: MaskCoding  # coding of the masks; if these were joined, their values are class numbers
    file_coding: MaskCoding  # coding of the mask files; if joined: 0 for background, 1 or 255 for the class
    named_classes: NamedClasses | None  # class names; None to name each class after its mask value
    notes: list[str]
    class_numbers: list[tuple[int, ...]] | None = None  # class of each mask file, as in `MaskStore`


def classes_from_values(masks: UncodedMasks) -> MaskClasses:
    """Return the classes of masks in which each value stands for a class."""
    named_classes, notes = masks.named_classes, list[str]()
    if named_classes is None and masks.kind is None:
        named_classes = _find_class_names(masks, notes)
    coding = masks.coding or find_coding(masks.stats, masks.kind, masks.ignore, named_classes)
    if masks.coding is not None:
        require_same_coding(coding, masks.stats, masks.ignore)
    return MaskClasses(coding, coding, named_classes, notes)


def classes_from_files(masks: UncodedMasks, file_classes: Sequence[tuple[str, ...]]) -> MaskClasses:
    """Return the classes of masks with separate files for each class, given the class of each file of each image."""
    names = sorted({name for classes in file_classes for name in classes})
    classes = ("background", *names) if masks.named_classes is None else masks.named_classes.names
    if masks.coding is None and classes[0].lower() != "background":
        classes = ("background", *classes)
    if unknown := sorted(set(names) - set(classes)):
        raise UserError(
            f"masks are named after the class {unknown[0]!r}, but the classes are {', '.join(classes[:8])}: add the "
            "class to --classes, or move the masks of this class out of the folder."
        )
    file_coding = find_coding(masks.stats, masks.kind, masks.ignore)
    if file_coding.count != 2 or file_coding.values[0] != 0:
        raise UserError(
            f"each class has its own mask files, but these files have {file_coding.count} classes "
            f"({file_coding.describe()}): give one mask for each image, or masks with only background and foreground."
        )
    class_numbers = [tuple(map(classes.index, image_classes)) for image_classes in file_classes]
    coding = masks.coding or MaskCoding("index", tuple(range(len(classes))))
    return MaskClasses(
        coding, file_coding, NamedClasses(classes), [f"a file for each class: {', '.join(names)}"], class_numbers
    )


def _find_class_names(masks: UncodedMasks, notes: list[str]) -> NamedClasses | None:
    """Return the classes of the first table in the set that fits the masks; None if no table fits.

    A table fits if it has a name for every mask value or, without values, for every class.
    """
    for file in _find_class_tables(masks.pairs):
        try:
            class_names = read_class_names(file)
            named_classes = None if class_names.values is None else class_names
            coding = masks.coding or find_coding(masks.stats, None, masks.ignore, named_classes)
            if class_names.values is None:
                fits = len(class_names.names) == coding.count
            else:
                stats = masks.stats.as_colours() if coding.kind == "colour" else masks.stats
                fits = coding.values == class_names.values and set(stats.values) <= {*coding.values, coding.ignore}
            if fits:
                notes.append(f"class names are from {file.name}")
                return class_names
        except UserError:  # the file is not a table of classes in spite of its name
            pass
        notes.append(f"{file.name} is not used, since its classes do not match these masks")
    return None


def _find_class_tables(pairs: ImageMaskPairs) -> list[Path]:
    """Return the tables of classes in the folders of the first image and the first mask, and in folders above these.

    The search goes up from a file's own folder, through at most `MAX_PARENTS` folders, to the root or, for a file
    outside of the root, to the folder above its own. Folders named after images, masks or a split do not end it.
    """
    folders: list[Path] = []
    for file in [file for pair in pairs.pairs[:1] for file in (pairs.root / pair.key, pair.masks[0])]:
        for folder in list(file.parents)[:MAX_PARENTS]:
            folders.append(folder)
            is_named = folder_role(folder.name).content or folder.name.lower() in PART_BY_WORD
            is_inside = folder != pairs.root and (folder == file.parent or folder.is_relative_to(pairs.root))
            if not (is_named or is_inside):
                break
    tables: list[Path] = []
    for folder in dict.fromkeys(folders):
        children = {child.name.lower(): child for child in folder.iterdir()}
        tables += [children[name] for name in CLASS_TABLES if name in children and is_regular(children[name])]
    return tables
