"""Opens and downloads portions of published data sets, mostly through torchvision's classes.

torchvision compares the MD5 sum of a file with the official sum before it unpickles the file (CIFAR's batches). For
data sets of image files, only the paths and labels are taken from torchvision. paucal's decoder reads the images, and
reads only files below the root.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torchvision import datasets

from paucal.data.decode import UnreadableImage
from paucal.data.named import layouts
from paucal.data.named.layouts import PortionImages, images_of_array, images_of_files
from paucal.data.named.table import Portion

DIGITS = "0123456789"
BACKGROUND = "BACKGROUND_Google"  # Caltech-101's folder of unrelated images


def read_portion(name: str, root: Path, portion: Portion, labelled: bool = True) -> PortionImages:
    """Open a portion whose files exist.

    Only WebVision's reader respects `labelled`; portions of all other data sets always have labels.

    Raises:
        Exception: Any exception that torchvision raises for damaged or missing files.
    """
    key = f"{name}/{portion.part}"
    if name in _OWN_READERS:
        options = {"labelled": labelled} if name == "webvision" else {}
        return _OWN_READERS[name](root, key, **portion.arguments, **options)
    dataset_class, read_data_set = _READERS[name]
    return read_data_set(dataset_class(str(root), **portion.arguments), root, key)


def download_portion(name: str, root: Path, portion: Portion) -> None:
    """Let torchvision download and unpack a portion; existing files are not downloaded again."""
    _READERS[name][0](str(root), download=True, **portion.arguments)


def _open_image_files(data: Any, root: Path, key: str) -> PortionImages:
    return images_of_files(root, data._image_files, data._labels, data.classes)


def _open_gtsrb(data: datasets.GTSRB, root: Path, key: str) -> PortionImages:
    # The names of the folders of training images are the class numbers, but torchvision numbers the folders anew.
    is_train = data._split == "train"
    labels = [int(Path(path).parent.name) if is_train else label for path, label in data._samples]
    return images_of_files(root, [path for path, _ in data._samples], labels, [f"{number:05d}" for number in range(43)])


def _open_caltech(data: datasets.Caltech101, root: Path, key: str) -> PortionImages:
    # torchvision leaves out the background images, which are the 102nd class in papers.
    folder = Path(data.root) / "101_ObjectCategories"
    rows = zip(data.y, data.index, strict=True)
    paths = [folder / data.categories[label] / f"image_{number:04d}.jpg" for label, number in rows]
    background = sorted((folder / BACKGROUND).glob("image_*.jpg"))
    labels = [*data.y, *[len(data.categories)] * len(background)]
    return images_of_files(root, [*paths, *background], labels, [*data.categories, BACKGROUND])


def _open_cifar(data: datasets.CIFAR10, root: Path, key: str) -> PortionImages:
    return images_of_array(data.data, data.targets, data.classes, key)


def _open_pcam(data: datasets.PCAM, root: Path, key: str) -> PortionImages:
    files = data._FILES[data._split]
    images, targets = (root / "pcam" / files[content][0] for content in ("images", "targets"))
    store, labels = Hdf5Store(images, "x"), _open_hdf5(targets, "y")[:].reshape(-1).astype(np.int64)
    return PortionImages(store, [f"{key}#{row}" for row in range(len(store))], labels, ("normal", "tumor"))


def _channels_last(data: Any) -> NDArray[np.uint8]:
    return data.data.transpose(0, 2, 3, 1)


# Function (torchvision's data set, root, prefix of the keys) that returns the images of a portion.
_ReadDataSet = Callable[[Any, Path, str], PortionImages]
_READERS: dict[str, tuple[Callable[..., Any], _ReadDataSet]] = {
    "cifar10": (datasets.CIFAR10, _open_cifar),
    "cifar100": (datasets.CIFAR100, _open_cifar),
    "mnist": (datasets.MNIST, lambda data, _, key: images_of_array(data.data.numpy(), data.targets, DIGITS, key)),
    "svhn": (datasets.SVHN, lambda data, _, key: images_of_array(_channels_last(data), data.labels, DIGITS, key)),
    "stl10": (
        datasets.STL10,
        lambda data, _, key: images_of_array(_channels_last(data), data.labels, data.classes, key),
    ),
    "food101": (datasets.Food101, _open_image_files),
    "dtd": (datasets.DTD, _open_image_files),
    "pets": (
        datasets.OxfordIIITPet,
        lambda data, root, _: images_of_files(root, data._images, data._labels, data.classes),
    ),
    "flowers102": (datasets.Flowers102, _open_image_files),
    "gtsrb": (datasets.GTSRB, _open_gtsrb),
    "pcam": (datasets.PCAM, _open_pcam),
    "caltech101": (datasets.Caltech101, _open_caltech),
    "sun397": (datasets.SUN397, _open_image_files),
    "aircraft": (datasets.FGVCAircraft, _open_image_files),
    "cars": (
        datasets.StanfordCars,
        lambda data, root, _: images_of_files(
            root, [path for path, _ in data._samples], [label for _, label in data._samples], data.classes
        ),
    ),
}
_OWN_READERS: dict[str, Callable[..., PortionImages]] = {
    "fer2013": layouts.read_fer2013,
    "ucf101": layouts.read_ucf101,
    "hateful_memes": layouts.read_hateful_memes,
    "webvision": layouts.read_webvision,
    "openimages": layouts.read_open_images,
}


def _open_hdf5(file: Path, name: str) -> Any:
    """Open an HDF5 file and return its array ("data set") `name`, whose values must be in the same file.

    HDF5 files can refer to values in other files, but an untrusted file must not cause other files to be read.

    Raises:
        ValueError: There is no such array, or its values are in other files.
        OSError: The file is damaged or not an HDF5 file.
    """
    import h5py

    handle = h5py.File(file, "r")
    array = handle[name] if isinstance(handle.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(array, h5py.Dataset) or array.is_virtual or array.external:
        raise ValueError(f"{file.name} has no data set '{name}' with values in the same file")
    return array


class Hdf5Store:
    """Images in an (N, H, W, 3) uint8 array in an HDF5 file.

    A process that unpickles the store opens the file again. Only one thread can read at a time.

    Raises:
        ValueError: The array has a different shape or type.
        OSError: The file cannot be read.
    """

    def __init__(self, file: Path, name: str, shape: tuple[int, ...] | None = None) -> None:
        self._file, self._name = file, name
        self._opened: Any = None
        self._process_id = 0
        self._lock = threading.Lock()
        self._shape = shape or self._array().shape
        if shape is not None:  # in a worker process: a file that has changed is reported when an image is read
            return
        if len(self._shape) != 4 or self._shape[3] != 3 or self._array().dtype != np.uint8:
            raise ValueError(
                f"{file.name} has values of type {self._array().dtype} and shape {self._shape}, expected uint8 and "
                "(N, H, W, 3)"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return Hdf5Store, (self._file, self._name, self._shape)

    def __len__(self) -> int:
        return self._shape[0]

    def read(self, index: int) -> Image.Image:
        """Return an image; raise `UnreadableImage` if this part of the file is damaged."""
        try:
            with self._lock:
                pixels: NDArray[np.uint8] = self._array()[index]
        except (OSError, ValueError) as problem:
            raise UnreadableImage(f"image {index} of {self._file.name} cannot be read: {problem}") from None
        return Image.fromarray(pixels)

    def size(self, index: int) -> tuple[int, int]:
        """Return the (height, width) of an image in pixels."""
        return self._shape[1], self._shape[2]

    def check(self, index: int) -> None:
        """Read an image; raise `UnreadableImage` if the image is damaged."""
        self.read(index)

    def _array(self) -> Any:
        # A forked worker must not use the file handle of its parent, which may be in the middle of a read.
        if self._opened is None or self._process_id != os.getpid():
            self._opened, self._process_id = _open_hdf5(self._file, self._name), os.getpid()
        return self._opened
