"""The part of each image with boxes: as lists name it, or folders, or the files of annotations."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from paucal.data.boxes.described import Annotated, Described
from paucal.data.boxes.naming import Names
from paucal.data.boxes.tree import Tree
from paucal.data.splits.part_names import PARTS, TRAINVAL, part_of_folders
from paucal.types import UserError
from paucal.wording import counted, was

LIST_FOLDERS = ("imagesets/main", "imagesets", "")
MOST_LIST_BYTES = 1 << 26
_SIGN = re.compile(r"\s+-?[01]$")  # of a list of images that do or do not show a class
_WITH_ANNOTATION = re.compile(r"\s+(?=\S.*\.(?:xml|json|txt)$)", re.IGNORECASE)


def with_parts(described: Described, tree: Tree) -> Described:
    """Return images with their parts: those of their own files, else of lists, else of the folders that they lie in.

    Where some images belong to a part, the others are left out, with a note.

    Raises:
        UserError: Two lists name one image, a name in a list may mean several, or no line of a list names an image.
    """
    images, notes = described.images, list(described.notes)
    if not any(one.declared for one in images):
        listed, more = _listed(images, tree)
        parts = listed or _of_folders(images)
        images = [replace(one, declared=parts.get(one.key, "")) for one in images]
        notes += more
    kept = [one for one in images if one.declared]
    if not kept or len(kept) == len(images):
        return replace(described, images=images, notes=tuple(notes))
    left = len(images) - len(kept)
    belongs = "belongs" if left == 1 else "belong"
    notes.append(f"{counted(left, 'image')} with annotations that {belongs} to no part {was(left)} left out")
    return replace(described, images=kept, notes=tuple(notes))


def _of_folders(images: Sequence[Annotated]) -> dict[str, str]:
    """Return the part of each image by its folder; none where a single folder among others is called like a part."""
    parts = {one.key: part_of_folders(one.key) for one in images}
    return {} if len(set(parts.values()) - {""}) < 2 and "" in parts.values() else parts


def _listed(images: Sequence[Annotated], tree: Tree) -> tuple[dict[str, str], list[str]]:
    """Return the part of each image that a list names, and notes on the lines that name none."""
    names = _ListedNames(images, tree)
    parts: dict[str, str] = {}
    notes: list[str] = []
    for file in _lists(tree):
        lines, note = lines_of(tree, file)
        keys = [names.key_of(line, file) for line in lines]
        unknown = [line for line, key in zip(lines, keys, strict=True) if key is None]
        notes += [note] if note else []
        if lines and len(unknown) == len(lines):
            told = f"no line of {tree.place_of(file)!r} names an image with annotations; the first is {lines[0][:80]!r}"
            if "/" in file:
                raise UserError(f"{told}: correct the list, or remove it.")
            notes.append(f"{told}, and the list is passed over")
            continue
        if unknown:
            lacking = counted(len(unknown), "line")
            notes.append(f"{lacking} of {file} without an image with annotations, such as {unknown[0][:80]!r}")
        _add(parts, [key for key in keys if key is not None], file, tree)
    return parts, notes


def _add(parts: dict[str, str], keys: Sequence[str], file: str, tree: Tree) -> None:
    part, joint = PARTS[_stem(file)], _stem(file) == TRAINVAL
    for key in keys:
        if joint and parts.get(key) == "val":
            continue
        if parts.setdefault(key, part) != part:
            name = PurePosixPath(key).stem
            raise UserError(
                f"{tree.place_of(file)!r} lists {name!r}, which is in the list of {parts[key]} too: correct it."
            )


def _lists(tree: Tree) -> list[str]:
    """Return the lists of parts in the first folder that has some, "trainval" last."""
    texts = [file for file in tree.ending(".txt") if _stem(file) in PARTS]
    for folder in LIST_FOLDERS:
        found = [file for file in texts if file.rpartition("/")[0].lower() == folder]
        if found:
            return sorted(found, key=lambda file: (_stem(file) == TRAINVAL, file))
    return []


def _stem(file: str) -> str:
    return PurePosixPath(file).stem.lower()


def lines_of(tree: Tree, file: str, blank: bool = False) -> tuple[list[str], str]:
    """Return the lines of a text file without white space at their ends, and a note where its encoding was assumed.

    Args:
        tree: Files of the set.
        file: Path of the file.
        blank: Whether empty lines are kept, so that lines can be counted.
    """
    found = tree.text(file, MOST_LIST_BYTES)
    lines = [line.strip() for line in re.split(r"\r\n|\r|\n", found.text)]
    return [line for line in lines if line or blank], found.note


class _ListedNames:
    """The images by what a list may call them: their own names, and those of their annotation files.

    Args:
        images: Images with annotations.
        tree: Files of the set.
    """

    def __init__(self, images: Sequence[Annotated], tree: Tree) -> None:
        self._tree = tree
        self._keys = Names([one.key for one in images], tree)
        own = {one.source: one.key for one in images}
        self._of_source = own if len(own) == len(images) else {}  # one file of all images is the name of none
        self._sources = Names(self._of_source, tree)

    def key_of(self, line: str, file: str) -> str | None:
        """Return the image that a line of a list names; None for one without annotations.

        Raises:
            UserError: Several images have the name.
        """
        for name in _names_in(line):
            for by_stem in (False, True):
                keys = {one.path for one in self._keys.matches(name, by_stem)}
                keys = keys or {self._of_source[one.path] for one in self._sources.matches(name, by_stem)}
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
    """Yield what of a line may name an image: all of it, without a sign behind, or the path before an annotation's."""
    yield line
    if _SIGN.search(line):
        yield _SIGN.sub("", line)
    yield from (line[: found.start()] for found in _WITH_ANNOTATION.finditer(line))
