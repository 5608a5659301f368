"""The images and labels (boxes, masks or classes) of a set, in one representation for all layouts."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paucal.data.boxes.annotations import AnnotatedImage, Corners
from paucal.data.boxes.opening import read_boxes
from paucal.data.classes import valid_text
from paucal.data.images import ImageSet
from paucal.data.label_kinds import LABEL_KINDS, describe_labels
from paucal.data.masks.coding import read_class_names
from paucal.data.masks.masked_images import images_of_pairs, read_masks
from paucal.data.masks.pairs import find_pairs
from paucal.data.shards.writing import encode_image
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.unreadable import ReportProgress
from paucal.runner.images import open_undecoded, with_run_decode_options
from paucal.tasks.detection.images import MIN_BOX_SIDE, convert_annotations
from paucal.types import UserError
from paucal.verbs.convert.settings import ConvertSettings
from paucal.wording import counted

Kind = Literal["detect", "segment", "train"]


@dataclass(frozen=True)
class AnnotatedObject:
    """An object in an image.

    Attributes:
        box: (left, top, right, bottom) in pixels.
        crowd: Whether the object is marked as a crowd or as difficult.
        outline: Outline as in the field "segmentation" of COCO: polygons or run lengths; None if unknown.
        score: Confidence of the model that detected the object; None for human annotations.
    """

    name: str
    box: Corners
    crowd: bool = False
    outline: Any = None
    score: float | None = None


@dataclass(frozen=True)
class LabelledImage:
    """One image of a set.

    Attributes:
        index: Position in the set.
        name: File name, unique in the set even without its suffix.
        split: Split: "train", "val" or "test", or "" if the set has no splits.
        size: (height, width) in pixels; (0, 0) if the labels are classes of whole images.
        objects: Annotated objects; empty if the labels are not boxes.
        labels: Classes of the whole image; empty if the labels are boxes or masks.
        score: Confidence of the model that predicted the labels; None for human labels.
    """

    index: int
    name: str
    split: str
    size: tuple[int, int] = (0, 0)
    objects: tuple[AnnotatedObject, ...] = ()
    labels: tuple[str, ...] = ()
    score: float | None = None

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
    """The images and labels of a set to write.

    Attributes:
        kind: Command that trains on the labels: "detect" for boxes, "segment" for masks, "train" for classes.
        class_numbers: Class numbers, by class name.
        mask: Function that returns the (H, W) class numbers of the image at a position; None if there are no masks.
        lost: Numbers of objects or labels that the target layout cannot store, by a description of what is lost.
        model: Name of the model that predicted the labels; "" for human labels.
    """

    kind: Kind
    images: ImageSet
    items: tuple[LabelledImage, ...]
    class_numbers: dict[str, int]
    mask: Callable[[int], NDArray[np.uint8]] | None = None
    lost: Counter[str] = field(default_factory=Counter)
    model: str = ""

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
    """Return the content with a unique file name for each item."""
    names = unique_names([_file_name_of(content.images, item.index) for item in content.items])
    items = [replace(item, name=name) for item, name in zip(content.items, names, strict=True)]
    return replace(content, items=tuple(items))


def _file_name_of(images: ImageSet, index: int) -> str:
    """Return the key of an image as a file name in valid Unicode, with the suffix of its format if the key has none."""
    key = valid_text(images.keys[index])
    if key.lower().endswith(IMAGE_SUFFIXES):
        return key
    encoded = encode_image(images, index)
    # "#" would end the name in the URLs of Label Studio.
    return f"{key.replace('#', '-')}{'.png' if isinstance(encoded, str) else encoded[1]}"


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
        items.append(LabelledImage(index, "", image.declared_split, size, tuple(_clip_objects(image, size))))
    names = {obj.name for item in items for obj in item.objects}
    crowd_classes = names - numbers.keys()  # classes whose objects are all crowds
    numbers |= {name: annotations.class_numbers[name] for name in sorted(crowd_classes)}
    n_lost = sum(len(image.boxes) for image in annotations.images) - sum(len(item.objects) for item in items)
    n_tags = sum(len(image.tags) for image in annotations.images)
    lost = Counter({"boxes without an area": n_lost, "labels of whole images": n_tags})
    return LabelledSet("detect", boxed.images, tuple(items), numbers, lost=lost)


def _clip_objects(image: AnnotatedImage, size: tuple[int, int]) -> list[AnnotatedObject]:
    """Return the objects of an image as `paucal detect` reads them: clipped to the image, without empty boxes."""
    height, width = size
    outlines = image.outlines or [None] * len(image.boxes)
    objects = []
    for box, name, crowd, outline in zip(image.boxes, image.names, image.crowd, outlines, strict=True):
        clipped_box = (max(box[0], 0.0), max(box[1], 0.0), min(box[2], float(width)), min(box[3], float(height)))
        if clipped_box[2] - clipped_box[0] >= MIN_BOX_SIDE and clipped_box[3] - clipped_box[1] >= MIN_BOX_SIDE:
            objects.append(AnnotatedObject(name, clipped_box, crowd, outline or None))
    return objects


def _read_mask_set(settings: ConvertSettings, path: Path, progress: ReportProgress) -> LabelledSet:
    paths = (None if text is None else Path(text).expanduser() for text in (settings.images, settings.masks))
    pairs = find_pairs(path, *paths)
    location = settings.data
    if settings.images is not None:
        location = settings.images
    images = images_of_pairs(pairs, location)
    class_names = None if settings.classes is None else read_class_names(Path(settings.classes))
    masked = read_masks(images, pairs, settings.mask_values, settings.ignore, class_names, progress)
    items = [LabelledImage(n, "", part, masked.images.store.size(n)) for n, part in enumerate(images.declared_splits)]
    return LabelledSet("segment", masked.images, tuple(items), number_classes(masked.images.classes), masked.masks.read)


def _read_classes(settings: ConvertSettings, path: Path, progress: ReportProgress) -> LabelledSet:
    images = open_undecoded(settings, advance=progress)
    items = [
        LabelledImage(n, "", part, labels=tuple(images.classes_of(n))) for n, part in enumerate(images.declared_splits)
    ]
    return LabelledSet("train", images, tuple(items), number_classes(images.classes))


def number_classes(classes: Sequence[str]) -> dict[str, int]:
    """Return a dict from class names to class numbers, counted from 0."""
    return {name: number for number, name in enumerate(classes)}
