"""The content of a set in one form for all layouts: images with boxes, with masks, or with classes."""

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
from paucal.data.masks.coding import read_class_names
from paucal.data.masks.masked_images import images_of_pairs, read_masks
from paucal.data.masks.pairs import find_pairs
from paucal.data.recognition import KINDS, recognise
from paucal.data.shards.writing import encode_image
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.unreadable import ReportProgress
from paucal.runner.images import as_read, find_images
from paucal.tasks.detection.images import MIN_BOX_SIDE, check_annotations
from paucal.types import UserError
from paucal.verbs.convert.settings import ConvertSettings
from paucal.wording import counted

Kind = Literal["detect", "segment", "train"]


@dataclass(frozen=True)
class Thing:
    """An object of an image.

    Attributes:
        name: Its class.
        box: (left, top, right, bottom) in pixels.
        crowd: Whether it is a crowd or difficult.
        outline: Its outline in COCO's form; None if unknown.
        score: Confidence of the model that found it; None for human annotations.
    """

    name: str
    box: Corners
    crowd: bool = False
    outline: Any = None
    score: float | None = None


@dataclass(frozen=True)
class Item:
    """One image of a set.

    Attributes:
        index: Position in the set.
        name: File name, unique in the set even without its suffix.
        part: "train", "val", "test", or "" if the set has no parts.
        size: (height, width) in pixels; (0, 0) in sets of classes.
        things: Objects.
        labels: Classes of the whole image.
        score: Confidence of the model that gave the labels; None for human labels.
    """

    index: int
    name: str
    part: str
    size: tuple[int, int] = (0, 0)
    things: tuple[Thing, ...] = ()
    labels: tuple[str, ...] = ()
    score: float | None = None

    @property
    def stem(self) -> str:
        """Name without its suffix."""
        return PurePosixPath(self.name).stem

    def place(self, folder: str, suffix: str = "") -> str:
        """Return the path FOLDER/PART/NAME of the image, or of its companion file with another suffix."""
        name = f"{self.stem}{suffix}" if suffix else self.name
        return "/".join(part for part in (folder, self.part, name) if part)


@dataclass(frozen=True)
class Content:
    """The images and labels of a set, in the form in which they are converted.

    Attributes:
        kind: Verb that trains on the labels: "detect" for boxes, "segment" for masks, "train" for classes.
        images: The images.
        items: Name, split and labels of each image.
        numbers: Number of each class, by name.
        mask: Function that returns the (H, W) class numbers of an image; None without masks.
        lost: Number of objects or labels that the target layout cannot store, by description.
        model: Name of the model that predicted the labels; "" for human labels.
    """

    kind: Kind
    images: ImageSet
    items: tuple[Item, ...]
    numbers: dict[str, int]
    mask: Callable[[int], NDArray[np.uint8]] | None = None
    lost: Counter[str] = field(default_factory=Counter)
    model: str = ""

    @property
    def parts(self) -> list[str]:
        """Parts of the set, "" alone if it has none."""
        return [part for part in ("train", "val", "test", "") if any(item.part == part for item in self.items)]


def read_content(settings: ConvertSettings, kinds: Sequence[Kind], progress: ReportProgress) -> Content:
    """Read a set as the first of the kinds of labels that it has; `kinds` are in order of preference."""
    path = Path(settings.data).expanduser()
    has_masks = settings.images is not None or settings.masks is not None
    kinds_found = {"segment": "masks"} if has_masks else recognise(path) if path.exists() else {}
    kind, content = next((kind for kind in kinds if kind in kinds_found), None), None
    if not kinds_found:  # a table, a published set, shards, ...: opening reports errors
        content = _read_classes(settings, path, progress)
        kind = "train" if "train" in kinds else None
        kinds_found = {"train": f"classes of {counted(len(content.items), 'image')}"}
    if kind is None:
        nouns = " or ".join(kind.noun for kind in KINDS if kind.verb in kinds)
        says = f"{settings.data} has {' and '.join(kinds_found.values())}"
        raise UserError(f"{says}, but --to {settings.to} takes {nouns}: choose another --to.")
    readers = {"detect": _read_boxes, "segment": _read_mask_set, "train": _read_classes}
    content = content or readers[kind](settings, path, progress)
    return with_names(replace(content, images=as_read(content.images, settings)))


def with_names(content: Content) -> Content:
    """Return the content with a unique file name for each item."""
    names = unique_names([_with_suffix(content.images, item.index) for item in content.items])
    items = [replace(item, name=name) for item, name in zip(content.items, names, strict=True)]
    return replace(content, items=tuple(items))


def _with_suffix(images: ImageSet, index: int) -> str:
    """Return the file name of an image in valid Unicode; a row of a table gets the suffix of its image format."""
    key = valid_text(images.keys[index])
    if key.lower().endswith(IMAGE_SUFFIXES):
        return key
    encoded = encode_image(images, index)
    # In Label Studio's URLs, "#" would end the name.
    return f"{key.replace('#', '-')}{'.png' if isinstance(encoded, str) else encoded[1]}"


def unique_names(keys: Sequence[str]) -> list[str]:
    """Return a file name for each image: its own, or with its folders if two stems are equal.

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


def _read_boxes(settings: ConvertSettings, path: Path, progress: ReportProgress) -> Content:
    tree, annotations = read_boxes(path)
    plain = [replace(image, outlines=[]) for image in annotations.images]
    boxed = check_annotations(tree, replace(annotations, images=plain))
    numbers = dict(zip(boxed.classes, boxed.category_ids, strict=True))
    items = []
    for index, image in enumerate(annotations.images):
        size = boxed.boxes[image.key].size
        items.append(Item(index, "", image.declared, size, tuple(_cut_objects(image, size))))
    names = {thing.name for item in items for thing in item.things}
    crowd_classes = names - numbers.keys()  # classes that only crowds have
    numbers |= {name: annotations.numbers[name] for name in sorted(crowd_classes)}
    n_lost = sum(len(image.boxes) for image in annotations.images) - sum(len(item.things) for item in items)
    n_tags = sum(len(image.tags) for image in annotations.images)
    lost = Counter({"boxes without an area": n_lost, "labels of whole images": n_tags})
    return Content("detect", boxed.images, tuple(items), numbers, lost=lost)


def _cut_objects(image: AnnotatedImage, size: tuple[int, int]) -> list[Thing]:
    """Return the objects of an image as `paucal detect` sees them: cut at its edges, and with an area."""
    height, width = size
    outlines = image.outlines or [None] * len(image.boxes)
    objects = []
    for box, name, crowd, outline in zip(image.boxes, image.names, image.crowd, outlines, strict=True):
        cut_box = (max(box[0], 0.0), max(box[1], 0.0), min(box[2], float(width)), min(box[3], float(height)))
        if cut_box[2] - cut_box[0] >= MIN_BOX_SIDE and cut_box[3] - cut_box[1] >= MIN_BOX_SIDE:
            objects.append(Thing(name, cut_box, crowd, outline or None))
    return objects


def _read_mask_set(settings: ConvertSettings, path: Path, progress: ReportProgress) -> Content:
    paths = (None if text is None else Path(text).expanduser() for text in (settings.images, settings.masks))
    pairs = find_pairs(path, *paths)
    images = images_of_pairs(pairs, settings.images or settings.data)
    class_names = None if settings.classes is None else read_class_names(Path(settings.classes))
    masked = read_masks(images, pairs, settings.mask_values, settings.ignore, class_names, progress)
    items = [Item(n, "", part, masked.images.store.size(n)) for n, part in enumerate(images.declared)]
    return Content("segment", masked.images, tuple(items), numbered(masked.images.classes), masked.masks.read)


def _read_classes(settings: ConvertSettings, path: Path, progress: ReportProgress) -> Content:
    images = find_images(settings, advance=progress)
    items = [Item(n, "", part, labels=tuple(images.classes_of(n))) for n, part in enumerate(images.declared)]
    return Content("train", images, tuple(items), numbered(images.classes))


def numbered(classes: Sequence[str]) -> dict[str, int]:
    """Return the number of each class by its name."""
    return {name: number for number, name in enumerate(classes)}
