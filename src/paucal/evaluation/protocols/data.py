"""The images that a frozen backbone is evaluated on, and their splits: train, val and test."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.datasets import VOCDetection

from paucal.data.images import ImageSet
from paucal.data.named.table import data_root
from paucal.data.randomness import derive_seed
from paucal.data.splits.split import Split, keep_train_per_class, make_split
from paucal.data.stores import FileStore
from paucal.evaluation.protocols.classifier import require_two_classes
from paucal.metrics.measures import MetricName
from paucal.reading import read_text
from paucal.types import UserError
from paucal.wording import counted

PARTS = ("train", "val", "test")
POOL = "pool"  # training and validation images together


@dataclass(frozen=True)
class EvaluationData:
    """A data set of N images of K classes with its splits."""

    name: str
    images: ImageSet
    labels: Tensor  # (N,) in [0, K); or (N, K) labels 1, 0 or -1 (ignored) if images may have several classes
    split_positions: dict[str, NDArray[np.int64]]  # positions of the images of "train", "val" and "test" in the set
    n_classes: int
    metric: MetricName
    split_description: str  # says how the splits were made

    @property
    def used(self) -> NDArray[np.int64]:
        """Positions of the images of "train", then "val", then "test"; features are extracted in this order."""
        return np.concatenate([self.split_positions[part] for part in PARTS])

    def rows(self, part: str) -> slice:
        """Return the slice of `used` with the images of a split, or of "pool" ("train" and "val" together)."""
        train, val, test = (len(self.split_positions[name]) for name in PARTS)
        pool, total = train + val, train + val + test
        return slice(*{"train": (0, train), "val": (train, pool), "test": (pool, total), POOL: (0, pool)}[part])

    def positions(self, part: str) -> NDArray[np.int64]:
        """Return the positions of the images of a split or of the pool."""
        return self.used[self.rows(part)]

    def counts(self) -> dict[str, int]:
        """Return the number of images per split."""
        return {part: len(self.split_positions[part]) for part in PARTS}


def split_standalone_set(images: ImageSet, seed: int, val_fraction: float | None, test_fraction: float | None) -> Split:
    """Split an image set that does not belong to a run.

    The test images must be declared by the set, such as by a folder `test`, or requested with `test_fraction`. By
    default, no test images are drawn, since a model may have been trained on any image of a folder. The exception is
    published data sets without official splits, but with a published number of training images per class (30 for
    Caltech-101). This number of training images is drawn from each class, and all other images are test images.
    """
    named_fractions = (("val_fraction", val_fraction), ("test_fraction", test_fraction))
    fractions = {name: value for name, value in named_fractions if value is not None}
    if set(images.declared_splits) <= {"", "train"} and test_fraction is None:
        if (per_class := images.hints.train_per_class) is not None and images.has_single_labels:
            all_training = Split(np.full(len(images), "train", dtype="<U6"), "")
            is_drawn = keep_train_per_class(all_training, images.labels, per_class, seed).parts == "train"
            images = replace(images, declared_splits=np.where(is_drawn, "train", "test").tolist())
            split = make_split(images, seed, **fractions)  # type: ignore[arg-type]  # the fractions are numbers
            text = (
                f"{counted(per_class, 'training image')} per class, drawn with seed {seed}; all others are test images"
            )
            n_val = len(split.indices("val"))
            text += f"; {n_val} of the training images are used for validation" if n_val else ""
            return Split(split.strings, text)
        advice = images.hints.official_split_advice or "give a folder with train and test"
        raise UserError(
            f"{images.location} has no test split: {advice}, or draw one with --test-fraction 0.2 (only if the model "
            "was not trained on these images)."
        )
    return make_split(images, seed, **fractions)  # type: ignore[arg-type]  # the fractions are numbers


def evaluation_data(images: ImageSet, split: Split, metric: MetricName | None = None) -> EvaluationData:
    """Return a split data set with its metric.

    By default, the metric is the metric of EsViT's Table 9 if the data set is in this table, otherwise accuracy.
    """
    parts = {part: split.indices(part) for part in PARTS}
    labels = torch.from_numpy(images.targets).long()
    for part in ("train", "test"):
        if not len(parts[part]):
            raise UserError(
                f"{images.name} has no {part} images: give a data set with {part} images, or check the folder names."
            )
    if labels.ndim == 2:
        if metric not in (None, "map", "map11"):
            raise UserError(
                f"--metric {metric} needs one label per image, but images of {images.name} have several: remove "
                "--metric to use the mean average precision."
            )
        metric = metric or "map"
    else:
        require_two_classes(labels[torch.from_numpy(parts["train"])], f"the training images of {images.name}")
        metric = metric or metric_of(images.name)
        if metric in ("map", "map11") or (metric == "roc_auc" and len(images.classes) != 2):
            raise UserError(
                f"--metric {metric} is not defined for {images.name}, which has {len(images.classes)} classes and one "
                "label per image: use accuracy or mean_per_class."
            )
    return EvaluationData(images.name, images, labels, parts, len(images.classes), metric, split.description)


def limit_split_sizes(data: EvaluationData, max_images: int, seed: int) -> EvaluationData:
    """Limit each split to at most `max_images` images, with class counts as equal as possible."""
    if max_images < data.n_classes:
        raise UserError(
            f"--max-images is {max_images}, but {data.name} has {counted(data.n_classes, 'class', 'classes')}: give at "
            f"least {data.n_classes}."
        )
    parts = {
        part: balanced_sample(data.labels, indices, max_images, seed) for part, indices in data.split_positions.items()
    }
    how = f"{data.split_description}; at most {counted(max_images, 'image')} of each part (seed {seed})"
    return replace(data, split_positions=parts, split_description=how)


def balanced_sample(labels: Tensor, indices: NDArray[np.int64], max_images: int, seed: int) -> NDArray[np.int64]:
    """Draw at most `max_images` of the positions `indices`, with class counts as equal as possible; keep their order.

    `labels` are the (N,) labels of all images; (N, K) labels of images with several classes are ignored.
    """
    if len(indices) <= max_images:
        return indices
    order = np.random.default_rng(derive_seed(seed, len(indices))).permutation(indices)
    if labels.ndim == 2:
        return np.sort(order[:max_images])
    classes = labels.numpy()[order]
    rank_in_class = np.zeros(len(order), dtype=np.int64)
    for label in np.unique(classes):
        rank_in_class[classes == label] = np.arange((classes == label).sum())
    return np.sort(order[np.argsort(rank_in_class, kind="stable")[:max_images]])


VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
VOC_NAME, VOC_FOLDER = "voc2007", Path("VOCdevkit") / "VOC2007"
_VOC_ARCHIVES = "VOCtrainval_06-Nov-2007.tar and VOCtest_06-Nov-2007.tar"
_VOC_PAGE = "http://host.robots.ox.ac.uk/pascal/VOC/voc2007/"
_VOC_LISTS = Path("ImageSets") / "Main"
_MAX_LIST_BYTES = 16 << 20
# In VOC's list files, 1 means that an object of the class is present, -1 that no object is present, and 0 that the
# objects are difficult to recognise. VOC's evaluation ignores difficult images.
_VOC_LABELS = {"1": 1, "-1": 0, "0": -1}


def is_voc2007(folder: Path) -> bool:
    """Return whether a folder has the layout of VOC2007: images, and a list file for each class and split."""
    return (folder / "JPEGImages").is_dir() and (folder / _VOC_LISTS / f"{VOC_CLASSES[0]}_train.txt").is_file()


def find_voc2007(root: str | Path | None = None, download: bool = False) -> Path:
    """Return the folder of VOC2007 below the data root; if `download` is True, a missing folder is downloaded."""
    base = data_root(root)
    folder = base / VOC_FOLDER
    if all((folder / _VOC_LISTS / f"{VOC_CLASSES[0]}_{part}.txt").is_file() for part in ("train", "test")):
        return folder
    manual_advice = f"put {_VOC_ARCHIVES} from {_VOC_PAGE} into {base} and unpack them there"
    if not download:
        raise UserError(f"the data set '{VOC_NAME}' is not in {base}: give --download, or {manual_advice}.")
    try:
        for part in ("trainval", "test"):
            VOCDetection(str(base), year="2007", image_set=part, download=True)
    except Exception as problem:  # torchvision passes on many types of network, disk and archive errors
        reason = " ".join(str(problem).split()).rstrip(".") or type(problem).__name__
        raise UserError(
            f"the data set '{VOC_NAME}' could not be downloaded ({reason}); try again, or {manual_advice}."
        ) from problem
    return folder


def open_voc2007(folder: Path) -> EvaluationData:
    """Open `VOCdevkit/VOC2007`, the folder of both unpacked archives, with its official train, val and test splits."""
    keys: list[str] = []
    labels: list[list[int]] = []
    parts: dict[str, NDArray[np.int64]] = {}
    for part in PARTS:
        columns = [_read_voc_list(folder / _VOC_LISTS / f"{name}_{part}.txt") for name in VOC_CLASSES]
        names = list(columns[0])
        if any(list(column) != names for column in columns):
            raise UserError(f"the lists of {part} images in {folder / _VOC_LISTS} differ: unpack the archives again.")
        parts[part] = np.arange(len(keys), len(keys) + len(names))
        keys += [f"JPEGImages/{name}.jpg" for name in names]
        labels += [[column[name] for column in columns] for name in names]
    absent = next((key for key in keys if not (folder / key).is_file()), None)
    if absent is not None:
        raise UserError(f"{folder / absent} is missing: unpack both archives, trainval and test, into the same folder.")
    images = ImageSet(
        name=VOC_NAME,
        location=str(folder.resolve()),
        classes=(),
        keys=keys,
        labels=np.full(len(keys), -1, dtype=np.int64),
        declared_splits=[part for part, indices in parts.items() for _ in indices],
        store=FileStore(folder.resolve(), keys),
    )
    how = "the data's own parts"
    return EvaluationData(VOC_NAME, images, torch.tensor(labels), parts, len(VOC_CLASSES), "map11", how)


def _read_voc_list(file: Path) -> dict[str, int]:
    try:
        text = read_text(file, _MAX_LIST_BYTES, encoding="ascii")
        pairs = [line.split() for line in text.splitlines() if line.strip()]
        labels = {name: _VOC_LABELS[label] for name, label in pairs}
    except (OSError, ValueError, KeyError) as problem:
        raise UserError(f"{file} is not a list file of VOC2007 ({problem}): unpack both archives again.") from problem
    if not labels or any(not name.isalnum() for name in labels):
        raise UserError(f"{file} does not list images of VOC2007: unpack both archives again.")
    return labels


class Table9Set(NamedTuple):
    """The metric of a data set in EsViT's Table 9 (CLIP's public sets), and the paper's numbers of classes and images.

    Training images include validation images. The comments in `TABLE9` correct errors of the paper. `open_voc2007`
    opens VOC2007, whose images have several classes each; `paucal.data.named` opens the other sets.
    """

    classes: int
    train: int
    test: int
    metric: MetricName = "accuracy"


TABLE9: dict[str, Table9Set] = {
    "food101": Table9Set(102, 75_750, 25_250),  # 101 classes
    "cifar10": Table9Set(10, 50_000, 10_000),
    "cifar100": Table9Set(100, 50_000, 10_000),
    "sun397": Table9Set(397, 19_850, 19_850),  # the first of ten official partitions, of 50 + 50 images per class
    "cars": Table9Set(196, 8_144, 8_041),  # no longer available
    "aircraft": Table9Set(100, 6_667, 3_333, "mean_per_class"),  # classes are aircraft variants
    "voc2007": Table9Set(20, 5_011, 4_952, "map11"),
    "dtd": Table9Set(47, 3_760, 1_880),
    "pets": Table9Set(37, 3_680, 3_669, "mean_per_class"),
    # There is no official split; 30 images of each class are training images. The background counts as a class.
    "caltech101": Table9Set(102, 3_060, 6_084, "mean_per_class"),
    "flowers102": Table9Set(102, 2_040, 6_149, "mean_per_class"),
    "mnist": Table9Set(10, 60_000, 10_000),
    "fer2013": Table9Set(8, 32_298, 3_589),  # 7 classes; train is Training and PublicTest, test is PrivateTest
    "stl10": Table9Set(10, 5_000, 8_000),
    "gtsrb": Table9Set(43, 26_728, 12_630),  # paucal's source has 26,640 training images
    "pcam": Table9Set(2, 294_912, 32_768),
    "ucf101": Table9Set(101, 9_537, 3_783),  # the middle frame of each video; the first of three official splits
    "hateful_memes": Table9Set(2, 8_500, 500, "roc_auc"),  # test is dev_seen
}


def metric_of(name: str) -> MetricName:
    """Return the metric of a data set by its name; "accuracy" if the set is not in Table 9.

    >>> metric_of("pets"), metric_of("photos")
    ('mean_per_class', 'accuracy')
    """
    return TABLE9[name].metric if name in TABLE9 else "accuracy"
