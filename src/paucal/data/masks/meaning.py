"""What masks mean: the classes of their values, or the class that each file marks."""

from collections.abc import Sequence
from typing import NamedTuple

from paucal.data.masks.coding import Coding, MaskCoding, NamedClasses, find_coding, require_fit
from paucal.data.masks.found_names import find_names
from paucal.data.masks.mask_files import MaskFacts
from paucal.data.masks.pairs import Pairs
from paucal.types import UserError


class GivenMasks(NamedTuple):
    """What is known of masks before the meaning of their values: facts of all files, and arguments of `read_masks`."""

    facts: MaskFacts
    pairs: Pairs
    kind: Coding | None
    ignore: Sequence[int] | None
    named: NamedClasses | None
    coding: MaskCoding | None


class Meaning(NamedTuple):
    """The meaning of masks: of class numbers, of the values in files, and the class that each file marks, if any."""

    coding: MaskCoding
    of_files: MaskCoding
    named: NamedClasses | None
    notes: list[str]
    numbers: list[tuple[int, ...]] | None = None


def meaning_of_values(masks: GivenMasks, marked: Sequence[tuple[str, ...]]) -> Meaning:
    """Return the meaning of masks whose values tell the classes; see `read_masks`."""
    facts, pairs, given, ignore, named, coding = masks
    notes: list[str] = []
    if named is None and given is None:
        named, notes = find_names(facts, pairs, ignore, coding)
    if coding is None:
        coding = find_coding(facts, given, ignore, named)
    else:
        require_fit(coding, facts, ignore)
    return Meaning(coding, coding, named, notes)


def meaning_by_class(masks: GivenMasks, marked: Sequence[tuple[str, ...]]) -> Meaning:
    """Return the meaning of masks with a file for each class.

    Args:
        masks: What is known of the masks.
        marked: Classes that the files of each image mark.

    Raises:
        UserError: A class is not among those that are given, or files have other values than marked and not marked.
    """
    names = sorted({name for classes in marked for name in classes})
    classes = ("background", *names) if masks.named is None else masks.named.names
    if masks.coding is None and classes[0].lower() != "background":
        classes = ("background", *classes)
    if unknown := sorted(set(names) - set(classes)):
        raise UserError(
            f"masks are named after the class {unknown[0]!r}, and the classes are {', '.join(classes[:8])}: name it in "
            "--classes, or move its masks away."
        )
    files = find_coding(masks.facts, masks.kind, masks.ignore)
    if files.count != 2 or files.values[0] != 0:
        raise UserError(
            f"there is a mask for each class of an image, and masks have {files.count} classes ({files.describe()}): "
            "give one mask for each image, or masks of marked and unmarked pixels."
        )
    numbers = [tuple(map(classes.index, of_image)) for of_image in marked]
    coding = masks.coding or MaskCoding("index", tuple(range(len(classes))))
    return Meaning(coding, files, NamedClasses(classes), [f"a file for each class: {', '.join(names)}"], numbers)
