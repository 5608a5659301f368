"""Images with boxes as annotation files describe them, not yet checked against the image files."""

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
from paucal.wording import counted, was_or_were

MAX_CLASSES = 10_000  # largest number of classes in a set
MAX_PIXELS = 1 << 28  # largest number of pixels of a mask in an annotation file
MAX_ROUNDING = 0.5  # largest difference, due to rounding, between the edges of a box in two files, in pixels
# COCO writes the run lengths of a mask as text. Each character is the code of "0" plus six bits: five bits of a number,
# and a flag that the number continues in the next character. The sign of a number is the highest of the five bits in
# the last character of the number.
CODE_OF_ZERO, BITS_PER_CHARACTER, CONTINUES_FLAG, SIGN_FLAG = 48, 5, 0x20, 0x10
MAX_CHARACTERS = 7  # largest number of characters of a number; 35 bits are enough for the pixels of any image
MAX_TEXT_LENGTH = 1 << 24  # largest number of characters of a mask
Corners = tuple[float, float, float, float]


@dataclass
class AnnotatedImage:
    """One image as an annotation file describes it; `boxes`, `names`, `crowd` and `outlines` have an entry per box."""

    key: str  # path of the image relative to the folder of the set, with forward slashes
    boxes: list[Corners] = field(default_factory=list)  # left, top, right, bottom in pixels from the top left corner
    names: list[str] = field(default_factory=list)
    # Whether a box covers many objects or is difficult; such boxes are neither trained on nor scored.
    crowd: list[bool] = field(default_factory=list)
    size: tuple[int, int] | None = None  # (height, width) in pixels; None if the annotation file states no size
    declared_split: str = ""  # "train", "val", "test", or "" if the data set assigns no split
    source: str = ""  # path of the annotation file within the set
    # Outline of each box in the form of COCO's "segmentation"; None or empty for a box without an outline. The list
    # may be left empty.
    outlines: list[Any] = field(default_factory=list)
    crowd_word: str = "a crowd"  # the layout's name for the boxes that are flagged in `crowd`, for messages
    tags: list[str] = field(default_factory=list)  # labels of the whole image

    def add(self, name: str, box: Corners, outline: Any = None, crowd: bool = False) -> None:
        """Add an object: its class name, its box, and its outline in the form of COCO's "segmentation"."""
        self.boxes.append(box)
        self.names.append(name)
        self.crowd.append(crowd)
        self.outlines.append(outline)

    def has_same_objects(self, other: "AnnotatedImage") -> bool:
        """Return whether another annotation file describes the same objects in this image, up to rounding."""
        if (self.names, self.crowd) != (other.names, other.crowd):
            return False
        edges = zip(chain(*self.boxes), chain(*other.boxes), strict=True)
        return all(abs(own_edge - other_edge) <= MAX_ROUNDING for own_edge, other_edge in edges)


@dataclass(frozen=True)
class AnnotationSet:
    """The content of the annotation files of a set."""

    images: list[AnnotatedImage]
    class_numbers: Mapping[str, int]  # class number of each class name
    notes: tuple[str, ...] = ()  # sentences for the user on what was guessed, changed or left out

    @classmethod
    def with_numbered_classes(
        cls, images: Iterable[AnnotatedImage], shown_path: str, notes: Iterable[str]
    ) -> "AnnotationSet":
        """Return the content of files without class numbers; classes are numbered from 1 in alphabetical order."""
        images = list(images)
        names = sorted({name for image in images for name in image.names})
        if len(names) > MAX_CLASSES:
            raise UserError(f"{shown_path!r} names {len(names):,} classes; at most {MAX_CLASSES:,} are read.")
        return cls(images, {name: number for number, name in enumerate(names, 1)}, tuple(notes))


@dataclass(frozen=True)
class Layout:
    """A file format for boxes, such as COCO JSON."""

    name: str
    expected: str  # description of the files, for messages that list the supported layouts
    suffixes: tuple[str, ...]  # file suffixes by which a single annotation file is recognised
    find: Callable[[Tree, Sequence[str]], list[str]]  # (tree, files) -> the files that have this layout
    read: Callable[[Tree, Sequence[str]], AnnotationSet]  # (tree, annotation files) -> their content
    # Folders in which the images of a single annotation file may be.
    roots: Callable[[Path], list[Path]] = lambda file: [file.parent, file.parent.parent]
    # Tree of the images of a single annotation file; None if the file does not name all images by absolute paths.
    tree: Callable[[Path], Tree | None] = lambda file: None


def add_image(images: dict[str, AnnotatedImage], image: AnnotatedImage, shown_path: str) -> None:
    """Add an image to the images of a set, by key; refuse an image that two annotation files describe."""
    first = images.setdefault(image.key, image)
    if first is not image:
        files = " and ".join(dict.fromkeys((repr(first.source), repr(image.source))))
        raise UserError(
            f"the image {image.key!r} is described twice in {shown_path!r}, in {files}: remove one of the descriptions."
        )


def shorten_notes(notes: Sequence[str]) -> list[str]:
    """Return the first two of several notes on files, and a note with the number of further files."""
    return [*notes[:2], *([f"and likewise for {counted(len(notes) - 2, 'more file')}"] if len(notes) > 2 else [])]


def unread_shapes_notes(counts: Counter[str]) -> list[str]:
    """Return a list with a note on shapes that were not read, given counts by type; empty if all shapes were read."""
    kinds = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    note = f"{counted(counts.total(), 'shape')} without a box {was_or_were(counts.total())} not read: {kinds}"
    return [note] if counts else []


def unique_class_names(names: Mapping[int, str]) -> dict[int, str]:
    """Return class names by number; if a name occurs again, the number is appended: `{3: "cell", 7: "cell (7)"}`."""
    unique: dict[int, str] = {}
    for number, name in names.items():
        unique[number] = f"{name} ({number})" if name in unique.values() else name
    return unique


def positive_size(height: object, width: object) -> tuple[int, int] | None:
    """Return the (height, width) that a file states for an image; None unless both are positive integers."""
    return (height, width) if type(height) is int and type(width) is int and min(height, width) > 0 else None


def are_numbers(values: Any, count: int) -> bool:
    """Return whether a value from a JSON file is a list of `count` numbers."""
    return isinstance(values, list) and len(values) == count and all(type(value) in (int, float) for value in values)


def parse_number(text: str) -> float | None:
    """Return a text as a number; None if the text is not a number."""
    try:
        return float(text)
    except ValueError:
        return None


def box_of_points(points: Iterable[Sequence[float]]) -> Corners:
    """Return the smallest box around one or more (x, y) points."""
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def polygon_of_points(points: Sequence[Sequence[float]]) -> tuple[Corners, list[list[float]]]:
    """Return the box around a polygon of (x, y) points, and the polygon in the form of COCO's "segmentation"."""
    return box_of_points(points), [list(chain(*points))]


def unpack_run_lengths(text: bytes) -> NDArray[np.int64]:
    """Decode a mask in COCO's text format to the lengths of alternating runs of zeros and ones, column by column.

    The lowest bits of a number come first. From the fourth number on, a number is the difference from the run length
    two positions earlier. Invalid text raises a ValueError; pycocotools does not check the text, and is 100 times
    slower.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise ValueError(f"the mask has {len(text):,} characters, at most {MAX_TEXT_LENGTH:,} are read")
    codes = np.frombuffer(text, dtype=np.uint8).astype(np.int64) - CODE_OF_ZERO
    if not len(codes) or codes.min() < 0 or codes.max() >= 64:
        raise ValueError("the mask is empty or has an invalid character")
    if codes[-1] & CONTINUES_FLAG:
        raise ValueError("the mask ends in the middle of a number")
    last_bytes = np.flatnonzero((codes & CONTINUES_FLAG) == 0)
    starts = np.concatenate([[0], last_bytes[:-1] + 1])
    lengths = last_bytes - starts + 1
    if lengths.max() > MAX_CHARACTERS:
        raise ValueError("the mask has a number that is too large for any image")
    index = np.arange(len(codes)) - np.repeat(starts, lengths)
    numbers = np.add.reduceat((codes & (CONTINUES_FLAG - 1)) << (BITS_PER_CHARACTER * index), starts)
    numbers -= np.where(codes[last_bytes] & SIGN_FLAG, np.int64(1) << (BITS_PER_CHARACTER * lengths), 0)
    numbers[1::2] = np.cumsum(numbers[1::2])
    numbers[2::2] = np.cumsum(numbers[2::2])
    return numbers


def box_of_run_lengths(mask: dict[str, Any]) -> Corners | None:
    """Return the box around a mask, given as COCO run lengths; None if the mask is empty or invalid."""
    size, counts = mask.get("size"), mask.get("counts")
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
    # Positions of the first and last pixel of each run of ones; pixels are numbered column by column.
    first, last = (ends - lengths)[1::2][lengths[1::2] > 0], ends[1::2][lengths[1::2] > 0] - 1
    if not len(first):
        return None
    # A run that continues in the next column covers the last row of one column and the first row of the next.
    is_within_column = first // height == last // height
    top = int((first % height)[is_within_column].min()) if is_within_column.all() else 0
    bottom = int((last % height)[is_within_column].max()) if is_within_column.all() else height - 1
    return float(first[0] // height), float(top), float(last[-1] // height + 1), float(bottom + 1)


def run_lengths_of(mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Return an (H, W) mask as run lengths, in the form of COCO's "segmentation"."""
    flat = np.concatenate([[False], mask.T.ravel(), [False]])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    edges = np.concatenate([[0], changes, [mask.size] if changes[-1:].tolist() != [mask.size] else []]).astype(np.int64)
    return {"size": list(mask.shape), "counts": np.diff(edges).tolist()}
