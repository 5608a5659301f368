"""Millions of images from the web as their publishers lay them out: WebVision 1.0 and Open Images V4."""

from pathlib import Path

import numpy as np

from paucal.data.named.table import OPEN_IMAGES
from paucal.data.sources.folder import find_images
from paucal.data.sources.listing import read_lines
from paucal.reading import read_text

SYNSETS = "synsets.txt"
N_CLASSES = 1000
MOST_BYTES = 1 << 20  # of the names of classes


class WebVisionList:
    """A list of WebVision 1.0, as its archive `info` has it.

    A line has the path of an image and the number of its class, from 0 to 999; `info/synsets.txt` has a line for each
    class, which begins with its WordNet id. Paths of training images begin with `google/` or `flickr/`; those of
    validation images are relative to their folder.

    Args:
        root: the folder that has `info`.
        file: the list.
        folder: of its images.
        inside: whether its paths are relative to that folder, not to the root.
        labelled: whether its labels are wanted; then every line must have one.

    Attributes:
        keys: paths relative to the root; none where the folder of the images is not there.
        labels: (N,) numbers of the classes, -1 where they are not wanted.
        classes: their names; their numbers where `info` does not have them.

    Raises:
        UserError: a line is not as described, or leads out of the root.
    """

    def __init__(self, root: str, file: str, folder: str, inside: bool = False, labelled: bool = True) -> None:
        info = Path(root) / "info"
        self.classes = _classes(info / SYNSETS)
        self.keys: list[str] = []
        self.labels = np.zeros(0, dtype=np.int64)
        if (Path(root) / folder).is_dir():
            lines = read_lines(info / file, labelled, len(self.classes))
            rows = list(dict.fromkeys((line.path, line.label) for line in lines))
            self.keys = [f"{folder}/{path}" if inside else path for path, _ in rows]
            self.labels = np.asarray([label for _, label in rows], dtype=np.int64)


class OpenImagesFolders:
    """The training images of Open Images: those of `train_0` to `train_f`, or of one folder `train`.

    Attributes:
        keys: paths relative to the root.
        labels: (N,) of -1.
        classes: none.
    """

    def __init__(self, root: str) -> None:
        folders = [name for name in OPEN_IMAGES if (Path(root) / name).is_dir()]
        self.keys = [f"{name}/{path}" for name in folders for path in find_images(Path(root) / name)]
        self.labels = np.full(len(self.keys), -1, dtype=np.int64)
        self.classes: tuple[str, ...] = ()


def _classes(path: Path) -> tuple[str, ...]:
    if not path.exists():
        return tuple(map(str, range(N_CLASSES)))
    names = tuple(line.split()[0] for line in read_text(path, MOST_BYTES).splitlines() if line.strip())
    if not names or len(names) > N_CLASSES:
        raise ValueError(f"info/{SYNSETS} names {len(names)} classes, expected {N_CLASSES}")
    return names
