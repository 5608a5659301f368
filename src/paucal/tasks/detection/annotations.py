"""Images with boxes: what the annotation files say, checked against the images and brought into one form."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from paucal.data.boxes.annotations import AnnotatedImage, AnnotationSet, Corners
from paucal.data.boxes.tree import Tree
from paucal.data.channels.decoding import array_shape
from paucal.data.classes import alike_names
from paucal.data.decode import ambiguity_note, read_orientation
from paucal.data.images import ImageSet
from paucal.data.stores import EncodedStore
from paucal.tasks.detection.instance_masks.outlines import masks_of
from paucal.tasks.detection.instance_masks.run_lengths import RunLengths
from paucal.types import UserError
from paucal.wording import counted

SMALLEST = 1e-3  # pixels: a box with a shorter side has no area that could overlap with anything
OFF_BY_ONE = 1  # pixels that sizes may differ by, as some programs count from 0 and others from 1


@dataclass(frozen=True)
class Boxes:
    """The boxes of one image.

    Attributes:
        corners: (N, 4) float32, left, top, right and bottom in pixels of an image of `size`.
        labels: (N,) int64, positions among the classes of the set.
        crowd: (N,) bool, which stand for many objects at once.
        size: (height, width) in pixels.
        masks: one for each box, of an image of `size`; None where they are not known.
    """

    corners: NDArray[np.float32]
    labels: NDArray[np.int64]
    crowd: NDArray[np.bool_]
    size: tuple[int, int]
    masks: tuple[RunLengths, ...] | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class BoxedImages:
    """A set of images, and the boxes of each by its key.

    Attributes:
        images: whose `multi_hot` rows say which classes have a box, so that they can be split by class.
        boxes: by key; images without objects have none, and teach what is no object.
        category_ids: the number of each class in the files it came from, for predictions in the same format.
        bare: how many boxes have no outline; crowds, which are neither learnt nor judged, are not among them.
    """

    images: ImageSet
    boxes: Mapping[str, Boxes]
    category_ids: tuple[int, ...]
    bare: int = 0

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the labels."""
        return self.images.classes

    def of(self, index: int) -> Boxes:
        """Return the boxes of the image at a position."""
        return self.boxes[self.images.keys[index]]

    def count(self, indices: Iterable[int]) -> int:
        """Return the number of boxes of some images that are learnt and judged: without crowds and difficult ones."""
        return sum(int((~self.of(int(index)).crowd).sum()) for index in indices)

    @property
    def total(self) -> int:
        """Number of boxes of all images, see `count`."""
        return self.count(range(len(self.images)))

    def without_masks(self) -> "BoxedImages":
        """Return the same images and boxes, their masks forgotten."""
        return replace(self, boxes={key: replace(one, masks=None) for key, one in self.boxes.items()})


def boxed_images(tree: Tree, described: AnnotationSet) -> BoxedImages:
    """Check what annotation files say against the images themselves.

    Boxes without an area are dropped and boxes that reach over an edge are cut there; both are counted in the notes.
    Classes without a box are left out. Images have masks where each of their boxes has an outline.

    Args:
        tree: Files of the set.
        described: Images as the annotation files describe them.

    Raises:
        UserError: There is no image or no box, an image lies outside of the place or has another size than its boxes
            were drawn on, a box lies outside of its image or ends before it begins, or an outline is invalid.
    """
    found, numbers = described.images, described.numbers
    _require_images(tree, found)
    keys = [one.key for one in found]
    store = tree.store(keys)
    turned: list[str] = []
    sizes = [_true_size(one, store, index, turned) for index, one in enumerate(found)]
    _refuse_shares(tree, found)
    tally: Counter[str] = Counter()
    cut = [_cut_boxes(one, size, tally) for one, size in zip(found, sizes, strict=True)]
    used = {one.name for boxes in cut for one in boxes if not one.crowd}
    classes = tuple(name for name, _ in sorted(numbers.items(), key=lambda item: item[1]) if name in used)
    if not classes:
        _refuse_without_objects(tree, len(found), tally)
    place = {name: index for index, name in enumerate(classes)}
    boxes = {one.key: _made(boxes, place, size, tally) for one, boxes, size in zip(found, cut, sizes, strict=True)}
    presence = np.zeros((len(found), len(classes)), dtype=np.int8)
    for row, key in enumerate(keys):
        presence[row, boxes[key].labels] = 1
    told = _told(tally, numbers, classes, int((presence.sum(1) == 0).sum()))
    told += [ambiguity_note(turned, "boxes")] if turned else []
    images = ImageSet(
        name=tree.name,
        location=tree.location,
        classes=classes,
        keys=keys,
        labels=np.full(len(found), -1, dtype=np.int64),
        declared=[one.declared for one in found],
        store=store,
        notes=(*described.notes, *told),
        multi_hot=presence,
    )
    return BoxedImages(images, boxes, tuple(numbers[name] for name in classes), tally["bare"])


def _require_images(tree: Tree, found: Sequence[AnnotatedImage]) -> None:
    if not found:
        raise UserError(f"{tree.shown!r} has annotations of no image: give a folder with images and their boxes.")
    for one in found:
        if not tree.is_inside(one.key):
            raise UserError(
                f"{one.source} names {one.key!r}, which lies outside of {tree.shown!r}: give the image there."
            )


def _refuse_without_objects(tree: Tree, count: int, tally: Counter[str]) -> NoReturn:
    if tally["crowd"]:
        raise UserError(
            f"all {counted(tally['crowd'], 'box', 'boxes')} of {tree.shown!r} are marked as crowds (iscrowd) or as "
            "difficult, which are neither learnt nor counted: remove the marks from those that are single objects."
        )
    raise UserError(f"{tree.shown!r} has no box in {counted(count, 'image')}: annotate some objects first.")


def _refuse_shares(tree: Tree, found: Sequence[AnnotatedImage]) -> None:
    edges = [edge for one in found for box in one.boxes for edge in box]
    if edges and 0 < max(edges) <= 1:
        raise UserError(
            f"no box of {tree.shown!r} reaches beyond 1: these are shares of the images' sides, expected pixels: "
            "multiply them by width and height."
        )


def _true_size(one: AnnotatedImage, store: EncodedStore, index: int, turned: list[str]) -> tuple[int, int]:
    """Return an image's own (height, width), which its boxes must be meant for.

    Args:
        one: What its file says.
        store: Images of the set.
        index: Position of the image.
        turned: Collects the images whose size does not show whether their boxes were drawn before they were turned.
    """
    shape, is_turned = array_shape(store.source(index), one.key), False
    if shape is not None:
        true = shape.height, shape.width
    else:
        orientation = read_orientation(store.source(index), one.key)
        true, is_turned = orientation.upright, orientation.value != 1
        if one.boxes and (orientation.is_ambiguous or (one.size is None and is_turned)):
            turned.append(one.key)
    if one.size is None or all(abs(a - b) <= OFF_BY_ONE for a, b in zip(one.size, true, strict=True)):
        return true
    told = f"{one.source} says {one.key!r} has {one.size[1]}x{one.size[0]} pixels and it has {true[1]}x{true[0]}"
    if one.size == true[::-1] and is_turned:
        raise UserError(
            f"{told} once its EXIF tag turns it upright: store the image upright, or without the tag, so that its "
            "boxes fit."
        )
    if one.size == true[::-1]:
        told += ", as an image has once its EXIF tag turns it upright, and it has no such tag"
    raise UserError(f"{told}: give the image that its boxes were drawn on.")


class _Box(NamedTuple):
    """A box within its image; `where` begins sentences about its outline."""

    corners: Corners
    name: str
    crowd: bool
    outline: Any
    where: str


def _cut_boxes(one: AnnotatedImage, size: tuple[int, int], tally: Counter[str]) -> list[_Box]:
    height, width = size
    kept: list[_Box] = []
    outlines = one.outlines or [None] * len(one.boxes)
    for box, name, many, outline in zip(one.boxes, one.names, one.crowd, outlines, strict=True):
        left, top, right, bottom = box
        image = f"{one.source} gives {one.key!r} ({width}x{height} pixels)"
        where = f"{image} a box of {name!r}"
        if not np.isfinite(box).all():
            raise UserError(f"{where} whose corners {_plain(box)} are no numbers: correct it.")
        if right < left or bottom < top:
            raise UserError(f"{where} that ends before it begins ({_plain(box)}, left top right bottom): correct it.")
        if right - left < SMALLEST or bottom - top < SMALLEST:
            tally["empty"] += 1
            continue
        inside = (max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height)))
        if inside[2] - inside[0] < SMALLEST or inside[3] - inside[1] < SMALLEST:
            raise UserError(f"{where} outside of it ({_plain(box)}, left top right bottom): correct it.")
        tally["cut"] += max(abs(a - b) for a, b in zip(box, inside, strict=True)) > OFF_BY_ONE
        tally["crowd"] += many
        tally[f"marked as {one.mark}: neither learnt nor counted"] += many
        kept.append(_Box(inside, name, many, outline, f"{image} an outline of {name!r}"))
    return kept


def _made(boxes: Sequence[_Box], place: Mapping[str, int], size: tuple[int, int], tally: Counter[str]) -> Boxes:
    known = [one for one in boxes if one.name in place]
    corners, crowd = [one.corners for one in known], [one.crowd for one in known]
    outlines, where = [one.outline for one in known], [one.where for one in known]
    return Boxes(
        np.asarray(corners, dtype=np.float32).reshape(-1, 4),
        np.asarray([place[one.name] for one in known], dtype=np.int64),
        np.asarray(crowd, dtype=np.bool_),
        size,
        masks_of(outlines, corners, crowd, size, where, tally),
    )


def _told(tally: Counter[str], numbers: Mapping[str, int], classes: Sequence[str], bare: int) -> list[str]:
    unused = [name for name in numbers if name not in classes]
    words = {
        "empty": "without an area dropped",
        "cut": "cut at the edge of the image",
        **{words: words for words in tally if words.startswith("marked")},
        "pixelless": "with an outline that covers no pixel: its mask is the box",
    }
    told = [f"{counted(tally[kind], 'box', 'boxes')} {what}" for kind, what in words.items() if tally[kind]]
    if unused:
        shown = ", ".join(unused[:5]) + (", ..." if len(unused) > 5 else "")
        told.append(f"{counted(len(unused), 'class', 'classes')} without a box left out: {shown}")
    if alike := [" and ".join(map(repr, group)) for group in alike_names(classes)]:
        shown = ", ".join(alike[:5]) + (", ..." if len(alike) > 5 else "")
        told.append(f"classes have names that look the same ({shown}): give them one name if one class is meant")
    if bare:
        told.append(f"{counted(bare, 'image')} without a box: they teach what is no object")
    return told


def _plain(box: Sequence[float]) -> str:
    return " ".join(f"{value:g}" for value in box)
