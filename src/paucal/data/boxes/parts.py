"""Finds the split (train, val or test) of each image with boxes, by annotation files, list files or folders."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from paucal.data.boxes.annotations import AnnotatedImage, AnnotationSet
from paucal.data.boxes.naming import ImageFinder
from paucal.data.boxes.tree import Tree
from paucal.data.splits.part_names import PART_BY_WORD, TRAINVAL, split_in_folders
from paucal.types import UserError
from paucal.wording import counted, was_or_were

# Folders that are searched for list files, in lower case; "" is the folder of the data set.
LIST_FOLDERS = ("imagesets/main", "imagesets", "")
_CLASS_MARK = re.compile(r"\s+-?[01]$")  # 1, 0 or -1 after each image in Pascal VOC lists of one class
# Spaces between the name of an image and the name of its annotation file in a line of a list.
_GAP_BEFORE_ANNOTATION = re.compile(r"\s+(?=\S.*\.(?:xml|json|txt)$)", re.IGNORECASE)


def assign_splits(annotations: AnnotationSet, tree: Tree) -> AnnotationSet:
    """Assign splits by annotation files, list files or folders; if any image has a split, leave out those without."""
    images, notes = annotations.images, list(annotations.notes)
    if not any(image.declared_split for image in images):
        parts = _read_part_lists(images, tree, notes)
        if not parts:
            parts = {image.key: split_in_folders(image.key) for image in images}
            # The folder of one split beside other images does not declare a split.
            parts = {} if len(set(parts.values()) - {""}) < 2 and "" in parts.values() else parts
        images = [replace(image, declared_split=parts.get(image.key, "")) for image in images]
    images_with_part = [image for image in images if image.declared_split]
    if not images_with_part or len(images_with_part) == len(images):
        return replace(annotations, images=images, notes=tuple(notes))
    n_left_out = len(images) - len(images_with_part)
    belongs = "belongs" if n_left_out == 1 else "belong"
    notes.append(
        f"{counted(n_left_out, 'image')} with annotations that {belongs} to no split {was_or_were(n_left_out)} left out"
    )
    return replace(annotations, images=images_with_part, notes=tuple(notes))


def _read_part_lists(images: Sequence[AnnotatedImage], tree: Tree, notes: list[str]) -> dict[str, str]:
    """Return the split of each image in the list files, by the key of the image.

    Notes on lines that name no image are appended to `notes`.
    """
    finder = _ListedImageFinder(images, tree)
    parts: dict[str, str] = {}
    for file in _find_lists(tree):
        lines = tree.read_lines(file, notes)
        keys = [finder.find(line, file) for line in lines]
        unmatched = [line for line, key in zip(lines, keys, strict=True) if key is None]
        if lines and len(unmatched) == len(lines):
            shown_path, first = tree.shown_path(file), lines[0][:80]
            text = f"no line of {shown_path!r} names an image with annotations; the first line is {first!r}"
            if "/" in file:
                raise UserError(f"{text}: correct the list, or remove it.")
            notes.append(f"{text}, so the list is skipped")
            continue
        if unmatched:
            lines_text = counted(len(unmatched), "line")
            notes.append(f"{lines_text} of {file} without an image with annotations, such as {unmatched[0][:80]!r}")
        part, is_joint = PART_BY_WORD[_lower_stem(file)], _lower_stem(file) == TRAINVAL
        for key in keys:
            if key is None or (is_joint and parts.get(key) == "val"):
                continue
            if parts.setdefault(key, part) != part:
                name = PurePosixPath(key).stem
                raise UserError(
                    f"{tree.shown_path(file)!r} lists {name!r}, which is also in the list of {parts[key]}: remove the "
                    "image from one of the lists."
                )
    return parts


def _find_lists(tree: Tree) -> list[str]:
    """Return the list files of splits in the first of `LIST_FOLDERS` that has list files; "trainval.txt" comes last."""
    lists = [file for file in tree.files_ending(".txt") if _lower_stem(file) in PART_BY_WORD]
    for folder in LIST_FOLDERS:
        if folder_lists := [file for file in lists if file.rpartition("/")[0].lower() == folder]:
            return sorted(folder_lists, key=lambda file: (_lower_stem(file) == TRAINVAL, file))
    return []


def _lower_stem(file: str) -> str:
    return PurePosixPath(file).stem.lower()


class _ListedImageFinder:
    """Finds the image that a line in a list file names; the name may be that of the image or of an annotation file."""

    def __init__(self, images: Sequence[AnnotatedImage], tree: Tree) -> None:
        self._tree = tree
        self._keys = ImageFinder([image.key for image in images], tree)
        key_by_file = {image.source: image.key for image in images}
        # If an annotation file describes several images, the name of the file does not identify an image.
        self._key_by_file = key_by_file if len(key_by_file) == len(images) else {}
        self._files = ImageFinder(self._key_by_file, tree)

    def find(self, line: str, file: str) -> str | None:
        """Return the key of the image that a line in the list `file` names; None if no image with boxes matches."""
        # The name may be the line, the line without a class mark, or the text before the name of an annotation file.
        names = [line, *([_CLASS_MARK.sub("", line)] if _CLASS_MARK.search(line) else [])]
        names += [line[: gap.start()] for gap in _GAP_BEFORE_ANNOTATION.finditer(line)]
        for name in names:
            for by_stem in (False, True):
                keys = {match.path for match in self._keys.find_matches(name, by_stem)}
                keys = keys or {self._key_by_file[match.path] for match in self._files.find_matches(name, by_stem)}
                if len(keys) > 1:
                    first, second = sorted(keys)[:2]
                    raise UserError(
                        f"{self._tree.shown_path(file)!r} names {line[:80]!r}, which may be {first!r} or {second!r}: "
                        "include the folder in the name."
                    )
                if keys:
                    return keys.pop()
        return None
