"""`ImageSet`: the keys, labels and pixels of a set of images, opened from any source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.decode import DEFAULT_DECODE_OPTIONS, DecodeOptions, UnreadableImage
from paucal.data.shards.stream import Stream
from paucal.data.stores import ConvertedStore, DecodedCopies, Store, StoreSelection, locate_original
from paucal.data.string_arrays import take_strings
from paucal.types import UserError

Targets = NDArray[np.integer]  # (N,) labels, or (N, K) multi-hot rows
UNKNOWN = -1  # value in a multi-hot row if it is unknown whether the image belongs to the class


@dataclass(frozen=True)
class Hints:
    """Properties of a set's images from which default settings are chosen."""

    flip: bool = True  # whether a mirrored image has the same meaning (not true for digits)
    image_size: int | None = None  # side in pixels that suits the images; None if unknown
    epochs: int | None = None  # number of epochs of a short first run; None if unknown
    # Training images per class that papers use for a set without an official split, with all others as test images.
    train_per_class: int | None = None
    official_split_advice: str = ""  # how to get the official split if it is missing


@dataclass(frozen=True)
class ImageSet:
    """Images with stable keys in a fixed order, and their labels if they have any."""

    name: str  # name of the set for messages and reports
    location: str  # path, URL or name that the images were opened from
    classes: tuple[str, ...]  # class names in label order; empty for an unlabelled set
    # Keys, which stay the same if the set is copied: relative paths with forward slashes; `train.parquet#12` for a row.
    keys: Sequence[str]
    # (N,) class numbers, in a small type for shards; -1 for unlabelled images, and for all if there is a `multi_hot`.
    labels: NDArray[np.integer]
    # Split of each image as the source declares it: "train", "val" or "test"; "" if the source declares no split.
    declared_splits: Sequence[str]
    store: Store
    hints: Hints = Hints()
    notes: tuple[str, ...] = ()  # sentences on what was left out or looks wrong, for `paucal check` and the report
    # Other columns of the table that lists the images, and error messages for those that cannot be used, by name.
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    column_problems: Mapping[str, str] = field(default_factory=dict)
    decode_options: DecodeOptions = DEFAULT_DECODE_OPTIONS  # how the store decodes images
    multi_hot: NDArray[np.int8] | None = None  # (N, K) labels 1, 0 and `UNKNOWN`; None if each image has one label
    # Storage order of images streamed from large shards; None if all images are decoded before a run.
    stream: Stream | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.keys), len(self.labels), len(self.declared_splits), len(self.store)}
        lengths |= {len(column) for column in self.columns.values()}
        lengths |= set() if self.stream is None else {len(self.stream)}
        if len(lengths) != 1:
            raise ValueError(
                f"keys, labels, declared_splits, store, columns and stream differ in length: {sorted(lengths)}"
            )
        if len(self.labels) and not -1 <= self.labels.min() <= self.labels.max() < max(len(self.classes), 1):
            raise ValueError(f"labels are outside of [-1, {len(self.classes)})")
        if self.multi_hot is None:
            return
        expected = (len(self), len(self.classes))
        if self.multi_hot.shape != expected or not np.isin(self.multi_hot, (1, 0, UNKNOWN)).all():
            raise ValueError(
                f"multi_hot has the shape {self.multi_hot.shape} or invalid values, expected {expected} with values "
                "1, 0 and -1"
            )
        if (self.labels >= 0).any():
            raise ValueError("some images have a label in both labels and multi_hot, expected only one of the two")

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def has_single_labels(self) -> bool:
        """Whether every image has one label."""
        return bool(self.classes) and bool((self.labels >= 0).all())

    @property
    def targets(self) -> Targets:
        """Training targets: the (N,) labels, or the (N, K) `multi_hot`."""
        return self.labels if self.multi_hot is None else self.multi_hot

    def column_values(self, column: str) -> Sequence[str]:
        """Return the text of an image in one of the `columns`, for each image; refuse a column with problems."""
        if column in self.column_problems:
            raise UserError(self.column_problems[column])
        return self.columns[column]

    def classes_of(self, index: int) -> list[str]:
        """Return the class names of an image; labels that are unknown are left out."""
        if self.multi_hot is not None:
            return [self.classes[position] for position in np.flatnonzero(self.multi_hot[index] == 1)]
        label = int(self.labels[index])
        return [self.classes[label]] if label >= 0 else []

    def positions_of_class(self, label: int) -> NDArray[np.int64]:
        """Return the positions of the images of a class."""
        return np.flatnonzero(self.labels == label if self.multi_hot is None else self.multi_hot[:, label] == 1)

    def as_multi_hot(self) -> "ImageSet":
        """Return the set with multi-hot labels; all entries of an unlabelled image are `UNKNOWN`."""
        if self.multi_hot is not None:
            return self
        rows = np.eye(len(self.classes), dtype=np.int8)[self.labels]
        rows[self.labels < 0] = UNKNOWN
        return replace(self, labels=np.full(len(self), -1, dtype=np.int64), multi_hot=rows)

    def class_counts(self, indices: Sequence[int] | NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return the (K,) number of images per class, counted over `indices`, or over the whole set if None."""
        if self.multi_hot is not None:
            rows = self.multi_hot if indices is None else self.multi_hot[np.asarray(indices, dtype=np.int64)]
            return (rows == 1).sum(0)
        labels = self.labels if indices is None else self.labels[np.asarray(indices, dtype=np.int64)]
        return np.bincount(labels[labels >= 0], minlength=len(self.classes))

    def sample(self, count: int, indices: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return up to `count` positions (groups of neighbours if streamed) spread over the set or `indices`."""
        total = len(self) if indices is None else len(indices)
        if self.stream is None:
            positions = evenly_spaced(total, count)
        else:
            positions = (self.stream if indices is None else self.stream.take(indices)).sample(count)
        return positions if indices is None else np.asarray(indices, dtype=np.int64)[positions]

    def sample_sizes(self, count: int = 256) -> NDArray[np.int64]:
        """Return the (n, 2) heights and widths in the readable headers of up to `count` images spread over the set."""
        sizes = []
        for index in self.sample(count):
            try:
                sizes.append(self.store.size(int(index)))
            except UnreadableImage:
                continue
        return np.asarray(sizes, dtype=np.int64).reshape(-1, 2)

    def with_decode_options(self, options: DecodeOptions) -> "ImageSet":
        """Return the set with images that are decoded as `options` specify."""
        return replace(self, store=ConvertedStore(self.store, options), decode_options=options)

    def with_classes(self, classes: tuple[str, ...]) -> "ImageSet":
        """Return the set with its labels renumbered to the order of `classes`, which may include further classes."""
        if missing := set(self.classes) - set(classes):
            raise ValueError(f"expected names for all classes, {sorted(missing)} are missing")
        # New label of each old label; the label -1 stays -1.
        new_labels = np.array([classes.index(name) for name in self.classes] + [-1], dtype=np.int64)
        multi_hot = None
        if self.multi_hot is not None:  # the columns of classes that the set lacks are 0
            multi_hot = np.zeros((len(self), len(classes)), dtype=np.int8)
            multi_hot[:, new_labels[:-1]] = self.multi_hot
        return replace(self, classes=classes, labels=new_labels[self.labels], multi_hot=multi_hot)

    def select(self, indices: NDArray[np.int64], note: str = "") -> "ImageSet":
        """Return the images at `indices`, in their order; classes stay as they are."""
        return replace(
            self,
            keys=take_strings(self.keys, indices),
            labels=self.labels[indices],
            declared_splits=take_strings(self.declared_splits, indices),
            store=StoreSelection(self.store, indices),
            notes=(*self.notes, note) if note else self.notes,
            columns={name: [column[i] for i in indices] for name, column in self.columns.items()},
            multi_hot=None if self.multi_hot is None else self.multi_hot[indices],
            stream=self.stream and self.stream.take(np.asarray(indices, dtype=np.int64)),
        )


def evenly_spaced(total: int, count: int) -> NDArray[np.int64]:
    """Return up to `count` different positions, evenly spread over `range(total)`."""
    count = min(total, count)
    return np.arange(count, dtype=np.int64) * total // max(count, 1)


def reduce_images(images: ImageSet, side: int) -> ImageSet:
    """Return a set whose much larger images are reduced to about `side` pixels, which is faster for photos."""
    return images.with_decode_options(replace(images.decode_options, side=side))


def full_size_image(images: ImageSet, index: int) -> Image.Image:
    """Return an image of a set at its original size."""
    if images.decode_options.side is None:
        return images.store.read(index)
    store, position = locate_original(images.store, index)
    return ConvertedStore(store, replace(images.decode_options, side=None)).read(position)


def without_decoded_copies(images: ImageSet) -> ImageSet:
    """Return a set that reads the original images instead of decoded copies; images left out earlier stay left out."""
    store = images.store
    if isinstance(store, DecodedCopies) and store.original is not None:
        store = store.original
    return replace(images, store=store, decode_options=DEFAULT_DECODE_OPTIONS)
