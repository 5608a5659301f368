"""The index of tar shards: where every image lies and what its label is, found out once and kept as plain arrays."""

import json
import os
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from paucal.data.sources.archive import MOST_ENTRIES, MOST_IMAGE, checked_name
from paucal.data.string_arrays import StringArray
from paucal.types import UserError

NAME = "paucal_index.npz"
FORMAT = 1
HEADER = 512  # bytes of a tar member before its content
MOST_BYTES = 4 << 30  # of an index, unpacked
_ARRAYS = {
    "shards": np.dtype(np.int32),
    "offsets": np.dtype(np.int64),
    "lengths": np.dtype(np.int32),
    "labels": np.dtype(np.int32),
    "key_bytes": np.dtype(np.uint8),
    "key_ends": np.dtype(np.int64),
}


@dataclass(frozen=True)
class Shard:
    """A file of many images.

    Attributes:
        name: relative to the place of all shards, with forward slashes.
        size: in bytes.
        part: "train", "val" or "test"; "" where its name tells none.
        changed: time of the last change in nanoseconds, where the index was made; 0 where it is not known.
    """

    name: str
    size: int
    part: str = ""
    changed: int = 0


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """Where the images of a set of tar shards lie.

    Attributes:
        files: the shards, in the order of their names.
        classes: names in label order; empty where no image has a label.
        shards: (N,) int32, positions among the files, not decreasing.
        offsets: (N,) int64, where the bytes of each image begin.
        lengths: (N,) int32, how many they are.
        labels: (N,) int32, -1 for images without one.
        keys: (N,) names within the shards.
        notes: what was found on the way, in sentences.
    """

    files: tuple[Shard, ...]
    classes: tuple[str, ...]
    shards: NDArray[np.int32]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int32]
    labels: NDArray[np.int32]
    keys: StringArray
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.offsets)

    def write(self, path: Path) -> None:
        """Write the index, which stands whole or not at all; raises an OSError."""
        about = {
            "format": FORMAT,
            "files": [asdict(file) for file in self.files],
            "classes": self.classes,
            "notes": self.notes,
        }
        key_bytes, key_ends = self.keys.parts()
        arrays = {name: getattr(self, name) for name in _ARRAYS if not name.startswith("key_")}
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as file:
                np.savez(file, about=np.array(json.dumps(about)), key_bytes=key_bytes, key_ends=key_ends, **arrays)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def read_index(file: IO[bytes], shown: str) -> ShardIndex:
    """Read an index from an open file.

    Args:
        file: opened for reading, which can be searched.
        shown: its name in messages.

    Raises:
        UserError: it is damaged, of another version, or leads out of the place of its shards.
    """
    try:
        with zipfile.ZipFile(file) as packed:
            if sum(one.file_size for one in packed.infolist()) > MOST_BYTES:
                raise ValueError(f"more than {MOST_BYTES:,} bytes")
        file.seek(0)
        with np.load(file, allow_pickle=False) as stored:
            about = json.loads(str(stored["about"]))
            found = {name: stored[name] for name in _ARRAYS}
        return _checked(about, found, shown)
    except UserError:
        raise
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        AttributeError,
        RecursionError,
        zipfile.BadZipFile,
    ) as bad:
        raise UserError(f"{shown} cannot be read as an index of shards ({bad}); {REMAKE}") from None


REMAKE = "remove it, so that the shards are looked through anew, or write them again with 'paucal shard'"


def _checked(about: Any, found: dict[str, NDArray[Any]], shown: str) -> ShardIndex:
    """Return the index that was stored; raises a ValueError where it is none."""
    if about["format"] != FORMAT:
        raise ValueError(f"it has the format {about['format']}, and this version of paucal reads {FORMAT}")
    files = tuple(Shard(**file) for file in about["files"])
    for file in files:
        if not isinstance(file.name, str) or not all(isinstance(one, int) for one in (file.size, file.changed)):
            raise ValueError("the list of shards is no such list")
        checked_name(shown, file.name)
    count = len(found["offsets"])
    for name, kind in _ARRAYS.items():
        if found[name].dtype != kind or found[name].ndim != 1 or (name != "key_bytes" and len(found[name]) != count):
            raise ValueError(f"'{name}' is not as it is written")
    classes, notes = tuple(map(str, about["classes"])), tuple(map(str, about["notes"]))
    _check_places(files, len(classes), found)
    keys = StringArray.stored(found.pop("key_bytes"), found.pop("key_ends"))
    return ShardIndex(files, classes, keys=keys, notes=notes, **found)


def _check_places(files: tuple[Shard, ...], n_classes: int, found: dict[str, NDArray[Any]]) -> None:
    shards, offsets, lengths, ends = (found[name] for name in ("shards", "offsets", "lengths", "key_ends"))
    count = len(offsets)
    if not 0 < count <= MOST_ENTRIES or not files:
        raise ValueError(f"it has {count} images")
    if shards.min() < 0 or shards.max() >= len(files) or (np.diff(shards) < 0).any():
        raise ValueError("it names shards that it does not list")
    sizes = np.asarray([file.size for file in files], dtype=np.int64)
    if offsets.min() < HEADER or lengths.min() < 0 or lengths.max() > MOST_IMAGE:
        raise ValueError("an image lies outside of its shard")
    if (offsets + lengths > sizes[shards]).any():
        raise ValueError("an image lies outside of its shard")
    if not -1 <= found["labels"].min() <= found["labels"].max() < max(1, n_classes):
        raise ValueError(f"it has labels beyond its {n_classes} classes")
    if ends[0] < 0 or (np.diff(ends) < 0).any() or ends[-1] != len(found["key_bytes"]):
        raise ValueError("its names are not as they are written")
