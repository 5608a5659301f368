"""Label maps on disk: what a teacher says about every part of every image, as arrays that are mapped into memory.

A folder holds `values.npy` (N, k, H, W) float16 logits, `indices.npy` (N, k, H, W) of the classes they belong to,
`done.npy` (N,), and `index.json` with the identity and the content of each image, the teacher and its classes. (The
published program keeps a pickled tensor for each image.) The maps cover whole images, or their central squares where
they were converted from published ones.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from paucal.data.images import ImageSet
from paucal.types import UserError

FORMAT = 1
INDEX, VALUES, CLASSES, DONE = "index.json", "values.npy", "indices.npy", "done.npy"
MAX_INDEX_BYTES = 1 << 30
Advance = Callable[[int, int], None]
Covered = Literal["image", "square"]


@dataclass(frozen=True)
class MapFacts:
    """What is known of all maps of a folder.

    Attributes:
        teacher: who made them, for people.
        classes: names of the teacher's outputs.
        grid: (rows, columns) of a map.
        top: k, classes kept at each cell.
        trained_on: keys of the images that the teacher was trained on, where they are of the same set: whoever learns
            from its maps has seen them too.
        covered: what of an image its map shows: all of it, or the largest square about its centre.
    """

    teacher: str
    classes: tuple[str, ...]
    grid: tuple[int, int]
    top: int
    trained_on: tuple[str, ...] = ()
    covered: Covered = "image"

    @property
    def bytes_per_image(self) -> int:
        """Return the storage of one image's map."""
        return self.top * self.grid[0] * self.grid[1] * (2 + _kind(len(self.classes)).itemsize)


class MapWriter:
    """Writes the maps of a set of images in any order and any number of sittings.

    Args:
        folder: new, or one that holds unfinished maps of the same images by the same teacher.
        facts: of the maps.
        keys: identity of each image, as `ImageSet.keys`.
        hashes: of their content, as `content_hash`.

    Raises:
        UserError: the folder holds something else.
    """

    def __init__(self, folder: Path, facts: MapFacts, keys: Sequence[str], hashes: Sequence[str]) -> None:
        described = {"format": FORMAT, **asdict(facts), "keys": list(keys), "hashes": list(hashes)}
        described = json.loads(json.dumps(described))
        if (folder / INDEX).exists():
            if _read_index(folder) != described:
                raise UserError(
                    f"--output: {str(folder)!r} holds label maps of other images or of another teacher: give another "
                    "folder, or delete it."
                )
        elif folder.exists() and any(folder.iterdir()):
            raise UserError(f"--output: {str(folder)!r} is not empty and holds no label maps: give another folder.")
        else:
            _create(folder, facts, len(keys))
            (folder / INDEX).write_text(json.dumps(described), encoding="utf-8")
        self._values, self._indices, self._done = (_map(folder / name, "r+") for name in (VALUES, CLASSES, DONE))

    def __len__(self) -> int:
        return len(self._done)

    @property
    def missing(self) -> NDArray[np.int64]:
        """Return the positions that have no map yet."""
        return np.flatnonzero(self._done == 0)

    def write(self, positions: Sequence[int], values: NDArray, indices: NDArray) -> None:
        """Store maps (n, k, H, W); they count as done once they are on disk."""
        at = np.asarray(positions)
        self._values[at], self._indices[at] = values, indices
        self._values.flush()
        self._indices.flush()
        self._done[at] = 1
        self._done.flush()


class LabelMaps:
    """The finished maps of a folder, read one image at a time.

    Raises:
        UserError: there are none, they are unfinished, or the files do not fit each other.
    """

    def __init__(self, folder: Path) -> None:
        index = _read_index(folder)
        self.folder = folder
        try:
            self.facts = MapFacts(
                index["teacher"],
                tuple(index["classes"]),
                tuple(index["grid"]),
                index["top"],
                tuple(index["trained_on"]),
                index.get("covered", "image"),
            )
            if self.facts.covered not in get_args(Covered):
                raise KeyError(f"covered {self.facts.covered!r}")
            self._row = {str(key): row for row, key in enumerate(index["keys"])}
            self._hashes = [str(one) for one in index["hashes"]]
            wanted = (len(self._hashes), self.facts.top, *self.facts.grid)
        except (KeyError, TypeError) as problem:
            raise UserError(f"{str(folder / INDEX)!r} describes no label maps ({problem}): make them anew.") from None
        self._values, self._indices, done = (_map(folder / name, "r") for name in (VALUES, CLASSES, DONE))
        if self._values.shape != wanted or self._indices.shape != wanted or done.shape != wanted[:1]:
            raise UserError(f"the label maps in {str(folder)!r} are cut short or mixed up: make them anew.")
        if not done.all():
            raise UserError(
                f"the label maps in {str(folder)!r} are unfinished ({int(done.sum())} of {len(done)}): run the same "
                "'paucal label' again, which goes on."
            )

    def __contains__(self, key: str) -> bool:
        """Say whether the image of this key has a map."""
        return key in self._row

    def rows(self, images: ImageSet, positions: NDArray[np.int64], advance: Advance | None = None) -> "MapReader":
        """Return a reader for some of a set's images, after a look at whether they are those of the maps.

        Args:
            images: the set.
            positions: those of its images that will be read.
            advance: called with (images looked at, images in all).

        Raises:
            UserError: an image has no map or has changed since, or the classes are not the teacher's.
        """
        order = _class_order(self.facts, images)
        rows = np.full(len(images), -1)
        covered = np.ones((len(images), 2), dtype=np.float32)
        for count, position in enumerate(positions):
            key = images.keys[position]
            row = self._row.get(key)
            if row is None:
                raise UserError(f"--labels: {str(self.folder)!r} has no map of {key!r}: it was made from other images.")
            image = images.store.read(int(position))
            if content_hash(image) != self._hashes[row]:
                raise UserError(f"--labels: {key!r} has changed since its label map was made: run 'paucal label' anew.")
            rows[position] = row
            covered[position] = min(image.size) / np.array(image.size)
            if advance is not None:
                advance(count + 1, len(positions))
        self._check_classes(rows[positions])
        return MapReader(self.folder, rows, order, covered if self.facts.covered == "square" else None)

    def _check_classes(self, rows: NDArray[np.int64]) -> None:
        for begin in range(0, len(rows), 1024):
            some = self._indices[rows[begin : begin + 1024]]
            if some.min() < 0 or some.max() >= len(self.facts.classes):
                raise UserError(
                    f"the label maps in {str(self.folder)!r} name class {some.max()} of {len(self.facts.classes)}: "
                    "they are damaged, make them anew."
                )


class MapReader:
    """Reads maps by the position of the image in its set; picklable, so that loader workers can be spawned.

    Args:
        folder: of the maps.
        rows: per position of the set, the row of its map or -1.
        order: (K,) the set's number of each of the teacher's classes.
        covered: per position, the shares of the image's width and height that its map covers; None for all of it.
    """

    def __init__(
        self,
        folder: Path,
        rows: NDArray[np.int64],
        order: NDArray[np.int64],
        covered: NDArray[np.float32] | None = None,
    ) -> None:
        self.folder, self.rows, self.order, self.covered = folder, rows, order, covered
        self._arrays: tuple[NDArray, NDArray] | None = None

    def __call__(self, position: int) -> dict[str, Tensor]:
        """Return `values` (k, H, W) float16 and `indices` (k, H, W) int64 of an image.

        Where maps cover a part of their images only, `covered` (2,) as well.
        """
        if self._arrays is None:
            self._arrays = _map(self.folder / VALUES, "r"), _map(self.folder / CLASSES, "r")
        values, indices = self._arrays
        row = self.rows[position]
        found = {
            "values": torch.from_numpy(np.array(values[row])),
            "indices": torch.from_numpy(self.order[indices[row]]),
        }
        return found if self.covered is None else {**found, "covered": torch.from_numpy(self.covered[position])}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_arrays": None}


def name_classes(indices: Tensor) -> tuple[Tensor, Tensor]:
    """List the classes of each map once, and say for each entry which of the list it is.

    This runs where a batch is put together, on the CPU, so that the number U of classes needs no synchronisation.

    Args:
        indices: (B, k, H, W) int64 classes.

    Returns:
        classes (B, U) int64, rising, padded with -1, and slots (B, k, H, W) int64 into them.

    Example:
        >>> name_classes(torch.tensor([7, 3, 7]).reshape(1, 3, 1, 1))[0]
        tensor([[3, 7]])
    """
    found = [torch.unique(one, return_inverse=True) for one in indices]
    most = max(len(classes) for classes, _ in found)
    padded = [functional.pad(classes, (0, most - len(classes)), value=-1) for classes, _ in found]
    return torch.stack(padded), torch.stack([slots for _, slots in found])


def content_hash(image: Image.Image) -> str:
    """Return a hash of an image's pixels, whatever file they came from."""
    digest = hashlib.blake2b(f"{image.mode}{image.size}".encode(), digest_size=16)
    digest.update(image.tobytes())
    return digest.hexdigest()


def _class_order(facts: MapFacts, images: ImageSet) -> NDArray[np.int64]:
    ours, theirs = images.classes, facts.classes
    if sorted(ours) == sorted(theirs):
        return np.array([ours.index(name) for name in theirs], dtype=np.int64)
    if len(ours) != len(theirs):
        raise UserError(
            f"--labels: the maps know {len(theirs)} classes and {images.name} has {len(ours)}: label the images with a "
            "teacher that was trained on them."
        )
    odd = next(name for name in theirs if name not in set(ours))
    raise UserError(f"--labels: the maps know a class {odd!r} that {images.name} does not have: use another teacher.")


def _kind(classes: int) -> np.dtype:
    return np.dtype(np.uint8 if classes <= 256 else np.uint16 if classes <= 65536 else np.int32)


def _create(folder: Path, facts: MapFacts, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shape = (count, facts.top, *facts.grid)
    for name, kind, size in (
        (VALUES, np.dtype(np.float16), shape),
        (CLASSES, _kind(len(facts.classes)), shape),
        (DONE, np.dtype(np.uint8), (count,)),
    ):
        np.lib.format.open_memmap(folder / name, "w+", kind, size).flush()


def _map(path: Path, mode: Any) -> np.memmap:
    try:
        return np.load(path, mmap_mode=mode, allow_pickle=False)  # type: ignore[return-value]
    except (OSError, ValueError, EOFError) as problem:
        raise UserError(f"{str(path)!r} is missing, cut short or no array ({problem}): make the maps anew.") from None


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    if not path.is_file():
        raise UserError(f"there are no label maps in {str(folder)!r}: make them with 'paucal label'.")
    if path.stat().st_size > MAX_INDEX_BYTES:
        raise UserError(f"{str(path)!r} has over {MAX_INDEX_BYTES >> 20} MiB: it is no index of label maps.")
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise UserError(f"{str(path)!r} cannot be read ({problem}): make the maps anew.") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise UserError(f"{str(path)!r} describes no label maps of this version: make them anew.")
    return index
