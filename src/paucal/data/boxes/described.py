"""Images with boxes as annotation files describe them, and what a layout of such files is.

Nothing is checked against the images yet.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from paucal.data.boxes.tree import Tree
from paucal.types import UserError
from paucal.wording import counted, was

MOST_CLASSES = 10_000
ALIKE = 0.5  # pixels that the edges of one box in two files may differ by, as one of them is rounded
Corners = tuple[float, float, float, float]


@dataclass
class Annotated:
    """One image as a file of annotations describes it.

    Attributes:
        key: Path below the folder of the set, with forward slashes.
        boxes: (left, top, right, bottom) in pixels, edges of the image at 0 and its sides.
        names: Name of the class of each box.
        crowd: Whether each box is neither learnt nor counted against a detector: it stands for many objects, or is
            marked as difficult.
        mark: What such boxes are marked as.
        size: (height, width) in pixels that the file states; None where it states none.
        declared: "train", "val", "test" or "".
        source: Name of the file that describes the image, for messages.
        outlines: Outline of each box as COCO's "segmentation" has it; what is false stands for none, and no list at
            all for none of any box.
    """

    key: str
    boxes: list[Corners] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    crowd: list[bool] = field(default_factory=list)
    size: tuple[int, int] | None = None
    declared: str = ""
    source: str = ""
    outlines: list[Any] = field(default_factory=list)
    mark: str = "a crowd"

    def add(self, box: Corners, name: str, crowd: bool = False, outline: Any = None) -> None:
        """Add an object."""
        self.boxes.append(box)
        self.names.append(name)
        self.crowd.append(crowd)
        self.outlines.append(outline)

    def is_alike(self, other: "Annotated") -> bool:
        """Return whether another description of the image has the same objects."""
        if (self.names, self.crowd) != (other.names, other.crowd):
            return False
        edges = zip(chain(*self.boxes), chain(*other.boxes), strict=True)
        return all(abs(mine - theirs) <= ALIKE for mine, theirs in edges)


@dataclass(frozen=True)
class Described:
    """What the annotation files of a set say.

    Attributes:
        images: The images, each of them once.
        numbers: Number of each class in the files.
        notes: Sentences on what was left out or assumed.
    """

    images: list[Annotated]
    numbers: Mapping[str, int]
    notes: tuple[str, ...] = ()


def add_once(images: dict[str, Annotated], one: Annotated, place: str) -> None:
    """Add an image to those of a set.

    Raises:
        UserError: It is there already.
    """
    known = images.setdefault(one.key, one)
    if known is not one:
        files = " and ".join(dict.fromkeys((repr(known.source), repr(one.source))))
        raise UserError(
            f"the image {one.key!r} is described twice in {place!r}, in {files}: give each image one description."
        )


def some_of(notes: Sequence[str]) -> list[str]:
    """Return the first of the notes on single files, and how many more there are."""
    return [*notes[:2], *([f"the same holds for {counted(len(notes) - 2, 'more file')}"] if len(notes) > 2 else [])]


def numbered(images: Iterable[Annotated], place: str) -> dict[str, int]:
    """Return a number for each class of files that have none of their own: in the order of the alphabet, from 1.

    Raises:
        UserError: There are too many classes.
    """
    names = sorted({name for one in images for name in one.names})
    if len(names) > MOST_CLASSES:
        raise UserError(f"{place!r} names {len(names):,} classes; at most {MOST_CLASSES:,} are read.")
    return {name: number for number, name in enumerate(names, 1)}


def without_repetition(names: Mapping[int, str]) -> dict[int, str]:
    """Return the names of classes by their numbers; a name that is there twice gets its number added.

    People tell two classes of one name apart by their numbers.

    Example:
        >>> without_repetition({3: "cell", 7: "cell"})
        {3: 'cell', 7: 'cell (7)'}
    """
    found: dict[int, str] = {}
    for number, name in names.items():
        found[number] = f"{name} ({number})" if name in found.values() else name
    return found


def number_or_none(text: str) -> float | None:
    """Return the number that a text is; None for another text."""
    try:
        return float(text)
    except ValueError:
        return None


def box_of_points(points: Iterable[tuple[float, float]]) -> Corners:
    """Return the smallest box around some points, at least one."""
    across, down = zip(*points, strict=True)
    return min(across), min(down), max(across), max(down)


def unread_shapes(counts: Counter[str]) -> list[str]:
    """Return a note on the shapes that were not read, by their kinds; none where there are none."""
    if not counts:
        return []
    kinds = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    return [f"{counted(counts.total(), 'shape')} without a box of its own {was(counts.total())} not read: {kinds}"]


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
    roots: Callable[[Path], list[Path]] = lambda file: [file.parent, file.parent.parent]
