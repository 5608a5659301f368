"""Images with boxes from annotation files, before any check against the image files."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paucal.data.boxes.tree import Tree
from paucal.types import UserError
from paucal.wording import counted, was

MAX_CLASSES = 10_000
MAX_PIXELS = 1 << 28  # pixels of a mask from an annotation file
ROUNDING = 0.5  # pixels by which edges of a box may differ between two files if one file rounds them
# COCO's text of run lengths: each character code, minus that of "0", has 5 bits and a flag that the number continues.
ZERO, BITS, CONTINUES, SIGN = 48, 5, 0x20, 0x10
MAX_CHARACTERS = 7  # per number: 35 bits, more than an image has pixels
MAX_TEXT = 1 << 24  # characters per mask
Corners = tuple[float, float, float, float]


@dataclass
class AnnotatedImage:
    """One image as an annotation file describes it.

    Attributes:
        key: Path below the folder of the set, with forward slashes.
        boxes: (left, top, right, bottom) in pixels; the image spans from 0 to its width and height.
        names: Class name of each box.
        crowd: Flag per box: excluded from training and scores, as it covers many objects or is marked as difficult.
        size: (height, width) in pixels as stated in the file; None if it states no size.
        declared: Split in the data: "train", "val", "test", or "" if unknown.
        source: Name of the annotation file, for messages.
        outlines: Outline of each box in the form of COCO's "segmentation"; a false value for a box without outline, and
            an empty list if no box has an outline.
        mark: The file's own word for boxes flagged in `crowd`.
        tags: Labels of the whole image.
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
    tags: list[str] = field(default_factory=list)

    def add(self, name: str, box: Corners, outline: Any = None, crowd: bool = False) -> None:
        """Add an object."""
        self.boxes.append(box)
        self.names.append(name)
        self.crowd.append(crowd)
        self.outlines.append(outline)

    def has_same_objects(self, other: "AnnotatedImage") -> bool:
        """Return whether another description of the image has the same objects, up to rounding."""
        if (self.names, self.crowd) != (other.names, other.crowd):
            return False
        edges = zip(chain(*self.boxes), chain(*other.boxes), strict=True)
        return all(abs(own_edge - other_edge) <= ROUNDING for own_edge, other_edge in edges)


@dataclass(frozen=True)
class AnnotationSet:
    """The content of the annotation files of a set: each image once, the number of each class by name, and notes."""

    images: list[AnnotatedImage]
    numbers: Mapping[str, int]
    notes: tuple[str, ...] = ()

    @classmethod
    def numbered(cls, images: Iterable[AnnotatedImage], place: str, notes: Iterable[str]) -> "AnnotationSet":
        """Return the content of files without class numbers: classes are numbered in alphabetical order from 1."""
        images = list(images)
        names = sorted({name for image in images for name in image.names})
        if len(names) > MAX_CLASSES:
            raise UserError(f"{place!r} names {len(names):,} classes; at most {MAX_CLASSES:,} are read.")
        return cls(images, {name: number for number, name in enumerate(names, 1)}, tuple(notes))


@dataclass(frozen=True)
class Layout:
    """A file format for boxes.

    Attributes:
        name: Name of the layout for messages.
        expected: Description of its files, for the list of supported layouts.
        suffixes: Suffixes of files that can be given without their folder.
        find: Function that returns the annotation files of this layout among some files of a set.
        read: Function that reads annotation files.
        roots: Function that returns the folders to search for the images of an annotation file passed without a folder.
        tree: Function that returns the images of such a file if all have absolute paths, else None.
    """

    name: str
    expected: str
    suffixes: tuple[str, ...]
    find: Callable[[Tree, Sequence[str]], list[str]]
    read: Callable[[Tree, Sequence[str]], AnnotationSet]
    roots: Callable[[Path], list[Path]] = lambda file: [file.parent, file.parent.parent]
    tree: Callable[[Path], Tree | None] = lambda file: None


def add_image(images: dict[str, AnnotatedImage], image: AnnotatedImage, place: str) -> None:
    """Add an image to the images of a set; refuse a second description of an image."""
    first = images.setdefault(image.key, image)
    if first is not image:
        files = " and ".join(dict.fromkeys((repr(first.source), repr(image.source))))
        raise UserError(
            f"the image {image.key!r} is described twice in {place!r}, in {files}: give each image one description."
        )


def shorten_notes(notes: Sequence[str]) -> list[str]:
    """Return the first two of the notes on individual files, and a note on the number of the others."""
    return [*notes[:2], *([f"and likewise for {counted(len(notes) - 2, 'more file')}"] if len(notes) > 2 else [])]


def unread_shapes_notes(counts: Counter[str]) -> list[str]:
    """Return a note on the shapes that were not read, from their number by kind."""
    if not counts:
        return []
    kinds = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    return [f"{counted(counts.total(), 'shape')} without a box {was(counts.total())} not read: {kinds}"]


def unique_class_names(names: Mapping[int, str]) -> dict[int, str]:
    """Return the names of classes by their numbers; a repeated name gets its number appended.

    Example:
        >>> unique_class_names({3: "cell", 7: "cell"})
        {3: 'cell', 7: 'cell (7)'}
    """
    unique: dict[int, str] = {}
    for number, name in names.items():
        unique[number] = f"{name} ({number})" if name in unique.values() else name
    return unique


def parse_number(text: str) -> float | None:
    """Return a text as a number, or None if it is not one."""
    try:
        return float(text)
    except ValueError:
        return None


def box_of_points(points: Iterable[Sequence[float]]) -> Corners:
    """Return the smallest box around at least one point."""
    across, down = zip(*points, strict=True)
    return min(across), min(down), max(across), max(down)


def polygon_of_points(points: Sequence[Sequence[float]]) -> tuple[Corners, list[list[float]]]:
    """Return the box around a polygon, and its outline in the form of COCO's "segmentation"."""
    return box_of_points(points), [list(chain(*points))]


def unpack_run_lengths(text: bytes) -> NDArray[np.int64]:
    """Decode COCO's text of run lengths: lengths of zeros and ones in turn, column by column.

    Numbers start with their lowest bits; from the fourth on, each is stored as the difference from the length two
    places before it. The usual implementation does not check its input and is a hundred times slower.

    Raises:
        ValueError: The text is invalid; the message says why.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"it has {len(text):,} characters, at most {MAX_TEXT:,} are read")
    codes = np.frombuffer(text, dtype=np.uint8).astype(np.int64) - ZERO
    if not len(codes) or codes.min() < 0 or codes.max() >= 64:
        raise ValueError("it is empty or has an invalid character")
    if codes[-1] & CONTINUES:
        raise ValueError("it ends in the middle of a number")
    last_bytes = np.flatnonzero((codes & CONTINUES) == 0)
    starts = np.concatenate([[0], last_bytes[:-1] + 1])
    lengths = last_bytes - starts + 1
    if lengths.max() > MAX_CHARACTERS:
        raise ValueError("it has a number that is too large for any image")
    index = np.arange(len(codes)) - np.repeat(starts, lengths)
    numbers = np.add.reduceat((codes & (CONTINUES - 1)) << (BITS * index), starts)
    numbers -= np.where(codes[last_bytes] & SIGN, np.int64(1) << (BITS * lengths), 0)
    numbers[1::2] = np.cumsum(numbers[1::2])
    numbers[2::2] = np.cumsum(numbers[2::2])
    return numbers


def box_of_runs(outline: dict[str, Any]) -> Corners | None:
    """Return the box around a mask of run lengths as a file gives it; None if it is empty or invalid."""
    size, counts = outline.get("size"), outline.get("counts")
    if not isinstance(size, list) or len(size) != 2 or any(type(side) is not int or side < 1 for side in size):
        return None
    try:
        lengths = unpack_run_lengths(counts.encode()) if isinstance(counts, str) else np.asarray(counts, dtype=np.int64)
    except (ValueError, TypeError, OverflowError):
        return None
    height, pixels = size[0], size[0] * size[1]
    if lengths.ndim != 1 or lengths.min(initial=0) < 0 or lengths.max(initial=0) > pixels or lengths.sum() != pixels:
        return None
    ends = np.cumsum(lengths)
    first, last = (ends - lengths)[1::2][lengths[1::2] > 0], ends[1::2][lengths[1::2] > 0] - 1
    if not len(first):
        return None
    is_within_column = first // height == last // height  # a run that crosses columns covers the first and the last row
    top = int((first % height)[is_within_column].min()) if is_within_column.all() else 0
    bottom = int((last % height)[is_within_column].max()) if is_within_column.all() else height - 1
    return float(first[0] // height), float(top), float(last[-1] // height + 1), float(bottom + 1)


def run_lengths_of(mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Return an (H, W) mask as run lengths, in the form of COCO's "segmentation"."""
    flat = np.concatenate([[False], mask.T.ravel(), [False]])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    edges = np.concatenate([[0], changes, [mask.size] if changes[-1:].tolist() != [mask.size] else []]).astype(np.int64)
    return {"size": list(mask.shape), "counts": np.diff(edges).tolist()}
