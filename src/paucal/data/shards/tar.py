"""Reads tar files in WebDataset's layout, which are indexed once, so that images can be read by their position.

An image and its label have the same name up to the first dot: `000123.jpg` and `000123.cls` are one sample. The label
is the text of `.cls` or `.label`, or a field of `.json`. If there is a `classes.txt`, numeric labels are the line
numbers of the classes in this file, from 0.
"""

import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paucal.data.decode import UnreadableImage
from paucal.data.shards.folders import ShardFolder
from paucal.data.shards.index import (
    HEADER_BYTES,
    DamagedShard,
    OpenFile,
    Shard,
    ShardIndex,
    compact_labels,
    spans_from_counts,
)
from paucal.data.sources.archive import MAX_IMAGE_BYTES, require_safe_name, tar_members
from paucal.data.sources.folder import is_ignored
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.stores import EncodedStore, FileStamp
from paucal.data.string_arrays import StringArray
from paucal.reading import parse_json
from paucal.types import UserError
from paucal.wording import counted, was_or_were

LABEL_SUFFIXES = (".cls", ".label")
JSON_FIELD = "label"  # default field of JSON members for the label
_SIZE_FIELD = slice(124, 136)  # bytes of a tar header that contain the size of the member
_MAX_LABEL_BYTES = 1 << 20  # maximum size of a member with a label
_MAX_OPEN_SECONDS = 60.0  # a shard is opened again after this time, to mark its downloaded copy as in use
_MAX_OPEN_SHARDS = 64  # maximum number of open shards; on most systems a process can open 1,024 files
_IMAGE_ENDINGS, _LABEL_ENDINGS = frozenset(IMAGE_SUFFIXES), frozenset(LABEL_SUFFIXES)


@dataclass(frozen=True, eq=False)
class TarContents:
    """The N images in one tar file: paths, byte positions, sizes in bytes, and labels (None for unlabelled images)."""

    names: StringArray
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int32]
    labels: list[str | None]


def index_tar(path: Path, shown_path: str, label_field: str = JSON_FIELD) -> TarContents:
    """Return the images in one tar file; `label_field` is the field of JSON members that contains the label."""
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, str] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for member in tar_members(archive, shown_path):
                is_link = member.islnk() or member.issym()
                if not (member.isreg() or is_link) or member.issparse():
                    continue
                key, ending = sample_key(require_safe_name(shown_path, member.name))
                if is_link and ending in (*_IMAGE_ENDINGS, *_LABEL_ENDINGS, ".json"):
                    raise UserError(
                        f"{shown_path} stores {member.name} as a link to {member.linkname}: create the tar file again "
                        "with tar --dereference --hard-dereference, so that the content of each file is stored."
                    )
                if ending in _IMAGE_ENDINGS and not any(map(is_ignored, member.name.removeprefix("./").split("/"))):
                    _add_image(images, key, member, shown_path)
                elif (ending in _LABEL_ENDINGS or ending == ".json") and member.size <= _MAX_LABEL_BYTES:
                    content = archive.extractfile(member)
                    text = b"" if content is None else content.read()
                    label = _parse_label(text, ending, label_field, f"{member.name} in {shown_path}")
                    if label is not None and labels.setdefault(key, label) != label:
                        raise UserError(f"{shown_path} has two labels for the key {key!r}; keep one label.")
    except (tarfile.TarError, OSError, EOFError, ValueError) as problem:
        raise DamagedShard(
            f"the shard {shown_path} cannot be read as a tar file ({problem}); download or create the shard again, or "
            "leave it out with --on-bad-image skip."
        ) from None
    members = images.values()
    return TarContents(
        names=StringArray.from_strings(member.name for member in members),
        offsets=np.asarray([member.offset_data for member in members], dtype=np.int64),
        lengths=np.asarray([member.size for member in members], dtype=np.int32),
        labels=[labels.get(key) for key in images],
    )


def sample_key(name: str) -> tuple[str, str]:
    """Split a member's path at the first dot of the file name: the key of its sample, and the lower-case ending."""
    folder, slash, file = name.rpartition("/")
    stem, dot, ending = file.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{ending}".lower()


def _add_image(images: dict[str, tarfile.TarInfo], key: str, member: tarfile.TarInfo, shown_path: str) -> None:
    if key in images:
        raise UserError(
            f"{shown_path} has the key {key!r} twice ({images[key].name} and {member.name}); rename one of the two "
            "images."
        )
    if member.size > MAX_IMAGE_BYTES:
        raise UserError(
            f"{member.name} in {shown_path} is larger than the limit of {MAX_IMAGE_BYTES:,} bytes for an image."
        )
    images[key] = member


def _parse_label(content: bytes, ending: str, label_field: str, shown_path: str) -> str | None:
    """Return the label in a JSON or text member; None if the member has no label."""
    try:
        value = parse_json(content) if ending == ".json" else content.decode("utf-8-sig").strip()
    except ValueError as problem:
        raise UserError(f"{shown_path} cannot be read as a label ({problem}); correct the file.") from None
    if ending == ".json":
        value = value.get(label_field) if isinstance(value, dict) else None
    if value is None or value == "":
        return None
    if isinstance(value, bool | float | list | dict):
        raise UserError(f"{shown_path} has the label {str(value)[:80]!r}; expected one class, as an integer or a name.")
    return sys.intern(str(value))  # equal labels of a million images share their memory


def build_index(files: Sequence[Shard], contents: Sequence[TarContents], names: Sequence[str] = ()) -> ShardIndex:
    """Return the index of all shards; `names` are the class names in `classes.txt`, empty without such a file."""
    counts = [len(shard.offsets) for shard in contents]
    if not sum(counts):
        raise UserError(
            f"there are no images in {files[0].name if len(files) == 1 else counted(len(files), 'tar file')}; expected "
            f"members ending in {', '.join(IMAGE_SUFFIXES)}."
        )
    classes, labels = _number_labels([label for shard in contents for label in shard.labels], names)
    n_unlabelled = int((labels < 0).sum())
    empty = [file.name for file, count in zip(files, counts, strict=True) if not count]
    notes = []
    if n_unlabelled and classes:
        notes.append(f"{counted(n_unlabelled, 'image')} in the shards {was_or_were(n_unlabelled)} without a label")
    if empty:
        notes.append(f"{counted(len(empty), 'shard')} had no images ({empty[0]}{', ...' * (len(empty) > 1)})")
    return ShardIndex(
        files=tuple(files),
        classes=classes,
        spans=spans_from_counts(counts),
        labels=compact_labels(labels, len(classes)),
        offsets=np.concatenate([shard.offsets for shard in contents]),
        lengths=np.concatenate([shard.lengths for shard in contents]),
        names=StringArray.concatenate([shard.names for shard in contents]),
        notes=tuple(notes),
    )


def _number_labels(values: Sequence[str | None], names: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Return the class names, and the (N,) labels: positions in `names`, or else in the sorted numbers or names."""
    distinct = {value for value in values if value is not None}
    are_numbers = all(value.isdecimal() and len(value) < 10 for value in distinct)
    if names and are_numbers:
        too_large = [value for value in distinct if int(value) >= len(names)]
        if too_large:
            count = counted(len(names), "class", "classes")
            raise UserError(
                f"the shards have the label {too_large[0]}, but classes.txt has {count}, numbered from 0; correct the "
                "labels or classes.txt."
            )
        numbers = {value: int(value) for value in distinct}
        classes = tuple(names)
    else:
        # Labels such as "7" and "007" are the same class.
        name_by_value = {value: str(int(value)) if are_numbers else value for value in distinct}
        classes = tuple(sorted(set(name_by_value.values()), key=int if are_numbers else None))
        number_by_name = {name: number for number, name in enumerate(classes)}
        numbers = {value: number_by_name[name] for value, name in name_by_value.items()}
    labels = [-1 if value is None else numbers[value] for value in values]
    return classes, np.asarray(labels, dtype=np.int32)


class TarStore(EncodedStore):
    """Images in tar shards, which stay open for a minute, since opening takes as long as decoding a small image."""

    def __init__(self, folder: ShardFolder, index: ShardIndex, keys: Sequence[str]) -> None:
        super().__init__(keys)
        self._folder, self._index = folder, index
        # Open files with the time of opening, by the number of the shard, in the order of opening.
        self._open_files: dict[int, tuple[OpenFile, float]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return TarStore, (self._folder, self._index, self._keys)

    def stamp(self, index: int) -> FileStamp:
        """Return a stamp with the key and the size of an image, and the modification time of its shard."""
        number, row = self._index.locate(index)
        length, shard = int(self._index.rows(number).lengths[row]), self._index.files[number]
        return FileStamp(f"{self._folder.location}/{self._keys[index]}", length, shard.changed)

    def prefetch(self, index: int) -> None:
        """Download the shard of an image, unless the shard is local or already downloaded."""
        self._folder.prefetch(self._index.files[self._index.locate(index)[0]])

    def source(self, index: int) -> bytes:
        """Return the encoded bytes of an image."""
        number, row = self._index.locate(index)
        rows = self._index.rows(number)
        length, start = int(rows.lengths[row]), int(rows.offsets[row]) - HEADER_BYTES
        try:
            try:
                content = self._open_shard(number).read(start, HEADER_BYTES + length)
            except OSError:  # on a network disk, a shard that was replaced must be opened again
                self._open_files.pop(number, None)
                content = self._open_shard(number).read(start, HEADER_BYTES + length)
        except OSError as problem:
            reason = problem.strerror or problem
            raise UnreadableImage(f"image {self.name(index)} cannot be read from its shard: {reason}") from None
        if len(content) < HEADER_BYTES + length or size_in_header(content) != length:
            raise UnreadableImage(
                f"image {self.name(index)} is not at its position in the index, since the shard was changed or "
                "truncated after it was indexed; index the shards again."
            )
        return content[HEADER_BYTES:]

    def _open_shard(self, number: int) -> OpenFile:
        file, open_time = self._open_files.get(number, (None, 0.0))
        if file is not None and time.monotonic() - open_time < _MAX_OPEN_SECONDS:
            return file
        path = self._folder.fetch_shard(self._index.files[number])
        try:
            file = OpenFile(path)
        except FileNotFoundError:  # another process has deleted the copy to free space, so download the shard again
            file = OpenFile(self._folder.fetch_shard(self._index.files[number]))
        now = time.monotonic()
        self._open_files.pop(number, None)
        self._open_files[number] = file, now
        for old_number, (_, open_time) in list(self._open_files.items())[:-1]:
            if len(self._open_files) > _MAX_OPEN_SHARDS or now - open_time >= _MAX_OPEN_SECONDS:
                self._open_files.pop(old_number, None)
        return file


def size_in_header(content: bytes) -> int | None:
    """Return the size of a tar member in bytes, from the bytes of its header; None if the header is invalid."""
    try:
        return int(content[_SIZE_FIELD].rstrip(b" \0") or b"-1", 8)
    except ValueError:
        return None
