"""Files of label maps (a teacher's predictions at every position of a grid over each image) as memory-mapped arrays.

A folder contains four files:
- `values.npy` (N, k, H, W): the k largest logits at each grid position, as float16;
- `indices.npy` (N, k, H, W): the class numbers of these logits;
- `done.npy` (N,): 1 for finished maps;
- `index.json`: the key and the pixel hash of each image, the teacher and its classes.

The published code of token labeling stores a pickled tensor for each image instead. Maps cover whole images. Maps that
were converted from the published maps cover the central squares of the images.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

from paucal.data.decoded.cache_folder import usable_cache_folder
from paucal.data.decoded.on_disk import DIGEST_BYTES, StoredDigests
from paucal.data.images import ImageSet, full_size_image
from paucal.data.stores import EncodedStore, locate_original
from paucal.data.unreadable import ReportProgress
from paucal.reading import parse_json, read_bytes, require_regular
from paucal.types import UserError

FORMAT = 1  # version of the files below
INDEX, VALUES, CLASSES, DONE = "index.json", "values.npy", "indices.npy", "done.npy"
# Prefixes of the names of temporary files and locks (`paucal.runs.lock`, `paucal.writing`).
_TEMPORARY_PREFIXES = ("lock.json", ".lock.json.", ".paucal-")
MAX_INDEX_BYTES = 512 << 20  # largest index; for ImageNet's 1.3 million images, the index is a third as large
CoveredRegion = Literal["image", "square"]


@dataclass(frozen=True)
class LabelMapMetadata:
    """Properties that all maps in a folder share."""

    teacher: str  # name of the teacher, for messages
    classes: tuple[str, ...]  # names of the teacher's classes
    grid: tuple[int, int]  # numbers of rows and columns of a map
    top: int  # number k of classes stored at each grid position
    # Keys of the teacher's training images in the set, which a model trained on the maps has indirectly seen too.
    trained_on: tuple[str, ...] = ()
    covered: CoveredRegion = "image"  # region that a map covers: the whole image, or the largest central square

    @property
    def bytes_per_image(self) -> int:
        """Size in bytes of the label map of one image: the logits and the class numbers."""
        return self.top * self.grid[0] * self.grid[1] * (2 + _class_dtype(len(self.classes)).itemsize)


class MapWriter:
    """Writes the maps of images, identified by keys and pixel hashes, to a new folder or one with unfinished maps."""

    def __init__(self, folder: Path, metadata: LabelMapMetadata, keys: Sequence[str], hashes: Sequence[str]) -> None:
        index = {"format": FORMAT, **asdict(metadata), "keys": list(keys), "hashes": list(hashes)}
        index = json.loads(json.dumps(index))
        if (folder / INDEX).exists():
            if read_index(folder) != index:
                raise UserError(
                    f"--output: {str(folder)!r} contains label maps of other images or of another teacher: give "
                    "another folder, or delete this folder."
                )
        else:
            require_maps_or_empty(folder)
            folder.mkdir(parents=True, exist_ok=True)
            shape = (len(keys), metadata.top, *metadata.grid)
            for name, dtype, array_shape in (
                (VALUES, np.dtype(np.float16), shape),
                (CLASSES, _class_dtype(len(metadata.classes)), shape),
                (DONE, np.dtype(np.uint8), shape[:1]),
            ):
                np.lib.format.open_memmap(folder / name, "w+", dtype, array_shape).flush()
            (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
        self._values, self._indices, self._done = (open_array(folder / name, "r+") for name in (VALUES, CLASSES, DONE))
        require_shapes(folder, len(keys), metadata, (self._values, self._indices, self._done))

    def __len__(self) -> int:
        return len(self._done)

    @property
    def missing_positions(self) -> NDArray[np.int64]:
        """Positions of the images that have no map yet."""
        return np.flatnonzero(self._done == 0)

    def write(self, positions: Sequence[int], values: NDArray, indices: NDArray) -> None:
        """Store the (n, k, H, W) logits and class numbers of n images; then mark their maps as done."""
        rows = np.asarray(positions)
        self._values[rows], self._indices[rows] = values, indices
        self._values.flush()
        self._indices.flush()
        self._done[rows] = 1
        self._done.flush()


def pixel_hash(image: Image.Image) -> str:
    """Return a hash of an image's mode, size and pixels, which does not depend on the file format."""
    digest = hashlib.blake2b(f"{image.mode}{image.size}".encode(), digest_size=16)
    digest.update(image.tobytes())
    return digest.hexdigest()


def open_array(path: Path, mode: Any) -> np.memmap:
    """Map an array file into memory; raises a UserError if the file is missing or damaged."""
    try:
        array = np.lib.format.open_memmap(require_regular(path), "r")  # "r" first: "r+" lengthens a short file
        return array if mode == "r" else np.lib.format.open_memmap(path, mode)
    except (OSError, ValueError, EOFError, OverflowError, SyntaxError, TokenError) as problem:
        raise UserError(
            f"{str(path)!r} is missing, truncated or not an array ({problem}): make the maps again."
        ) from None


def require_shapes(folder: Path, count: int, metadata: LabelMapMetadata, arrays: Sequence[np.memmap]) -> None:
    """Raise a UserError if the shapes of the arrays do not match the number of images and the grid."""
    maps = (count, metadata.top, *metadata.grid)
    if [array.shape for array in arrays] != [maps, maps, (count,)]:
        raise UserError(f"the label maps in {str(folder)!r} are truncated or mixed up: make the maps again.")


def read_index(folder: Path) -> dict[str, Any]:
    """Read the index of a folder of maps; raises a UserError unless the index has this version's format."""
    path = folder / INDEX
    if not path.is_file():
        raise UserError(f"there are no label maps in {str(folder)!r}: make label maps with 'paucal label'.")
    try:
        index = parse_json(read_bytes(path, MAX_INDEX_BYTES))
    except ValueError as problem:
        raise UserError(f"{str(path)!r} cannot be read ({problem}): make the maps again.") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise UserError(f"{str(path)!r} is not an index of label maps in this version's format: make the maps again.")
    return index


def require_maps_or_empty(folder: Path) -> None:
    """Raise a UserError if a folder has files, but no index of label maps."""
    has_files = folder.exists() and any(not entry.name.startswith(_TEMPORARY_PREFIXES) for entry in folder.iterdir())
    if has_files and not (folder / INDEX).is_file():
        raise UserError(f"--output: {str(folder)!r} is not empty and has no label maps: give another folder.")


def _class_dtype(n_classes: int) -> np.dtype:
    return np.dtype(np.uint8 if n_classes <= 256 else np.uint16 if n_classes <= 65536 else np.int32)


def pixel_hashes(
    images: ImageSet, positions: Sequence[int] | NDArray[np.int64], progress: ReportProgress | None = None
) -> list[str]:
    """Return the `pixel_hash` of each image at full size.

    The hashes are stored in the cache folder, like the digests of the file contents. A file is decoded again only if
    the path, size or modification time has changed. `progress` is called with (images done, total images).
    """
    # The stamps of the original images' files, even if the set has a decoded copy; None if there is no file.
    originals = [locate_original(images.store, int(position)) for position in positions]
    stamps = [store.stamp(row) if isinstance(store, EncodedStore) else None for store, row in originals]
    digests, is_stored = np.zeros((len(stamps), DIGEST_BYTES), dtype=np.uint8), np.zeros(len(stamps), dtype=bool)
    stored_hashes, folder = None, usable_cache_folder()
    if folder is not None:
        full_reading = replace(images.decode_options, side=None)
        stored_hashes = StoredDigests(folder, f"{images.location}\ncontents {PIL.__version__} {full_reading}")
        digests, is_stored = stored_hashes.look_up(stamps)
    missing_rows = np.flatnonzero(~is_stored)
    for done, row in enumerate(missing_rows.tolist()):
        digest = bytes.fromhex(pixel_hash(full_size_image(images, int(positions[row]))))
        digests[row] = np.frombuffer(digest, dtype=np.uint8)
        if progress is not None:
            progress(len(stamps) - len(missing_rows) + done + 1, len(stamps))
    if progress is not None and not len(missing_rows):
        progress(len(stamps), len(stamps))
    if stored_hashes is not None and any(stamps[row] is not None for row in missing_rows):
        stored_hashes.remember([stamps[row] for row in missing_rows], digests[missing_rows])
    return [digest.tobytes().hex() for digest in digests]
