"""The files of label maps: what a teacher says about every part of every image, as arrays mapped into memory.

A folder holds `values.npy` (N, k, H, W) float16 logits, `indices.npy` (N, k, H, W) of the classes they belong to,
`done.npy` (N,), and `index.json` with the identity and the content of each image, the teacher and its classes. (The
published program keeps a pickled tensor for each image.) The maps cover whole images, or their central squares where
they were converted from published ones.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.reading import parse_json, read_bytes, require_regular
from paucal.types import UserError

FORMAT = 1
INDEX, VALUES, CLASSES, DONE = "index.json", "values.npy", "indices.npy", "done.npy"
# Of whoever writes, or is about to (`paucal.runs.lock`, `paucal.runs.files`).
_OF_WRITERS = ("lock.json", ".lock.json.", ".paucal-")
MAX_INDEX_BYTES = 512 << 20  # three times the index of ImageNet's 1.3 million images
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
            if read_index(folder) != described:
                raise UserError(
                    f"--output: {str(folder)!r} holds label maps of other images or of another teacher: give another "
                    "folder, or delete it."
                )
        else:
            require_maps(folder)
            _create(folder, facts, len(keys))
            (folder / INDEX).write_text(json.dumps(described), encoding="utf-8")
        self._values, self._indices, self._done = (open_array(folder / name, "r+") for name in (VALUES, CLASSES, DONE))
        require_shapes(folder, len(keys), facts, (self._values, self._indices, self._done))

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


def content_hash(image: Image.Image) -> str:
    """Return a hash of an image's pixels, whatever file they came from."""
    digest = hashlib.blake2b(f"{image.mode}{image.size}".encode(), digest_size=16)
    digest.update(image.tobytes())
    return digest.hexdigest()


def open_array(path: Path, mode: Any) -> np.memmap:
    """Map an array into memory; raises a UserError where it is missing or damaged."""
    try:
        whole = np.lib.format.open_memmap(require_regular(path), "r")  # to write, numpy would lengthen a short file
        return whole if mode == "r" else np.lib.format.open_memmap(path, mode)
    except (OSError, ValueError, EOFError, OverflowError, SyntaxError, TokenError) as problem:
        raise UserError(f"{str(path)!r} is missing, cut short or no array ({problem}): make the maps anew.") from None


def require_shapes(folder: Path, count: int, facts: MapFacts, arrays: Sequence[np.memmap]) -> None:
    """Refuse values, classes and marks that are not those of so many images; raises a UserError."""
    maps = (count, facts.top, *facts.grid)
    if [array.shape for array in arrays] != [maps, maps, (count,)]:
        raise UserError(f"the label maps in {str(folder)!r} are cut short or mixed up: make them anew.")


def read_index(folder: Path) -> dict[str, Any]:
    """Read the index of a folder of maps; raises a UserError where it is none of this version."""
    path = folder / INDEX
    if not path.is_file():
        raise UserError(f"there are no label maps in {str(folder)!r}: make them with 'paucal label'.")
    try:
        index = parse_json(read_bytes(path, MAX_INDEX_BYTES))
    except ValueError as problem:
        raise UserError(f"{str(path)!r} cannot be read ({problem}): make the maps anew.") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise UserError(f"{str(path)!r} describes no label maps of this version: make them anew.")
    return index


def require_maps(folder: Path) -> None:
    """Refuse a folder for label maps that holds something else; raises a UserError."""
    foreign = folder.exists() and any(not entry.name.startswith(_OF_WRITERS) for entry in folder.iterdir())
    if foreign and not (folder / INDEX).is_file():
        raise UserError(f"--output: {str(folder)!r} is not empty and holds no label maps: give another folder.")


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
