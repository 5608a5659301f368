"""Readers of published data sets that torchvision does not read, or not in the form needed for EsViT's table 9.

torchvision's `FER2013` joins the two test splits, its `UCF101` returns video clips, and torchvision does not read
Hateful Memes, WebVision 1.0 and Open Images V4. Damaged files raise a `ValueError`, `KeyError` or `OSError`, which
`store.py` turns into a message.
"""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paucal.data.named.table import OPEN_IMAGES_FOLDERS
from paucal.data.sources.folder import find_images
from paucal.data.sources.locating import leads_out
from paucal.data.sources.table_reading import read_list
from paucal.data.stores import ArrayStore, FileStore, Store
from paucal.reading import is_regular, read_text
from paucal.types import UserError

EMOTIONS = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")
FACE_SIDE = 48  # height and width of FER2013's images in pixels
MAX_BYTES = 1 << 30  # size of the largest file with labels that is read; FER2013's file is 287 MiB large
SYNSETS_NAME = "synsets.txt"
N_WEBVISION_CLASSES = 1000
MAX_SYNSETS_BYTES = 1 << 20  # size of the largest `synsets.txt` that is read


class PortionImages(NamedTuple):
    """The images of one portion of a data set.

    Attributes:
        store: Store of the N images.
        keys: Key of each image.
        labels: (N,) class numbers; -1 for unlabelled images.
        classes: Class names in label order.
    """

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
    keys = [Path(path).relative_to(root).as_posix() for path in paths]
    # Sorted, since torchvision lists the files of some data sets in the order of the file system.
    rows = sorted((key, int(label)) for key, label in zip(keys, labels, strict=True))
    keys, numbers = [key for key, _ in rows], np.asarray([label for _, label in rows], dtype=np.int64)
    if outside := next((key for key in keys if ".." in key.split("/")), None):
        raise ValueError(f"{outside} leads out of the folder")
    return PortionImages(FileStore(root, keys), keys, numbers, tuple(classes))


def read_fer2013(root: Path, key_prefix: str, usage: str) -> PortionImages:
    """Read the rows of FER2013's `fer2013.csv` whose column "Usage" contains `usage`, such as "Training"."""
    with _require_small(root / "fer2013" / "fer2013.csv").open(newline="", encoding="utf-8") as file:
        rows = (row for row in csv.DictReader(file) if row["Usage"] == usage)
        faces = [(int(row["emotion"]), _parse_face(row["pixels"])) for row in rows]
    pixels = np.asarray([face for _, face in faces], dtype=np.uint8).reshape(-1, FACE_SIDE, FACE_SIDE)
    return images_of_array(pixels, [label for label, _ in faces], EMOTIONS, key_prefix)


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

    A line has the path of an image and a class number from 0 to 999. If `labelled` is False, the class number may be
    missing. The class names are the WordNet ids in `info/synsets.txt`, or the class numbers if there is no such file.

    Args:
        root: Folder of the data set.
        file: Name of the list file.
        folder: Folder of the images; if it does not exist, the portion is empty.
        paths_in_folder: Whether the paths in the list are relative to `folder`, as for validation images, and not to
            `root`.
        labelled: Whether labels are read.
    """
    classes = _read_classes(root / "info" / SYNSETS_NAME)
    rows: dict[tuple[str, int], None] = {}
    if (root / folder).is_dir():
        rows = dict.fromkeys(_read_paths(root / "info" / file, labelled, len(classes)))
    keys = [f"{folder}/{path}" if paths_in_folder else path for path, _ in rows]
    return PortionImages(FileStore(root, keys), keys, np.asarray([label for _, label in rows], dtype=np.int64), classes)


def read_open_images(root: Path, _: str) -> PortionImages:
    """Read the training images of Open Images, without labels, from the folders `train_0` to `train_f` or `train`."""
    folders = [name for name in OPEN_IMAGES_FOLDERS if (root / name).is_dir()]
    keys = [f"{name}/{path}" for name in folders for path in find_images(root / name)]
    return PortionImages(FileStore(root, keys), keys, np.full(len(keys), -1, dtype=np.int64), ())


def _read_paths(file: Path, labelled: bool, n_classes: int) -> list[tuple[str, int]]:
    """Return the paths and class numbers (-1 if not `labelled`) in a list file; raise a UserError for invalid lines."""
    rows = []
    for number, (path, class_text) in read_list(file, labelled).rows:
        if leads_out(path):
            raise UserError(
                f"line {number} of {file} leads out of the folder of the images ({path[:80]!r}); "
                "list paths relative to that folder."
            )
        if int(class_text) >= n_classes:
            expected = f"expected a class from 0 to {n_classes - 1}"
            raise UserError(f"line {number} of {file} has the class {class_text}; {expected}.")
        rows.append((path, int(class_text)))
    return rows


def _read_classes(path: Path) -> tuple[str, ...]:
    """Return the WordNet ids in the lines of a file; if the file does not exist, return the class numbers as text."""
    if not path.exists():
        return tuple(map(str, range(N_WEBVISION_CLASSES)))
    names = tuple(line.split()[0] for line in read_text(path, MAX_SYNSETS_BYTES).splitlines() if line.strip())
    if not names or len(names) > N_WEBVISION_CLASSES:
        raise ValueError(f"info/{SYNSETS_NAME} names {len(names)} classes, expected {N_WEBVISION_CLASSES}")
    return names


def _parse_face(text: str) -> np.ndarray:
    """Return the (48, 48) uint8 image that FER2013 stores as a text of grey values separated by spaces."""
    grey_values = bytes(map(int, text.split()))  # raises a ValueError for numbers outside of 0 to 255
    if len(grey_values) != FACE_SIDE * FACE_SIDE:
        raise ValueError(f"a face has {len(grey_values)} grey values, expected {FACE_SIDE * FACE_SIDE}")
    return np.frombuffer(grey_values, dtype=np.uint8).reshape(FACE_SIDE, FACE_SIDE)


def _read_lines(path: Path) -> list[str]:
    return [line for line in _require_small(path).read_text(encoding="utf-8").splitlines() if line.strip()]


def _require_small(path: Path) -> Path:
    """Return the path of a file; raise an error if it is missing, too large or not a regular file."""
    if not is_regular(path) and path.exists():
        raise ValueError(f"{path.name} is not a regular file")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path.name} is larger than {MAX_BYTES >> 20} MiB")
    return path
