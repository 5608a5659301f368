"""Published layouts that torchvision does not read as EsViT's table 9 needs them.

torchvision's FER2013 joins both test parts, its UCF101 gives clips of videos, and it has no Hateful Memes. Whatever is
wrong in a file raises a `ValueError`, `KeyError` or `OSError`, which `named_store.py` makes a sentence of.
"""

import csv
import json
from pathlib import Path

import numpy as np

from paucal.reading import is_regular

EMOTIONS = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")
SIDE = 48  # of FER2013's faces
MOST_BYTES = 1 << 30  # of a list; FER2013's file, the largest, has 287 MiB


class FacesFile:
    """The rows of FER2013's `fer2013.csv` that have one usage.

    Attributes:
        pixels: (N, 48, 48) uint8, grey.
        labels: (N,) positions in `classes`.
        classes: the seven emotions, in the order of their numbers.
    """

    def __init__(self, root: str, usage: str) -> None:
        self.classes = EMOTIONS
        rows = []
        path = _small(Path(root) / "fer2013" / "fer2013.csv")
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["Usage"] == usage:
                    rows.append((int(row["emotion"]), _face(row["pixels"])))
        self.labels = [label for label, _ in rows]
        self.pixels = np.stack([face for _, face in rows]) if rows else np.zeros((0, SIDE, SIDE), dtype=np.uint8)


class MiddleFrames:
    """A part of UCF101's first official split, as pictures that are called like their videos.

    Attributes:
        paths: of the pictures.
        labels: positions in `classes`.
        classes: of `classInd.txt`, in its order.
    """

    def __init__(self, root: str, split: str) -> None:
        base = Path(root) / "ucf101"
        lists = base / "ucfTrainTestlist"
        self.classes = tuple(line.split()[1] for line in _lines(lists / "classInd.txt"))
        # The test list has no numbers, so the class is read from the folder in both.
        videos = [line.split()[0] for line in _lines(lists / f"{split}list01.txt")]
        self.labels = [self.classes.index(video.split("/")[0]) for video in videos]
        self.paths = [base / "UCF-101" / video.replace(".avi", ".jpg") for video in videos]


class Memes:
    """A list of Hateful Memes.

    Attributes:
        paths: of the pictures.
        labels: 1 where the meme is hateful.
        classes: their names.
    """

    def __init__(self, root: str, file: str) -> None:
        base = Path(root) / "hateful_memes"
        self.classes = ("not hateful", "hateful")
        rows = [json.loads(line) for line in _lines(base / file)]
        self.labels = [int(row["label"]) for row in rows]
        self.paths = [base / str(row["img"]) for row in rows]


def _face(text: str) -> np.ndarray:
    levels = bytes(map(int, text.split()))  # refuses what is not from 0 to 255
    if len(levels) != SIDE * SIDE:
        raise ValueError(f"a face has {len(levels)} levels, expected {SIDE * SIDE}")
    return np.frombuffer(levels, dtype=np.uint8).reshape(SIDE, SIDE)


def _lines(path: Path) -> list[str]:
    return [line for line in _small(path).read_text(encoding="utf-8").splitlines() if line.strip()]


def _small(path: Path) -> Path:
    if not is_regular(path) and path.exists():
        raise ValueError(f"{path.name} is no regular file")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path.name} has over {MOST_BYTES >> 20} MiB")
    return path
