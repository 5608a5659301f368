"""The split of images with boxes into parts (train, val, test): from annotation files, lists or folders."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from paucal.data.boxes.annotations import AnnotatedImage, AnnotationSet
from paucal.data.boxes.naming import ImageNames
from paucal.data.boxes.tree import Tree
from paucal.data.splits.part_names import PARTS, TRAINVAL, part_of_folders
from paucal.types import UserError
from paucal.wording import counted, was

LIST_FOLDERS = ("imagesets/main", "imagesets", "")
_SIGN = re.compile(r"\s+-?[01]$")  # sign in Pascal VOC's lists of a class
_WITH_ANNOTATION = re.compile(r"\s+(?=\S.*\.(?:xml|json|txt)$)", re.IGNORECASE)


def with_parts(annotations: AnnotationSet, tree: Tree) -> AnnotationSet:
    """Return the images with their parts: from the annotation files, else from lists, else from the images' folders.

    If some images belong to a part, the others are left out, with a note.

    Raises:
        UserError: Two lists name one image, a listed name fits several images, or no line of a list names an image.
    """
    images, notes = annotations.images, list(annotations.notes)
    if not any(image.declared for image in images):
        parts, list_notes = _parts_of_lists(images, tree)
        parts = parts or _parts_of_folders(images)
        images = [replace(image, declared=parts.get(image.key, "")) for image in images]
        notes += list_notes
    in_parts = [image for image in images if image.declared]
    if not in_parts or len(in_parts) == len(images):
        return replace(annotations, images=images, notes=tuple(notes))
    n_left = len(images) - len(in_parts)
    belongs = "belongs" if n_left == 1 else "belong"
    notes.append(f"{counted(n_left, 'image')} with annotations that {belongs} to no part {was(n_left)} left out")
    return replace(annotations, images=in_parts, notes=tuple(notes))


def _parts_of_folders(images: Sequence[AnnotatedImage]) -> dict[str, str]:
    """Return each image's part from its folder; empty if only one of several folders is named after a part."""
    parts = {image.key: part_of_folders(image.key) for image in images}
    return {} if len(set(parts.values()) - {""}) < 2 and "" in parts.values() else parts


def _parts_of_lists(images: Sequence[AnnotatedImage], tree: Tree) -> tuple[dict[str, str], list[str]]:
    """Return the part of each listed image, and notes on lines that match no image."""
    names = _ListedNames(images, tree)
    parts: dict[str, str] = {}
    notes: list[str] = []
    for file in _find_lists(tree):
        lines, file_notes = tree.lines(file)
        notes += file_notes
        keys = [names.find(line, file) for line in lines]
        unknown = [line for line, key in zip(lines, keys, strict=True) if key is None]
        if lines and len(unknown) == len(lines):
            place, first = tree.place_of(file), lines[0][:80]
            text = f"no line of {place!r} names an image with annotations; the first is {first!r}"
            if "/" in file:
                raise UserError(f"{text}: correct the list, or remove it.")
            notes.append(f"{text}, so the list is skipped")
            continue
        if unknown:
            lines_text = counted(len(unknown), "line")
            notes.append(f"{lines_text} of {file} without an image with annotations, such as {unknown[0][:80]!r}")
        part, is_joint = PARTS[_plain_stem(file)], _plain_stem(file) == TRAINVAL
        for key in keys:
            if key is None or (is_joint and parts.get(key) == "val"):
                continue
            if parts.setdefault(key, part) != part:
                name = PurePosixPath(key).stem
                raise UserError(
                    f"{tree.place_of(file)!r} lists {name!r}, which is in the list of {parts[key]} too: correct it."
                )
    return parts, notes


def _find_lists(tree: Tree) -> list[str]:
    """Return the lists in the first folder that has lists of train, val or test; "trainval" comes last."""
    lists = [file for file in tree.ending(".txt") if _plain_stem(file) in PARTS]
    for folder in LIST_FOLDERS:
        if folder_lists := [file for file in lists if file.rpartition("/")[0].lower() == folder]:
            return sorted(folder_lists, key=lambda file: (_plain_stem(file) == TRAINVAL, file))
    return []


def _plain_stem(file: str) -> str:
    return PurePosixPath(file).stem.lower()


class _ListedNames:
    """Finds images by the names that lists give them: names of images, or names of their annotation files."""

    def __init__(self, images: Sequence[AnnotatedImage], tree: Tree) -> None:
        self._tree = tree
        self._keys = ImageNames([image.key for image in images], tree)
        key_of_file = {image.source: image.key for image in images}
        # An annotation file that describes several images does not identify one by its name.
        self._key_of_file = key_of_file if len(key_of_file) == len(images) else {}
        self._files = ImageNames(self._key_of_file, tree)

    def find(self, line: str, file: str) -> str | None:
        """Return the image that a line of a list names; None if the image has no annotations."""
        for name in _names_in(line):
            for by_stem in (False, True):
                keys = {match.path for match in self._keys.matches(name, by_stem)}
                keys = keys or {self._key_of_file[match.path] for match in self._files.matches(name, by_stem)}
                if len(keys) > 1:
                    first, second = sorted(keys)[:2]
                    raise UserError(
                        f"{self._tree.place_of(file)!r} names {line[:80]!r}, which may be {first!r} or {second!r}: "
                        "give it with its folder."
                    )
                if keys:
                    return keys.pop()
        return None


def _names_in(line: str) -> Iterator[str]:
    """Yield possible names of an image: the whole line, the line without a sign, the text before an annotation file."""
    yield line
    if _SIGN.search(line):
        yield _SIGN.sub("", line)
    yield from (line[: gap.start()] for gap in _WITH_ANNOTATION.finditer(line))
