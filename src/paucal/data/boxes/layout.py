"""What a layout of boxes is to the table of layouts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paucal.data.boxes.described import Described
from paucal.data.boxes.tree import Tree


def _folder_and_above(file: Path) -> list[Path]:
    return [file.parent, file.parent.parent]


@dataclass(frozen=True)
class Layout:
    """One way of programs to write boxes.

    Attributes:
        name: Name of the layout for people.
        expected: Description of its files, in a list of what is expected.
        suffixes: Endings of its files that can be given alone.
        find: Returns the annotation files of this layout among some files of a set; none for another layout.
        read: Reads annotation files.
        roots: Returns the folders that the images of an annotation file that is given alone may lie below.
    """

    name: str
    expected: str
    suffixes: tuple[str, ...]
    find: Callable[[Tree, Sequence[str]], list[str]]
    read: Callable[[Tree, Sequence[str]], Described]
    roots: Callable[[Path], list[Path]] = _folder_and_above
