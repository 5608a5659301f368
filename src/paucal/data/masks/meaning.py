"""Meaning of masks: the class of each value, with names from the set itself, or the class that each file marks."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from paucal.data.masks.coding import (
    Coding,
    MaskCoding,
    NamedClasses,
    find_coding,
    read_class_names,
    require_same_coding,
)
from paucal.data.masks.mask_files import MaskFacts
from paucal.data.masks.naming import folder_role
from paucal.data.masks.pairs import Pairs
from paucal.data.splits.part_names import PARTS
from paucal.reading import is_regular
from paucal.types import UserError

# The first three names are used by SegNet and CamVid, by CVAT and Datumaro, and by Roboflow.
TABLES = (
    *("class_dict.csv", "labelmap.txt", "_classes.csv", "label_colors.txt", "label_colours.txt", "class_dict_seg.csv"),
    *("classes.csv", "colormap.csv", "labels.csv", "classes.txt", "labels.txt"),
)
MAX_PARENTS = 5  # folders above a file that are searched


class GivenMasks(NamedTuple):
    """Masks before their values are interpreted: facts of all files, and arguments of `read_masks`."""

    facts: MaskFacts
    pairs: Pairs
    kind: Coding | None
    ignore: Sequence[int] | None
    named: NamedClasses | None
    coding: MaskCoding | None


class Meaning(NamedTuple):
    """The meaning of masks.

    Attributes:
        coding: Meaning of the class numbers.
        of_files: Meaning of the values in the files.
        named: Class names; None to name the classes after their values.
        notes: Sentences for the user.
        numbers: Classes that the files of each image mark; None if the values in the files give the classes.
    """

    coding: MaskCoding
    of_files: MaskCoding
    named: NamedClasses | None
    notes: list[str]
    numbers: list[tuple[int, ...]] | None = None


def meaning_of_values(masks: GivenMasks) -> Meaning:
    """Return the meaning of masks whose values give the classes; see `read_masks`."""
    named, notes = masks.named, list[str]()
    if named is None and masks.kind is None:
        named, notes = _find_names(masks)
    coding = masks.coding or find_coding(masks.facts, masks.kind, masks.ignore, named)
    if masks.coding is not None:
        require_same_coding(coding, masks.facts, masks.ignore)
    return Meaning(coding, coding, named, notes)


def meaning_by_class(masks: GivenMasks, marked: Sequence[tuple[str, ...]]) -> Meaning:
    """Return the meaning of masks with a file for each class."""
    names = sorted({name for classes in marked for name in classes})
    classes = ("background", *names) if masks.named is None else masks.named.names
    if masks.coding is None and classes[0].lower() != "background":
        classes = ("background", *classes)
    if unknown := sorted(set(names) - set(classes)):
        raise UserError(
            f"masks are named after the class {unknown[0]!r}, but the classes are {', '.join(classes[:8])}: name it in "
            "--classes, or move its masks away."
        )
    files = find_coding(masks.facts, masks.kind, masks.ignore)
    if files.count != 2 or files.values[0] != 0:
        raise UserError(
            f"there is a mask for each class of an image, and masks have {files.count} classes ({files.describe()}): "
            "give one mask for each image, or masks of marked and unmarked pixels."
        )
    numbers = [tuple(map(classes.index, image_classes)) for image_classes in marked]
    coding = masks.coding or MaskCoding("index", tuple(range(len(classes))))
    return Meaning(coding, files, NamedClasses(classes), [f"a file for each class: {', '.join(names)}"], numbers)


def _find_names(masks: GivenMasks) -> tuple[NamedClasses | None, list[str]]:
    """Return the classes in the first table of a set that fits its masks, and notes; None without such a table."""
    notes: list[str] = []
    for file in _class_tables(masks.pairs):
        try:
            class_names = read_class_names(file)
            if _fits_masks(class_names, masks):
                return class_names, [*notes, f"the names of the classes are those in {file.name}"]
        except UserError:  # a file of this name may have other content
            pass
        notes.append(f"{file.name} does not name the classes of these masks, and is not used")
    return None, notes


def _class_tables(pairs: Pairs) -> list[Path]:
    """Return the tables in the folders of the first image and the first mask, and in those above them."""
    if not pairs.pairs:
        return []
    first = pairs.pairs[0]
    files = [pairs.root / first.key, first.masks[0]]
    folders = [folder for file in files for folder in _folders_above(file, pairs.root)]
    children = {folder: {child.name.lower(): child for child in folder.iterdir()} for folder in dict.fromkeys(folders)}
    tables = [files_by_name[name] for files_by_name in children.values() for name in TABLES if name in files_by_name]
    return [table for table in tables if is_regular(table)]


def _folders_above(file: Path, root: Path) -> list[Path]:
    """Return the folders above a file up to the root, or up to the folder above one named after images or masks."""
    folders = []
    for folder in list(file.parents)[:MAX_PARENTS]:
        folders.append(folder)
        is_named = folder_role(folder.name).side or folder.name.lower() in PARTS
        is_inside = folder != root and (folder == file.parent or folder.is_relative_to(root))
        if not (is_named or is_inside):
            break
    return folders


def _fits_masks(class_names: NamedClasses, masks: GivenMasks) -> bool:
    """Return whether a table names every value in the masks, or has a name for each class in their order."""
    named = None if class_names.values is None else class_names
    coding = masks.coding or find_coding(masks.facts, None, masks.ignore, named)
    if class_names.values is None:
        return len(class_names.names) == coding.count
    facts = masks.facts.as_colours() if coding.kind == "colour" else masks.facts
    return coding.values == class_names.values and set(facts.values) <= {*coding.values, coding.ignore}
