"""The images and labels (boxes, masks or classes) of a set, in one representation for all layouts to write."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paucal.data.boxes.annotations import Corners, box_of_run_lengths, run_lengths_of
from paucal.data.boxes.opening import read_boxes
from paucal.data.classes import valid_text
from paucal.data.images import UNKNOWN, ImageSet
from paucal.data.label_kinds import LABEL_KINDS, describe_labels
from paucal.data.masks.coding import IGNORED, read_class_names
from paucal.data.masks.masked_images import images_of_pairs, read_masks
from paucal.data.masks.pairs import find_pairs
from paucal.data.shards.writing import encode_image
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.unreadable import ReportProgress
from paucal.runner.images import open_undecoded, with_run_decode_options
from paucal.tasks.detection.images import clip_boxes, convert_annotations
from paucal.tasks.detection.masks import check_outline, mask_of_outline, unpack_mask
from paucal.types import UserError
from paucal.verbs.convert.settings import ConvertSettings
from paucal.wording import counted

BACKGROUND = "background"
# Descriptions of labels that a layout cannot store.
UNKNOWN_LABELS = "unknown labels (they become negative labels)"
CROWDS, OUTLINES = "crowds and difficult objects, left out", "outlines (their boxes are kept)"
Kind = Literal["detect", "segment", "train"]


@dataclass(frozen=True)
class AnnotatedObject:
    """An object in an image."""

    name: str
    box: Corners  # left, top, right, bottom in pixels
    crowd: bool = False  # whether the object is marked as a crowd or as difficult
    outline: Any = None  # polygons or run lengths, as in COCO's field "segmentation"; None if unknown
    score: float | None = None  # confidence of the model that detected the object; None for human annotations


@dataclass(frozen=True)
class LabelledImage:
    """One image of a set."""

    index: int  # position of the image in the set
    name: str  # file name, unique in the set even without its suffix
    split: str  # "train", "val" or "test", or "" if the set has no splits
    size: tuple[int, int] = (0, 0)  # (height, width) in pixels, unless the labels are classes of whole images
    objects: tuple[AnnotatedObject, ...] = ()  # empty if the labels are not boxes
    labels: tuple[str, ...] = ()  # classes of the whole image; empty if the labels are boxes or masks
    score: float | None = None  # confidence of the model that predicted the labels; None for human labels

    @property
    def stem(self) -> str:
        """File name without its suffix."""
        return PurePosixPath(self.name).stem

    def relative_path(self, folder: str, suffix: str = "") -> str:
        """Return the path FOLDER/SPLIT/NAME of the image, or of its label file if `suffix` is given."""
        name = f"{self.stem}{suffix}" if suffix else self.name
        return "/".join(part for part in (folder, self.split, name) if part)


@dataclass(frozen=True)
class LabelledSet:
    """The images and labels of a set to write."""

    kind: Kind  # command that trains on the labels: "detect" for boxes, "segment" for masks, "train" for classes
    images: ImageSet
    items: tuple[LabelledImage, ...]
    class_numbers: dict[str, int]
    # Function from the position of an image to its (H, W) class numbers; None if the labels are not masks.
    mask: Callable[[int], NDArray[np.uint8]] | None = None
    lost: Counter[str] = field(default_factory=Counter)  # number of labels that the layout cannot store, by description
    model: str = ""  # name of the model that predicted the labels; "" for human labels

    @property
    def splits(self) -> list[str]:
        """Splits of the set; [""] if the set has no splits."""
        return [part for part in ("train", "val", "test", "") if any(item.split == part for item in self.items)]


def read_labelled_set(settings: ConvertSettings, kinds: Sequence[Kind], progress: ReportProgress) -> LabelledSet:
    """Read a set with its labels of one kind: the first kind in `kinds` that the set contains."""
    path = Path(settings.data).expanduser()
    has_masks = settings.images is not None or settings.masks is not None
    kinds_found = {"segment": "masks"} if has_masks else describe_labels(path) if path.exists() else {}
    kind, content = next((kind for kind in kinds if kind in kinds_found), None), None
    if not kinds_found:  # `path` is a table, a published set, shards or similar, or is invalid
        content = _read_classes(settings, path, progress)  # raises a UserError if `path` is invalid
        kind = "train" if "train" in kinds else None
        kinds_found = {"train": f"classes of {counted(len(content.items), 'image')}"}
    if kind is None:
        nouns = " or ".join(kind.noun for kind in LABEL_KINDS if kind.verb in kinds)
        contents_text = f"{settings.data} has {' and '.join(kinds_found.values())}"
        raise UserError(f"{contents_text}, but --to {settings.to} takes {nouns}: choose another --to.")
    readers = {"detect": _read_boxes, "segment": _read_mask_set, "train": _read_classes}
    content = content or readers[kind](settings, path, progress)
    return with_file_names(replace(content, images=with_run_decode_options(content.images, settings)))


def with_file_names(content: LabelledSet) -> LabelledSet:
    """Return the content with a unique file name in valid Unicode for each item."""
    keys = []
    for item in content.items:
        key = valid_text(content.images.keys[item.index])
        if not key.lower().endswith(IMAGE_SUFFIXES):
            encoded = encode_image(content.images, item.index)
            suffix = ".png" if isinstance(encoded, str) else encoded[1]
            key = f"{key.replace('#', '-')}{suffix}"  # "#" would end the name in the URLs of Label Studio
        keys.append(key)
    items = tuple(replace(item, name=name) for item, name in zip(content.items, unique_names(keys), strict=True))
    return replace(content, items=items)


def unique_names(keys: Sequence[str]) -> list[str]:
    """Return a file name for each image: the image's name, preceded by its folders if other images have the same stem.

    Example:
        >>> unique_names(["a/1.jpg", "b/1.jpg", "c/2.jpg"])
        ['a__1.jpg', 'b__1.jpg', '2.jpg']
    """
    paths = [PurePosixPath(key) for key in keys]
    stems = Counter(path.stem.casefold() for path in paths)
    names = [path.name if stems[path.stem.casefold()] == 1 else "__".join(path.parts) for path in paths]
    uses: Counter[str] = Counter()
    for index, name in enumerate(names):
        stem = PurePosixPath(name).stem.casefold()
        uses[stem] += 1
        if uses[stem] > 1:
            names[index] = f"{PurePosixPath(name).stem}__{uses[stem]}{PurePosixPath(name).suffix}"
    return names


def _read_boxes(settings: ConvertSettings, path: Path, progress: ReportProgress) -> LabelledSet:
    tree, annotations = read_boxes(path)
    without_outlines = [replace(image, outlines=[]) for image in annotations.images]
    boxed = convert_annotations(tree, replace(annotations, images=without_outlines))
    numbers = dict(zip(boxed.classes, boxed.category_ids, strict=True))
    items = []
    for index, image in enumerate(annotations.images):
        size = boxed.boxes[image.key].size
        boxes = clip_boxes(image, size, Counter())
        objects = tuple(AnnotatedObject(box.name, box.corners, box.crowd, box.outline or None) for box in boxes)
        items.append(LabelledImage(index, "", image.declared_split, size, objects))
    names = {obj.name for item in items for obj in item.objects}
    crowd_classes = names - numbers.keys()  # classes whose objects are all crowds
    numbers |= {name: annotations.class_numbers[name] for name in sorted(crowd_classes)}
    n_lost = sum(len(image.boxes) for image in annotations.images) - sum(len(item.objects) for item in items)
    n_tags = sum(len(image.tags) for image in annotations.images)
    lost = Counter({"boxes without an area": n_lost, "labels of whole images": n_tags})
    return LabelledSet("detect", boxed.images, tuple(items), numbers, lost=lost)


def _read_mask_set(settings: ConvertSettings, path: Path, progress: ReportProgress) -> LabelledSet:
    paths = (None if text is None else Path(text).expanduser() for text in (settings.images, settings.masks))
    pairs = find_pairs(path, *paths)
    location = settings.data
    if settings.images is not None:
        location = settings.images
    images = images_of_pairs(pairs, location)
    class_names = None if settings.classes is None else read_class_names(Path(settings.classes))
    masked = read_masks(images, pairs, settings.mask_values, settings.ignore, class_names, progress)
    splits = enumerate(images.declared_splits)
    items = [LabelledImage(index, "", split, masked.images.store.size(index)) for index, split in splits]
    return LabelledSet("segment", masked.images, tuple(items), number_classes(masked.images.classes), masked.masks.read)


def _read_classes(settings: ConvertSettings, path: Path, progress: ReportProgress) -> LabelledSet:
    images = open_undecoded(settings, advance=progress)
    splits = enumerate(images.declared_splits)
    items = [LabelledImage(index, "", split, labels=tuple(images.classes_of(index))) for index, split in splits]
    return LabelledSet("train", images, tuple(items), number_classes(images.classes))


def number_classes(classes: Sequence[str]) -> dict[str, int]:
    """Return a dict from class names to class numbers, counted from 0."""
    return {name: number for number, name in enumerate(classes)}


def save_text(path: Path, text: str) -> None:
    """Write a text file, and create its parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def count_unknown_labels(content: LabelledSet) -> None:
    """Count unknown labels as lost, since they become negative labels in a layout that only lists classes."""
    if content.kind == "train" and content.images.multi_hot is not None:
        content.lost[UNKNOWN_LABELS] += int((content.images.multi_hot == UNKNOWN).sum())


def list_objects(content: LabelledSet, item: LabelledImage) -> Sequence[AnnotatedObject]:
    """Return the objects of an image; if its label is a mask, one object per class with all pixels of the class."""
    if content.kind != "segment" or content.mask is None:
        return item.objects
    mask, objects = content.mask(item.index), []
    content.lost["unlabelled pixels, in images"] += bool((mask == IGNORED).any())
    for name, number in content.class_numbers.items():
        if name != BACKGROUND and (mask == number).any():
            runs = run_lengths_of(mask == number)
            box = box_of_run_lengths(runs)
            assert box is not None
            objects.append(AnnotatedObject(name, box, outline=runs))
    return objects


def without_crowds(content: LabelledSet, item: LabelledImage) -> list[AnnotatedObject]:
    """Return the objects of an image except crowds, which are counted as lost."""
    objects = list_objects(content, item)
    content.lost[CROWDS] += sum(obj.crowd for obj in objects)
    return [obj for obj in objects if not obj.crowd]


def checked_outline(item: LabelledImage, obj: AnnotatedObject) -> Any:
    """Return the outline of an object (None or empty if unknown); raise a UserError if the outline is invalid."""
    if obj.outline:
        check_outline(obj.outline, item.size, _context(item, obj))
    return obj.outline


def polygon_of(item: LabelledImage, obj: AnnotatedObject) -> list[float] | None:
    """Return the outline of an object if it is a single polygon, as alternating x and y coordinates; otherwise None."""
    outline = checked_outline(item, obj)
    return outline[0] if isinstance(outline, list) and len(outline) == 1 else None


def mask_of(item: LabelledImage, obj: AnnotatedObject) -> NDArray[np.bool_]:
    """Return an (H, W) mask of the pixels inside an object's outline."""
    return unpack_mask(mask_of_outline(obj.outline, item.size, _context(item, obj))).astype(np.bool_)


def _context(item: LabelledImage, obj: AnnotatedObject) -> str:
    return f"{item.name!r} has an outline of {obj.name!r}"
