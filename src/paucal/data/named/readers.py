"""Portions of the data sets of `named.py`, opened through torchvision's classes, or ours where it has none that suit.

torchvision compares the MD5 sum of every file that it unpickles (CIFAR's batches) with the official one before it does
so. Sets of image files give their lists only; the images are read by our own decoder, and only below the root.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torchvision import datasets

from paucal.data.images import Store
from paucal.data.named.layouts import FacesFile, Memes, MiddleFrames, OpenImagesFolders, WebVisionList
from paucal.data.named.table import Portion
from paucal.data.sources.hdf5_store import Hdf5Store, read_array
from paucal.data.sources.stores import ArrayStore, FileStore

BACKGROUND = "BACKGROUND_Google"  # of Caltech-101: pictures of anything


@dataclass(frozen=True)
class Piece:
    """What one portion gives: a store, a key and a label for each of its images, and the class names."""

    store: Store
    keys: list[str]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]


def read_portion(name: str, root: Path, portion: Portion, labelled: bool = True) -> Piece:
    """Open a portion whose files are there; raises whatever torchvision raises about files that will not do.

    Args:
        name: of the set.
        root: that its paths are relative to.
        portion: of it.
        labelled: whether its labels are wanted; most have them in any case.
    """
    kind, read = _READERS[name]
    wanted = {"labelled": labelled} if kind is WebVisionList else {}
    return read(kind(str(root), **portion.arguments, **wanted), root, f"{name}/{portion.part}")


def fetch_portion(name: str, root: Path, portion: Portion) -> None:
    """Let torchvision fetch and unpack a portion; what is there already is kept."""
    _READERS[name][0](str(root), download=True, **portion.arguments)


def _files(root: Path, paths: Iterable[str | Path], labels: Iterable[int], classes: Sequence[str]) -> Piece:
    keys = [Path(path).relative_to(root).as_posix() for path in paths]
    # Sorted, because torchvision lists some sets in the order of the file system.
    rows = sorted((key, int(label)) for key, label in zip(keys, labels, strict=True))
    for key, _ in rows:
        if ".." in key.split("/"):
            raise ValueError(f"{key} leads out of the folder")
    keys = [key for key, _ in rows]
    return Piece(FileStore(root, keys), keys, np.asarray([label for _, label in rows], dtype=np.int64), tuple(classes))


def _listed(data: Any, root: Path, key: str) -> Piece:
    return _files(root, data._image_files, data._labels, data.classes)


def _pets(data: datasets.OxfordIIITPet, root: Path, key: str) -> Piece:
    return _files(root, data._images, data._labels, data.classes)


def _cars(data: datasets.StanfordCars, root: Path, key: str) -> Piece:
    return _files(root, [path for path, _ in data._samples], [label for _, label in data._samples], data.classes)


def _gtsrb(data: datasets.GTSRB, root: Path, key: str) -> Piece:
    # Classes have numbers only. Training images lie in folders of that number, which torchvision counts through.
    train = data._split == "train"
    labels = [int(Path(path).parent.name) if train else label for path, label in data._samples]
    return _files(root, [path for path, _ in data._samples], labels, [f"{number:05d}" for number in range(43)])


def _caltech(data: datasets.Caltech101, root: Path, key: str) -> Piece:
    # torchvision leaves the background images out, which papers count as the 102nd class.
    folder = Path(data.root) / "101_ObjectCategories"
    rows = zip(data.y, data.index, strict=True)
    paths = [folder / data.categories[label] / f"image_{number:04d}.jpg" for label, number in rows]
    background = sorted((folder / BACKGROUND).glob("image_*.jpg"))
    labels = [*data.y, *[len(data.categories)] * len(background)]
    return _files(root, [*paths, *background], labels, [*data.categories, BACKGROUND])


def _array(pixels: NDArray[np.uint8], labels: Any, classes: Sequence[str], key: str) -> Piece:
    keys = [f"{key}#{row}" for row in range(len(pixels))]
    return Piece(ArrayStore(pixels), keys, np.asarray(labels, dtype=np.int64), tuple(classes))


def _cifar(data: datasets.CIFAR10, root: Path, key: str) -> Piece:
    return _array(data.data, data.targets, data.classes, key)


def _mnist(data: datasets.MNIST, root: Path, key: str) -> Piece:
    return _array(data.data.numpy(), data.targets.numpy(), "0123456789", key)


def _svhn(data: datasets.SVHN, root: Path, key: str) -> Piece:
    return _array(data.data.transpose(0, 2, 3, 1), data.labels, "0123456789", key)


def _stl10(data: datasets.STL10, root: Path, key: str) -> Piece:
    return _array(data.data.transpose(0, 2, 3, 1), data.labels, data.classes, key)


def _pcam(data: datasets.PCAM, root: Path, key: str) -> Piece:
    files = data._FILES[data._split]
    images, targets = (root / "pcam" / files[side][0] for side in ("images", "targets"))
    store, labels = Hdf5Store(images, "x"), read_array(targets, "y")[:].reshape(-1)
    return Piece(store, [f"{key}#{row}" for row in range(len(store))], labels.astype(np.int64), ("normal", "tumor"))


def _fer2013(data: FacesFile, root: Path, key: str) -> Piece:
    return _array(data.pixels, data.labels, data.classes, key)


def _paths(data: Any, root: Path, key: str) -> Piece:
    return _files(root, data.paths, data.labels, data.classes)


def _keyed(data: WebVisionList | OpenImagesFolders, root: Path, key: str) -> Piece:
    return Piece(FileStore(root, data.keys), data.keys, data.labels, data.classes)


_Read = Callable[[Any, Path, str], Piece]
_READERS: dict[str, tuple[Callable[..., Any], _Read]] = {
    "cifar10": (datasets.CIFAR10, _cifar),
    "cifar100": (datasets.CIFAR100, _cifar),
    "mnist": (datasets.MNIST, _mnist),
    "svhn": (datasets.SVHN, _svhn),
    "stl10": (datasets.STL10, _stl10),
    "food101": (datasets.Food101, _listed),
    "dtd": (datasets.DTD, _listed),
    "pets": (datasets.OxfordIIITPet, _pets),
    "flowers102": (datasets.Flowers102, _listed),
    "gtsrb": (datasets.GTSRB, _gtsrb),
    "pcam": (datasets.PCAM, _pcam),
    "caltech101": (datasets.Caltech101, _caltech),
    "sun397": (datasets.SUN397, _listed),
    "aircraft": (datasets.FGVCAircraft, _listed),
    "cars": (datasets.StanfordCars, _cars),
    "fer2013": (FacesFile, _fer2013),
    "ucf101": (MiddleFrames, _paths),
    "hateful_memes": (Memes, _paths),
    "webvision": (WebVisionList, _keyed),
    "openimages": (OpenImagesFolders, _keyed),
}
