"""Images with boxes: open annotation files of any supported format, and check the annotations against the images."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paucal.data.boxes.annotations import AnnotatedImage, AnnotationSet
from paucal.data.boxes.opening import read_boxes
from paucal.data.boxes.tree import Tree
from paucal.data.channels.decoding import array_shape
from paucal.data.classes import alike_names
from paucal.data.decode import ambiguity_note, read_orientation
from paucal.data.images import ImageSet
from paucal.data.label_kinds import report_other_label_kinds
from paucal.data.stores import EncodedStore
from paucal.reading import expand_user_path
from paucal.tasks.detection.masks import AnnotatedBox, RunLengths, masks_of_outlines
from paucal.types import NoLabelsError, UserError
from paucal.wording import counted, join_first_few

MIN_BOX_SIDE = 1e-3  # minimum side in pixels; a box with a shorter side counts as a box without an area
SIZE_TOLERANCE = 1  # tolerance in pixels, because some annotation programs count pixels from 0 and others from 1


@dataclass(frozen=True)
class Boxes:
    """The N boxes of an image."""

    corners: NDArray[np.float32]  # (N, 4), left, top, right and bottom in pixels
    labels: NDArray[np.int64]  # (N,), index of each box's class in the classes of the image set
    # (N,), whether a box is a crowd or a difficult object, which are neither trained on nor counted.
    crowd: NDArray[np.bool_]
    size: tuple[int, int]  # (height, width) in pixels
    masks: tuple[RunLengths, ...] | None = None  # mask of each box; None if unknown

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class BoxedImages:
    """A set of images with their boxes."""

    images: ImageSet  # `multi_hot` has the classes of each image's boxes, so that images can be split by class
    boxes: Mapping[str, Boxes]  # boxes of each image, by image key
    category_ids: tuple[int, ...]  # id of each class in the annotation files, for predictions in the same format
    without_outline: int = 0  # number of boxes without an outline, not counting crowds

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the labels."""
        return self.images.classes

    def boxes_of(self, index: int) -> Boxes:
        """Return the boxes of the image at a position."""
        return self.boxes[self.images.keys[index]]

    def count_boxes(self, indices: Iterable[int] | None = None) -> int:
        """Return the number of boxes of some or all images, not counting crowds and difficult objects."""
        indices = range(len(self.images)) if indices is None else indices
        return sum(int((~self.boxes_of(int(index)).crowd).sum()) for index in indices)


def open_boxed_images(location: str | Path, outlines: bool = True) -> BoxedImages:
    """Open images with boxes from a folder, zip, tar or annotation file; `outlines=False` ignores outlines."""
    path = expand_user_path(str(location), "DATA")
    if not path.exists():
        raise UserError(f"there is no file or folder {str(location)!r}: give a folder of images with boxes.")
    with report_other_label_kinds(path, "detect"):
        tree, annotations = read_boxes(path)
        if not any(image.boxes for image in annotations.images) and any(image.tags for image in annotations.images):
            raise NoLabelsError(f"{path} has image labels, but no boxes: use 'paucal train'.")
    if not outlines:
        annotations = replace(annotations, images=[replace(image, outlines=[]) for image in annotations.images])
    return convert_annotations(tree, annotations)


def convert_annotations(tree: Tree, annotations: AnnotationSet) -> BoxedImages:
    """Check annotations against the sizes of the images, and convert them to `BoxedImages`.

    Boxes without an area are dropped, and boxes are clipped to their image; the notes give the numbers of dropped and
    of clipped boxes. Classes without a box are left out. An image has masks if each of its boxes has an outline.
    """
    annotated, numbers = annotations.images, annotations.class_numbers
    if not annotated:
        raise UserError(f"{tree.shown_root!r} has no annotated image: give a folder with images and their boxes.")
    for image in annotated:
        if not tree.is_inside(image.key):
            raise UserError(
                f"{image.source} names {image.key!r}, which is outside {tree.shown_root!r}: move the image into that "
                "folder."
            )
    keys = [image.key for image in annotated]
    store = tree.make_store(keys)
    ambiguous: list[str] = []
    sizes = [_true_size(image, store, index, ambiguous) for index, image in enumerate(annotated)]
    edges = [edge for image in annotated for box in image.boxes for edge in box]
    if edges and 0 < max(edges) <= 1:
        raise UserError(
            f"all box coordinates of {tree.shown_root!r} are at most 1, like fractions of the images' sides; expected "
            "pixels: multiply x by the width, and y by the height."
        )
    tally: Counter[str] = Counter()
    clipped_boxes = [clip_boxes(image, size, tally) for image, size in zip(annotated, sizes, strict=True)]
    used_names = {box.name for image_boxes in clipped_boxes for box in image_boxes if not box.crowd}
    classes = tuple(name for name, _ in sorted(numbers.items(), key=lambda item: item[1]) if name in used_names)
    if not classes:
        if tally["crowd"]:
            raise UserError(
                f"all {counted(tally['crowd'], 'box', 'boxes')} of {tree.shown_root!r} are marked as crowds (iscrowd) "
                "or as difficult, which are neither trained on nor counted: remove the mark from single objects."
            )
        raise UserError(
            f"{tree.shown_root!r} has no box in {counted(len(annotated), 'image')}: annotate some objects first."
        )
    labels = {name: label for label, name in enumerate(classes)}
    boxes: dict[str, Boxes] = {}
    presence = np.zeros((len(keys), len(classes)), dtype=np.int8)
    for row, (key, image_boxes, size) in enumerate(zip(keys, clipped_boxes, sizes, strict=True)):
        used_boxes = [box for box in image_boxes if box.name in labels]
        boxes[key] = Boxes(
            np.asarray([box.corners for box in used_boxes], dtype=np.float32).reshape(-1, 4),
            np.asarray([labels[box.name] for box in used_boxes], dtype=np.int64),
            np.asarray([box.crowd for box in used_boxes], dtype=np.bool_),
            size,
            masks_of_outlines(used_boxes, size, tally),
        )
        presence[row, boxes[key].labels] = 1
    notes = _annotation_notes(tally, numbers, classes, int((presence.sum(1) == 0).sum()))
    notes += [ambiguity_note(ambiguous, "boxes")] if ambiguous else []
    images = ImageSet(
        name=tree.name,
        location=tree.location,
        classes=classes,
        keys=keys,
        labels=np.full(len(keys), -1, dtype=np.int64),
        declared_splits=[image.declared_split for image in annotated],
        store=store,
        notes=(*annotations.notes, *notes),
        multi_hot=presence,
    )
    return BoxedImages(images, boxes, tuple(numbers[name] for name in classes), tally["without_outline"])


def _true_size(image: AnnotatedImage, store: EncodedStore, index: int, ambiguous: list[str]) -> tuple[int, int]:
    """Return the (height, width) of an image file; refuse a file whose size differs from the annotated size.

    `ambiguous` collects keys of images whose boxes may have been drawn before or after an EXIF rotation.
    """
    shape, is_turned = array_shape(store.source(index), image.key), False
    if shape is not None:
        size = shape.height, shape.width
    else:
        orientation = read_orientation(store.source(index), image.key)
        size, is_turned = orientation.upright_size, orientation.value != 1
        if image.boxes and (orientation.is_ambiguous or (image.size is None and is_turned)):
            ambiguous.append(image.key)
    stated_size = image.size
    if stated_size is None or all(abs(a - b) <= SIZE_TOLERANCE for a, b in zip(stated_size, size, strict=True)):
        return size
    stated_pixels = f"{stated_size[1]}x{stated_size[0]} pixels"
    problem = f"{image.source} says that {image.key!r} has {stated_pixels}, but the image has {size[1]}x{size[0]}"
    if stated_size == size[::-1] and is_turned:
        raise UserError(
            f"{problem} after its EXIF rotation: store the image upright, or remove the tag, so that its boxes fit."
        )
    if stated_size == size[::-1]:
        problem += ", as after an EXIF rotation, although the image has no EXIF tag"
    raise UserError(f"{problem}: give the image on which its boxes were drawn.")


def clip_boxes(image: AnnotatedImage, size: tuple[int, int], tally: Counter[str]) -> list[AnnotatedBox]:
    """Return the boxes of an image, clipped to the image; `tally` counts dropped, clipped and crowd boxes."""
    height, width = size
    clipped_boxes: list[AnnotatedBox] = []
    outlines = image.outlines or [None] * len(image.boxes)
    for box, name, crowd, outline in zip(image.boxes, image.names, image.crowd, outlines, strict=True):
        left, top, right, bottom = box
        subject = f"{image.source} gives {image.key!r} ({width}x{height} pixels)"
        error_prefix = f"{subject} a box of {name!r}"
        corners = " ".join(f"{value:g}" for value in box)
        if not np.isfinite(box).all():
            raise UserError(f"{error_prefix} whose corners {corners} are not finite numbers: correct the box.")
        if right < left or bottom < top:
            raise UserError(
                f"{error_prefix} with the edges {corners}, expected left top right bottom, left <= right and "
                "top <= bottom: correct the box."
            )
        if right - left < MIN_BOX_SIDE or bottom - top < MIN_BOX_SIDE:
            tally["without_area"] += 1
            continue
        clipped_box = (max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height)))
        if clipped_box[2] - clipped_box[0] < MIN_BOX_SIDE or clipped_box[3] - clipped_box[1] < MIN_BOX_SIDE:
            raise UserError(f"{error_prefix} outside the image ({corners}, left top right bottom): correct the box.")
        tally["clipped"] += max(abs(a - b) for a, b in zip(box, clipped_box, strict=True)) > SIZE_TOLERANCE
        tally["crowd"] += crowd
        tally[f"marked as {image.crowd_word}: neither trained on nor counted"] += crowd
        clipped_boxes.append(AnnotatedBox(clipped_box, name, crowd, outline, f"{subject} an outline of {name!r}"))
    return clipped_boxes


def _annotation_notes(
    tally: Counter[str], numbers: Mapping[str, int], classes: Sequence[str], negatives: int
) -> list[str]:
    unused = [name for name in numbers if name not in classes]
    texts = {
        "without_area": "without an area dropped",
        "clipped": "cut at the edge of the image",
        **{kind: kind for kind in tally if kind.startswith("marked")},
        "without_pixel": "with an outline that covers no pixel: its mask is the box",
    }
    notes = [f"{counted(tally[kind], 'box', 'boxes')} {text}" for kind, text in texts.items() if tally[kind]]
    if unused:
        examples = join_first_few(unused)
        notes.append(f"{counted(len(unused), 'class', 'classes')} without a box left out: {examples}")
    if similar_names := [" and ".join(map(repr, group)) for group in alike_names(classes)]:
        examples = join_first_few(similar_names)
        notes.append(f"some class names look the same ({examples}): rename the classes if they should be one class")
    if negatives:
        notes.append(f"{counted(negatives, 'image')} without a box, used as negatives")
    return notes
