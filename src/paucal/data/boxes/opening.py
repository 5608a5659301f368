"""Boxes of a place, in whichever layout its annotation files are."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from paucal.data.boxes import coco
from paucal.data.boxes.described import Described
from paucal.data.boxes.layouts import EXPECTED, LAYOUTS, STRUCTURE, BoxFiles, box_files, unread_files
from paucal.data.boxes.naming import MissingImage
from paucal.data.boxes.parts import with_parts
from paucal.data.boxes.tree import Tree, folder_tree, is_archive, open_tree
from paucal.data.images import ImageSet
from paucal.data.splits.part_names import part_of_folders
from paucal.types import UserError
from paucal.wording import counted, was


def read_boxes(place: Path) -> tuple[Tree, Described]:
    """Read what the annotation files of a place say.

    Args:
        place: Folder, archive, or annotation file of a set.

    Raises:
        UserError: The place has no boxes in a layout of the table, or an annotation file is invalid.
    """
    if place.is_file() and not is_archive(place):
        return _read_file(place)
    tree = open_tree(place)
    found = box_files(tree)
    mine = [replace(one, files=[file for file in one.files if not own_root(file)]) for one in found]
    mine = [one for one in mine if one.files]
    if not mine:
        _refuse(tree, found)
    described = _read(mine, tree)
    notes = (*described.notes, *_undescribed(tree, described), *_passed_over(found))
    return tree, with_parts(replace(described, notes=notes), tree)


def images_of(place: Path) -> ImageSet:
    """Return the images that the annotation files of a place describe, without labels.

    Raises:
        UserError: As `read_boxes`.
    """
    return unlabelled(*read_boxes(place))


def unlabelled(tree: Tree, described: Described) -> ImageSet:
    """Return the images of annotation files without what these say of them."""
    keys = [one.key for one in described.images]
    return ImageSet(
        name=tree.name,
        location=tree.location,
        classes=(),
        keys=keys,
        labels=np.full(len(keys), -1, dtype=np.int64),
        declared=[one.declared for one in described.images],
        store=tree.store(keys),
        notes=described.notes,
    )


def own_root(file: str) -> str:
    """Return the folder that an annotation file is part of as of a set of its own; "" for the whole tree.

    Example:
        >>> own_root("VOCdevkit/VOC2012/Annotations/1.xml"), own_root("train/labels/1.txt"), own_root("day 1/1.xml")
        ('VOCdevkit/VOC2012', '', '')
    """
    folders = file.split("/")[:-1]
    place = next((place for place, folder in enumerate(folders) if folder.lower() in STRUCTURE), 0)
    above = folders[:place]
    while above and part_of_folders(f"{above[-1]}/"):
        above.pop()
    return "/".join(above)


def _read(found: Sequence[BoxFiles], tree: Tree) -> Described:
    """Read the layouts of a set, and return the one whose images are those of all.

    Raises:
        UserError: The first cannot be read, or several describe different images.
    """
    described: dict[str, Described] = {}
    notes: list[str] = []
    for one in found:
        assert one.read is not None
        try:
            described[one.name] = one.read(tree, one.files)
        except UserError as problem:
            if one is found[0]:
                raise
            notes.append(f"{one.name} beside {found[0].name} was passed over, as it cannot be read: {problem}")
    keys = {name: {image.key for image in each.images} for name, each in described.items()}
    most = max(keys, key=lambda name: len(keys[name]))
    for name in [name for name in keys if name != most]:
        if not keys[name] <= keys[most]:
            raise UserError(
                f"{tree.shown!r} has boxes of {counted(len(keys[most]), 'image')} as {most} and of {len(keys[name])}, "
                f"not all of them the same, as {name}: move one of them away, or give an annotation file as DATA."
            )
        notes.append(f"the boxes were read as {most}, and those as {name} were passed over")
    chosen = described[most]
    return replace(chosen, notes=(*chosen.notes, *notes))


def _undescribed(tree: Tree, described: Described) -> list[str]:
    """Say how many images beside those with annotations have none: they are not taken for images without objects."""
    known = {one.key for one in described.images}
    folders = {key.rpartition("/")[0] for key in known}
    left = sum(image.rpartition("/")[0] in folders and image not in known for image in tree.images)
    told = f"{counted(left, 'image')} that no annotation describes {'is' if left == 1 else 'are'} left out"
    return [told] if left else []


def _passed_over(found: Sequence[BoxFiles]) -> list[str]:
    """Return a note on annotation files of sets in folders of their own, beside those of the whole."""
    files = [file for one in found for file in one.files if own_root(file)]
    if not files:
        return []
    told = counted(len(files), "annotation file")
    return [f"{told} of another set, in {own_root(files[0])!r}, {was(len(files))} passed over"]


def _read_file(file: Path) -> tuple[Tree, Described]:
    """Read an annotation file that is given alone, with the images beside it or below the folder above.

    Raises:
        UserError: The file has no boxes, or its images are nowhere.
    """
    layouts = [layout for layout in LAYOUTS if file.suffix.lower() in layout.suffixes]
    _refuse_unread(folder_tree(file.parent, [file.name]))
    if not layouts:
        raise UserError(f"{str(file)!r} is no folder, no archive and no file of boxes: expected {EXPECTED}.")
    # A damaged file is of none, and the first says what is wrong with it.
    here = folder_tree(file.parent)
    layout = next((one for one in layouts if one.find(here, [file.name])), layouts[0])
    problem: UserError | None = None
    for root in layout.roots(file):
        try:
            tree = here if root == file.parent else folder_tree(root)
            path = file.relative_to(root).as_posix() if file.is_relative_to(root) else str(file.absolute())
            return tree, _of_one_part(with_parts(layout.read(tree, [path]), tree))
        except MissingImage as missing:
            problem = problem or missing
        except UserError:
            if problem is None or root == file.parent:
                raise
    assert problem is not None
    raise problem


def _of_one_part(described: Described) -> Described:
    """Return the images of a single file; where all are of one part, they are a whole of their own."""
    if len({one.declared for one in described.images}) > 1:
        return described
    return replace(described, images=[replace(one, declared="") for one in described.images])


def _refuse(tree: Tree, found: Sequence[BoxFiles]) -> NoReturn:
    """Say why a place without boxes of its own has none."""
    if roots := sorted({own_root(file) for one in found for file in one.files}):
        places = " or ".join(repr(tree.place_of(root)) for root in roots[:3])
        raise UserError(f"{tree.shown!r} holds sets with boxes in folders of their own: did you mean {places}?")
    _refuse_unread(tree)
    files = tree.ending(".json")
    if len(files) == 1:
        coco.read(tree, files)  # says what is wrong with the only file that could hold boxes
    raise UserError(f"{tree.shown!r} has no annotations of boxes: expected {EXPECTED}.")


def _refuse_unread(tree: Tree) -> None:
    if found := unread_files(tree):
        raise UserError(
            f"{tree.shown!r} has boxes as {found.name} ({found.shown}), which are not read: {found.advice}."
        )
