"""The index of tar shards: the position and label of every image, stored as plain arrays."""

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from paucal.data.sources.archive import MOST_ENTRIES, MOST_IMAGE, checked_name
from paucal.data.string_arrays import StringArray
from paucal.types import UserError
from paucal.wording import counted, first_few, was

NAME = "paucal_index.npz"
FORMAT = 1
HEADER = 512  # bytes of a tar member before its content
MOST_BYTES = 4 << 30  # largest unpacked index
_ARRAYS = {
    "shards": np.dtype(np.int32),
    "offsets": np.dtype(np.int64),
    "lengths": np.dtype(np.int32),
    "labels": np.dtype(np.int32),
    "key_bytes": np.dtype(np.uint8),
    "key_ends": np.dtype(np.int64),
}


REMAKE = f"remove {NAME}, so that the shards are indexed again, or write them again with 'paucal shard'"
_NAMES_SHOWN = 3
# Exceptions that reading a damaged index may raise.
_DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, RecursionError, zipfile.BadZipFile)


class DamagedShard(UserError):
    """The content of a shard cannot be read; another try, or more space on the disk, would not help."""


@dataclass(frozen=True)
class Shard:
    """A file that holds many images.

    Attributes:
        name: Path relative to the folder of all shards, with forward slashes.
        size: Size in bytes.
        part: "train", "val" or "test"; "" if the name has no part.
        changed: Time of the last change in nanoseconds, on the machine that made the index; 0 if unknown.
    """

    name: str
    size: int
    part: str = ""
    changed: int = 0


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """The images of a set of tar shards.

    Attributes:
        files: Shards, in the order of their names.
        classes: Class names in label order; empty if no image has a label.
        shards: (N,) int32 positions in `files`, not decreasing.
        offsets: (N,) int64 byte positions of the images in their shards.
        lengths: (N,) int32 sizes of the images in bytes.
        labels: (N,) int32 labels, -1 for unlabelled images.
        keys: (N,) names within the shards.
        notes: Sentences for the user on images without a label and on empty shards.
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

    def without(self, damaged: Mapping[int, str], shown: str) -> "ShardIndex":
        """Return the index without the images of damaged shards, with a note; the files keep their positions.

        Args:
            damaged: What is wrong with shards, by their position in `files`.
            shown: Name of the set in messages.

        Raises:
            UserError: No image is left.
        """
        if not damaged:
            return self
        kept = ~np.isin(self.shards, list(damaged))
        names = {self.files[number].name: reason for number, reason in damaged.items()}
        (note,) = damage_notes(names, len(self.files), shown)
        note += f", with {counted(int((~kept).sum()), 'image')}"
        arrays = {name: getattr(self, name)[kept] for name in ("shards", "offsets", "lengths", "labels")}
        return replace(self, **arrays, keys=self.keys.take(np.flatnonzero(kept)), notes=(*self.notes, note))

    def write(self, path: Path) -> None:
        """Write the index atomically; raises an OSError."""
        files = [asdict(file) for file in self.files]
        about = {"format": FORMAT, "files": files, "classes": self.classes, "notes": self.notes}
        key_bytes, key_ends = self.keys.to_buffers()
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


def damage_notes(damaged: Mapping[str, str], total: int, shown: str) -> list[str]:
    """Return the note that shards were left out because they cannot be read; empty for none.

    Args:
        damaged: What is wrong with shards, by their name.
        total: Number of all shards.
        shown: Name of the set in messages.
    """
    if not damaged:
        return []
    names, reason = list(damaged), next(iter(damaged.values()))
    listed = first_few(names, _NAMES_SHOWN)
    many = f"{len(names)} of {counted(total, 'shard')} cannot be read ({listed})"
    if len(names) == total:
        raise UserError(f"{shown}: {many}; {reason.rstrip('.')}.")
    return [f"{many}; {reason.split(';')[0].rstrip('.')}; {counted(len(names), 'shard')} {was(len(names))} left out"]


def read_index(file: IO[bytes], shown: str) -> ShardIndex:
    """Read an index from an open file."""
    try:
        with zipfile.ZipFile(file) as packed:
            if sum(member.file_size for member in packed.infolist()) > MOST_BYTES:
                raise ValueError(f"more than {MOST_BYTES:,} bytes")
        file.seek(0)
        with np.load(file, allow_pickle=False) as stored:
            about = json.loads(str(stored["about"]))
            arrays = {name: stored[name] for name in _ARRAYS}
        return _validated_index(about, arrays, shown)
    except UserError:
        raise
    except _DAMAGE as problem:
        raise UserError(f"{shown} cannot be read as an index of shards ({problem}); {REMAKE}.") from None


def _validated_index(about: Any, arrays: dict[str, NDArray[Any]], shown: str) -> ShardIndex:
    """Return the stored index; raises a ValueError if it is invalid."""
    if about["format"] != FORMAT:
        raise ValueError(f"it has the format {about['format']}, and this version of paucal reads {FORMAT}")
    files = tuple(Shard(**file) for file in about["files"])
    for file in files:
        if not isinstance(file.name, str) or not all(isinstance(number, int) for number in (file.size, file.changed)):
            raise ValueError("the list of shards is invalid")
        checked_name(shown, file.name)
    count = len(arrays["offsets"])
    for name, kind in _ARRAYS.items():
        array = arrays[name]
        if array.dtype != kind or array.ndim != 1 or (name != "key_bytes" and len(array) != count):
            raise ValueError(f"'{name}' has the type {array.dtype} and the shape {array.shape}")
    classes, notes = tuple(map(str, about["classes"])), tuple(map(str, about["notes"]))
    _check_positions(files, len(classes), arrays)
    keys = StringArray.from_buffers(arrays.pop("key_bytes"), arrays.pop("key_ends"))
    return ShardIndex(files, classes, keys=keys, notes=notes, **arrays)


def _check_positions(files: tuple[Shard, ...], n_classes: int, arrays: dict[str, NDArray[Any]]) -> None:
    shards, offsets, lengths, ends = (arrays[name] for name in ("shards", "offsets", "lengths", "key_ends"))
    count = len(offsets)
    if not 0 < count <= MOST_ENTRIES or not files:
        raise ValueError(f"it has {count} images")
    if shards.min() < 0 or shards.max() >= len(files) or (np.diff(shards) < 0).any():
        raise ValueError("it names shards that it does not list")
    sizes = np.asarray([file.size for file in files], dtype=np.int64)
    in_range = offsets.min() >= HEADER and lengths.min() >= 0 and lengths.max() <= MOST_IMAGE
    if not in_range or (offsets + lengths > sizes[shards]).any():
        raise ValueError("an image lies outside of its shard")
    if not -1 <= arrays["labels"].min() <= arrays["labels"].max() < max(1, n_classes):
        raise ValueError(f"it has labels beyond its {n_classes} classes")
    if ends[0] < 0 or (np.diff(ends) < 0).any() or ends[-1] != len(arrays["key_bytes"]):
        raise ValueError("its names of images are damaged")
