"""PASCAL VOC 2007 classification: images with several classes each, from the unpacked archives."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.datasets import VOCDetection

from paucal.data.images import ImageSet
from paucal.data.named.table import data_root
from paucal.data.stores import FileStore
from paucal.evaluation.protocols.judged_data import JudgedData
from paucal.reading import read_text
from paucal.types import UserError

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
NAME, FOLDER = "voc2007", Path("VOCdevkit") / "VOC2007"
_ARCHIVES = "VOCtrainval_06-Nov-2007.tar and VOCtest_06-Nov-2007.tar"
_PAGE = "http://host.robots.ox.ac.uk/pascal/VOC/voc2007/"
_LISTS = Path("ImageSets") / "Main"
_MOST_BYTES = 16 << 20
# VOC writes 1 for present, -1 for absent, 0 for difficult to see, which its own evaluation leaves out.
_MEANING = {"1": 1, "-1": 0, "0": -1}


def is_voc(folder: Path) -> bool:
    """Whether a folder is VOC2007's: images, and a list per class and part."""
    return (folder / "JPEGImages").is_dir() and (folder / _LISTS / f"{CLASSES[0]}_train.txt").is_file()


def find_voc(root: str | Path | None = None, download: bool = False) -> Path:
    """Return the folder of VOC2007 below the data root, fetched by torchvision where asked for.

    Raises:
        UserError: it is not there, or cannot be fetched.
    """
    base = data_root(root)
    folder = base / FOLDER
    if all((folder / _LISTS / f"{CLASSES[0]}_{part}.txt").is_file() for part in ("train", "test")):
        return folder
    by_hand = f"put {_ARCHIVES} from {_PAGE} into {base} and unpack them there"
    if not download:
        raise UserError(f"the data set '{NAME}' is not in {base}: give --download, or {by_hand}.")
    try:
        for part in ("trainval", "test"):
            VOCDetection(str(base), year="2007", image_set=part, download=True)
    except Exception as problem:  # network, disk, archive: torchvision passes on what the layers below raise
        reason = " ".join(str(problem).split()).rstrip(".") or type(problem).__name__
        raise UserError(f"the data set '{NAME}' could not be fetched ({reason}); try again, or {by_hand}.") from problem
    return folder


def open_voc(folder: Path) -> JudgedData:
    """Open `VOCdevkit/VOC2007`, with its own train, val and test parts.

    Args:
        folder: with `JPEGImages` and `ImageSets/Main`; both archives, trainval and test, unpacked over each other.

    Raises:
        UserError: a list is missing or damaged, or a part of the archives is.
    """
    keys: list[str] = []
    rows: list[NDArray[np.int64]] = []
    parts: dict[str, NDArray[np.int64]] = {}
    for part in ("train", "val", "test"):
        columns = [_read(folder / _LISTS / f"{name}_{part}.txt") for name in CLASSES]
        names = list(columns[0])
        if any(list(column) != names for column in columns):
            raise UserError(f"the lists of {part} images in {folder / _LISTS} differ: unpack the archives again.")
        parts[part] = np.arange(len(keys), len(keys) + len(names))
        keys += [f"JPEGImages/{name}.jpg" for name in names]
        rows.append(np.asarray([[column[name] for column in columns] for name in names], dtype=np.int64))
    absent = next((key for key in keys if not (folder / key).is_file()), None)
    if absent is not None:
        raise UserError(f"{folder / absent} is missing: unpack both archives, trainval and test, over each other.")
    declared = [part for part, indices in parts.items() for _ in indices]
    images = ImageSet(
        name=NAME,
        location=str(folder.resolve()),
        classes=(),
        keys=keys,
        labels=np.full(len(keys), -1, dtype=np.int64),
        declared=declared,
        store=FileStore(folder.resolve(), keys),
    )
    labels = torch.from_numpy(np.concatenate(rows))
    return JudgedData(NAME, images, labels, parts, len(CLASSES), "map11", "the data's own parts")


def _read(file: Path) -> dict[str, int]:
    """Return the label of every image of a list."""
    try:
        text = read_text(file, _MOST_BYTES, encoding="ascii")
        pairs = [line.split() for line in text.splitlines() if line.strip()]
        labels = {name: _MEANING[label] for name, label in pairs}
    except (OSError, ValueError, KeyError) as problem:
        raise UserError(f"{file} is no list of VOC2007 ({problem}): unpack both archives again.") from problem
    if not labels or any(not name.isalnum() for name in labels):
        raise UserError(f"{file} names no images as VOC2007 does: unpack both archives again.")
    return labels
