"""Opens and downloads portions of published data sets, mostly through torchvision's classes.

torchvision compares the MD5 sum of a file with the official sum before it unpickles the file (CIFAR's batches). For
data sets of image files, only the paths and labels are taken from torchvision. paucal's decoder reads the images, and
reads only files below the root.

The readers named `read_...` are for sets that torchvision lacks (Hateful Memes, WebVision 1.0, Open Images V4) or does
not read in the form needed for EsViT's table 9: its `FER2013` joins the two test splits, its `UCF101` returns video
clips. Damaged files raise a `ValueError`, `KeyError` or `OSError`, which `store.py` turns into a message.
"""

import csv
import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torchvision import datasets

from paucal.data.decode import UnreadableImage
from paucal.data.named.table import OPEN_IMAGES_FOLDERS, Portion
from paucal.data.sources.folder import find_images
from paucal.data.sources.locating import leads_out
from paucal.data.sources.table_reading import read_list
from paucal.data.stores import ArrayStore, FileStore, Store
from paucal.reading import is_regular, read_text
from paucal.types import UserError

DIGITS = "0123456789"
BACKGROUND = "BACKGROUND_Google"  # Caltech-101's folder of unrelated images
EMOTIONS = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")
FACE_SIDE = 48  # height and width of FER2013's images in pixels
MAX_BYTES = 1 << 30  # size of the largest file with labels that is read; FER2013's file is 287 MiB large
SYNSETS_NAME = "synsets.txt"
N_WEBVISION_CLASSES = 1000
MAX_SYNSETS_BYTES = 1 << 20  # size of the largest `synsets.txt` that is read


class PortionImages(NamedTuple):
    """The N images of one portion of a set: keys, (N,) class numbers (-1 for unlabelled images), and class names."""

    store: Store
    keys: list[str]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]


def images_of_array(pixels: NDArray[np.uint8], labels: Any, classes: Sequence[str], key_prefix: str) -> PortionImages:
    """Return the images in an array as a portion; their keys are `key_prefix`, "#" and the row number."""
    keys = [f"{key_prefix}#{row}" for row in range(len(pixels))]
    return PortionImages(ArrayStore(pixels), keys, np.asarray(labels, dtype=np.int64), tuple(classes))


def images_of_files(
    root: Path, paths: Iterable[str | Path], labels: Iterable[int], classes: Sequence[str]
) -> PortionImages:
    """Return image files below `root` as a portion; the key of an image is its path relative to `root`."""
    pairs = zip(paths, labels, strict=True)
    # Sorted, since torchvision lists the files of some data sets in the order of the file system.
    rows = sorted((Path(path).relative_to(root).as_posix(), int(label)) for path, label in pairs)
    keys, numbers = [key for key, _ in rows], np.asarray([label for _, label in rows], dtype=np.int64)
    if outside := next((key for key in keys if ".." in key.split("/")), None):
        raise ValueError(f"{outside} leads out of the folder")
    return PortionImages(FileStore(root, keys), keys, numbers, tuple(classes))


def read_fer2013(root: Path, key_prefix: str, usage: str) -> PortionImages:
    """Read the rows of FER2013's `fer2013.csv` whose column "Usage" is `usage`, such as "Training"."""
    with _require_small(root / "fer2013" / "fer2013.csv").open(newline="", encoding="utf-8") as file:
        labels, faces = [], []
        for row in csv.DictReader(file):
            if row["Usage"] == usage:
                labels.append(int(row["emotion"]))
                faces.append(bytes(map(int, row["pixels"].split())))  # a ValueError for numbers outside of 0 to 255
                if len(faces[-1]) != FACE_SIDE * FACE_SIDE:
                    raise ValueError(f"a face has {len(faces[-1])} grey values, expected {FACE_SIDE * FACE_SIDE}")
    pixels = np.frombuffer(b"".join(faces), dtype=np.uint8).reshape(-1, FACE_SIDE, FACE_SIDE)
    return images_of_array(pixels, labels, EMOTIONS, key_prefix)


def read_ucf101(root: Path, _: str, split: str) -> PortionImages:
    """Read the train or test images of UCF101's first official split: the middle frame of each video, a JPEG file."""
    folder, lists = root / "ucf101", root / "ucf101" / "ucfTrainTestlist"
    classes = tuple(line.split()[1] for line in _read_lines(lists / "classInd.txt"))
    # The test list has no class numbers, so the class is taken from the folder in both lists.
    videos = [line.split()[0] for line in _read_lines(lists / f"{split}list01.txt")]
    labels = [classes.index(video.split("/")[0]) for video in videos]
    frames = [folder / "UCF-101" / video.replace(".avi", ".jpg") for video in videos]
    return images_of_files(root, frames, labels, classes)


def read_hateful_memes(root: Path, _: str, file: str) -> PortionImages:
    """Read the images and labels in a JSON-lines file of Hateful Memes, such as "train.jsonl"."""
    folder = root / "hateful_memes"
    rows = [json.loads(line) for line in _read_lines(folder / file)]
    labels = [int(row["label"]) for row in rows]
    return images_of_files(root, [folder / str(row["img"]) for row in rows], labels, ("not hateful", "hateful"))


def read_webvision(
    root: Path, _: str, file: str, folder: str, paths_in_folder: bool = False, labelled: bool = True
) -> PortionImages:
    """Read the images in a list file of WebVision 1.0, in the folder `info` of the data set.

    A line has the path of an image and a class number from 0 to 999, which may be missing unless `labelled`. The class
    names are the WordNet ids in `info/synsets.txt`, if it exists. Without the `folder` of the images, the portion is
    empty. Paths are relative to `folder` if `paths_in_folder`, as for validation images, else to `root`.
    """
    synsets_file, classes = root / "info" / SYNSETS_NAME, tuple(map(str, range(N_WEBVISION_CLASSES)))
    if synsets_file.exists():
        lines = read_text(synsets_file, MAX_SYNSETS_BYTES).splitlines()
        classes = tuple(line.split()[0] for line in lines if line.strip())
        if not classes or len(classes) > N_WEBVISION_CLASSES:
            raise ValueError(f"info/{SYNSETS_NAME} names {len(classes)} classes, expected {N_WEBVISION_CLASSES}")
    rows: dict[tuple[str, int], None] = {}
    list_file = root / "info" / file
    for number, (path, class_text) in read_list(list_file, labelled).rows if (root / folder).is_dir() else ():
        if leads_out(path):
            raise UserError(
                f"line {number} of {list_file} leads out of the folder of the images ({path[:80]!r}); "
                "list paths relative to that folder."
            )
        if int(class_text) >= len(classes):
            expected = f"expected a class from 0 to {len(classes) - 1}"
            raise UserError(f"line {number} of {list_file} has the class {class_text}; {expected}.")
        rows[path, int(class_text)] = None
    keys = [f"{folder}/{path}" if paths_in_folder else path for path, _ in rows]
    return PortionImages(FileStore(root, keys), keys, np.asarray([label for _, label in rows], dtype=np.int64), classes)


def read_open_images(root: Path, _: str) -> PortionImages:
    """Read the training images of Open Images, without labels, from the folders `train_0` to `train_f` or `train`."""
    folders = [name for name in OPEN_IMAGES_FOLDERS if (root / name).is_dir()]
    keys = [f"{name}/{path}" for name in folders for path in find_images(root / name)]
    return PortionImages(FileStore(root, keys), keys, np.full(len(keys), -1, dtype=np.int64), ())


def _read_lines(path: Path) -> list[str]:
    return [line for line in _require_small(path).read_text(encoding="utf-8").splitlines() if line.strip()]


def _require_small(path: Path) -> Path:
    """Return the path of a file; raise an error if it is missing, too large or not a regular file."""
    if not is_regular(path) and path.exists():
        raise ValueError(f"{path.name} is not a regular file")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path.name} is larger than {MAX_BYTES >> 20} MiB")
    return path


def read_portion(name: str, root: Path, portion: Portion, labelled: bool = True) -> PortionImages:
    """Open a portion whose files exist; only WebVision uses `labelled`. Damaged files may raise any exception."""
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


def _open_channels_first(data: Any, classes: Sequence[str], key: str) -> PortionImages:
    return images_of_array(data.data.transpose(0, 2, 3, 1), data.labels, classes, key)


def _open_cifar(data: datasets.CIFAR10, root: Path, key: str) -> PortionImages:
    return images_of_array(data.data, data.targets, data.classes, key)


def _open_pcam(data: datasets.PCAM, root: Path, key: str) -> PortionImages:
    files = data._FILES[data._split]
    images, targets = (root / "pcam" / files[content][0] for content in ("images", "targets"))
    store, labels = Hdf5Store(images, "x"), _open_hdf5(targets, "y")[:].reshape(-1).astype(np.int64)
    return PortionImages(store, [f"{key}#{row}" for row in range(len(store))], labels, ("normal", "tumor"))


# Function (torchvision's data set, root, prefix of the keys) that returns the images of a portion.
_ReadDataSet = Callable[[Any, Path, str], PortionImages]
_READERS: dict[str, tuple[Callable[..., Any], _ReadDataSet]] = {
    "cifar10": (datasets.CIFAR10, _open_cifar),
    "cifar100": (datasets.CIFAR100, _open_cifar),
    "mnist": (datasets.MNIST, lambda data, _, key: images_of_array(data.data.numpy(), data.targets, DIGITS, key)),
    "svhn": (datasets.SVHN, lambda data, _, key: _open_channels_first(data, DIGITS, key)),
    "stl10": (datasets.STL10, lambda data, _, key: _open_channels_first(data, data.classes, key)),
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
    "fer2013": read_fer2013,
    "ucf101": read_ucf101,
    "hateful_memes": read_hateful_memes,
    "webvision": read_webvision,
    "openimages": read_open_images,
}


def _open_hdf5(file: Path, name: str) -> Any:
    """Open an HDF5 file and return its array ("data set") `name`, whose values must be in the same file."""
    import h5py

    # HDF5 files can refer to values in other files, but an untrusted file must not cause other files to be read.
    handle = h5py.File(file, "r")
    array = handle[name] if isinstance(handle.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(array, h5py.Dataset) or array.is_virtual or array.external:
        raise ValueError(f"{file.name} has no data set '{name}' with values in the same file")
    return array


class Hdf5Store:
    """Images in an (N, H, W, 3) uint8 array in an HDF5 file, which is opened again after unpickling."""

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
