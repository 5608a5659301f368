"""Published layouts that torchvision does not read in the form needed for EsViT's table 9.

torchvision's FER2013 joins both test parts, its UCF101 returns video clips, and it has no Hateful Memes. Damaged
files raise a `ValueError`, `KeyError` or `OSError`, which `store.py` turns into a message. The millions of images of
WebVision 1.0 and Open Images V4 are found by lists and folders.
"""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paucal.data.named.table import OPEN_IMAGES
from paucal.data.sources.folder import find_images
from paucal.data.sources.locating import leads_out
from paucal.data.sources.table_rows import read_list
from paucal.data.stores import ArrayStore, FileStore, Store
from paucal.reading import is_regular, read_text
from paucal.types import UserError

EMOTIONS = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")
SIDE = 48  # pixels of FER2013's faces
MAX_BYTES = 1 << 30  # maximum number of bytes of a list; the largest, FER2013's, has 287 MiB
SYNSETS = "synsets.txt"
N_CLASSES = 1000
MAX_SYNSET_BYTES = 1 << 20


class Piece(NamedTuple):
    """The contents of one portion: the store, a key and a label for each image, and the class names."""

    store: Store
    keys: list[str]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]


def array_piece(pixels: NDArray[np.uint8], labels: Any, classes: Sequence[str], key: str) -> Piece:
    """Return images in an array as a piece, with keys that begin with `key`."""
    keys = [f"{key}#{row}" for row in range(len(pixels))]
    return Piece(ArrayStore(pixels), keys, np.asarray(labels, dtype=np.int64), tuple(classes))


def file_piece(root: Path, paths: Iterable[str | Path], labels: Iterable[int], classes: Sequence[str]) -> Piece:
    """Return image files below `root` as a piece."""
    keys = [Path(path).relative_to(root).as_posix() for path in paths]
    # Sorted, because torchvision lists some sets in the order of the file system.
    rows = sorted((key, int(label)) for key, label in zip(keys, labels, strict=True))
    for key, _ in rows:
        if ".." in key.split("/"):
            raise ValueError(f"{key} leads out of the folder")
    keys = [key for key, _ in rows]
    return Piece(FileStore(root, keys), keys, np.asarray([label for _, label in rows], dtype=np.int64), tuple(classes))


def read_faces(root: Path, key: str, usage: str) -> Piece:
    """Read the rows of FER2013's `fer2013.csv` whose usage is `usage`, such as "Training"."""
    with _require_small(root / "fer2013" / "fer2013.csv").open(newline="", encoding="utf-8") as file:
        rows = (row for row in csv.DictReader(file) if row["Usage"] == usage)
        faces = [(int(row["emotion"]), _parse_face(row["pixels"])) for row in rows]
    pixels = np.asarray([face for _, face in faces], dtype=np.uint8).reshape(-1, SIDE, SIDE)
    return array_piece(pixels, [label for label, _ in faces], EMOTIONS, key)


def read_middle_frames(root: Path, _: str, split: str) -> Piece:
    """Read a part of UCF101's first official split, as pictures with the names of their videos."""
    base, lists = root / "ucf101", root / "ucf101" / "ucfTrainTestlist"
    classes = tuple(line.split()[1] for line in _lines_of_file(lists / "classInd.txt"))
    # The test list has no numbers, so the class is read from the folder in both lists.
    videos = [line.split()[0] for line in _lines_of_file(lists / f"{split}list01.txt")]
    labels = [classes.index(video.split("/")[0]) for video in videos]
    return file_piece(root, [base / "UCF-101" / video.replace(".avi", ".jpg") for video in videos], labels, classes)


def read_memes(root: Path, _: str, file: str) -> Piece:
    """Read a list of Hateful Memes."""
    base = root / "hateful_memes"
    rows = [json.loads(line) for line in _lines_of_file(base / file)]
    labels = [int(row["label"]) for row in rows]
    return file_piece(root, [base / str(row["img"]) for row in rows], labels, ("not hateful", "hateful"))


def read_webvision(root: Path, _: str, file: str, folder: str, inside: bool = False, labelled: bool = True) -> Piece:
    """Read a list of WebVision 1.0, from its archive `info`; there are no images if their folder is missing.

    A line has the path of an image and the number of its class, from 0 to 999; every line must have a number if labels
    are read. `info/synsets.txt` has a line for each class, beginning with its WordNet id; without that file the classes
    are called by their numbers. Paths of training images begin with `google/` or `flickr/`; paths of validation images
    are relative to their folder (`inside`).
    """
    classes = _listed_classes(root / "info" / SYNSETS)
    rows: dict[tuple[str, int], None] = {}
    if (root / folder).is_dir():
        rows = dict.fromkeys(_numbered_paths(root / "info" / file, labelled, len(classes)))
    keys = [f"{folder}/{path}" if inside else path for path, _ in rows]
    return Piece(FileStore(root, keys), keys, np.asarray([label for _, label in rows], dtype=np.int64), classes)


def read_open_images(root: Path, _: str) -> Piece:
    """Read the unlabelled training images of Open Images, in the folders `train_0` to `train_f` or in `train`."""
    folders = [name for name in OPEN_IMAGES if (root / name).is_dir()]
    keys = [f"{name}/{path}" for name in folders for path in find_images(root / name)]
    return Piece(FileStore(root, keys), keys, np.full(len(keys), -1, dtype=np.int64), ())


def _numbered_paths(file: Path, labelled: bool, n_classes: int) -> list[tuple[str, int]]:
    """Return the paths of a list whose images are below one folder, with their class numbers (-1 if not read)."""
    rows = []
    for number, (path, cell) in read_list(file, labelled).rows:
        if leads_out(path):
            raise UserError(
                f"line {number} of {file} leads out of the folder of the images ({path[:80]!r}); "
                "list paths relative to that folder."
            )
        if int(cell) >= n_classes:
            raise UserError(f"line {number} of {file} has the class {cell}; expected one from 0 to {n_classes - 1}.")
        rows.append((path, int(cell)))
    return rows


def _listed_classes(path: Path) -> tuple[str, ...]:
    if not path.exists():
        return tuple(map(str, range(N_CLASSES)))
    names = tuple(line.split()[0] for line in read_text(path, MAX_SYNSET_BYTES).splitlines() if line.strip())
    if not names or len(names) > N_CLASSES:
        raise ValueError(f"info/{SYNSETS} names {len(names)} classes, expected {N_CLASSES}")
    return names


def _parse_face(text: str) -> np.ndarray:
    levels = bytes(map(int, text.split()))  # raises for values outside of 0 to 255
    if len(levels) != SIDE * SIDE:
        raise ValueError(f"a face has {len(levels)} levels, expected {SIDE * SIDE}")
    return np.frombuffer(levels, dtype=np.uint8).reshape(SIDE, SIDE)


def _lines_of_file(path: Path) -> list[str]:
    return [line for line in _require_small(path).read_text(encoding="utf-8").splitlines() if line.strip()]


def _require_small(path: Path) -> Path:
    if not is_regular(path) and path.exists():
        raise ValueError(f"{path.name} is not a regular file")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path.name} has over {MAX_BYTES >> 20} MiB")
    return path
