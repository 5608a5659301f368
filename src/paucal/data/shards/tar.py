"""WebDataset's tar files, looked through once, and read where their index says.

Images and labels are neighbours that share the name up to the first dot: `000123.jpg` and `000123.cls` are one
sample. The label is the text of `.cls` or `.label`, or the field of `.json` that is called so; a number stands for a
class by its place in `classes.txt`, a line for each, where there is one.
"""

import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paucal.data.decode import UnreadableImage
from paucal.data.shards.folders import ShardFolder
from paucal.data.shards.index import HEADER, Shard, ShardIndex
from paucal.data.sources.archive import MOST_ENTRIES, MOST_IMAGE, checked_name
from paucal.data.sources.folder import IMAGE_SUFFIXES, ignored
from paucal.data.stores import EncodedStore, Stamp
from paucal.data.string_arrays import StringArray
from paucal.reading import parse_json
from paucal.types import UserError
from paucal.wording import counted, was

LABEL_SUFFIXES = (".cls", ".label")
JSON_FIELD = "label"
_SIZE = slice(124, 136)  # where a tar header says how large the member is
_MOST_LABEL = 1 << 20  # bytes of a file that holds a label
_IMAGES, _LABELS = frozenset(IMAGE_SUFFIXES), frozenset(LABEL_SUFFIXES)


@dataclass(frozen=True, eq=False)
class TarContents:
    """The images of one shard.

    Attributes:
        names: of the members.
        offsets: where their bytes begin.
        lengths: how many they are.
        labels: as they are written; None for an image without one.
    """

    names: StringArray
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int32]
    labels: list[str | None]


def index_tar(path: Path, shown: str, label_field: str = JSON_FIELD) -> TarContents:
    """Look through one tar file.

    Args:
        path: of the file on this machine.
        shown: its name in messages.
        label_field: of JSON files, which holds the label.

    Raises:
        UserError: it is damaged or compressed, holds a name that leads out of it, or a key twice.
    """
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, str] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for number, one in enumerate(archive):
                if number >= MOST_ENTRIES:
                    raise UserError(f"{shown} has more than {MOST_ENTRIES:,} entries, the most that are read")
                archive.members.clear()  # type: ignore[attr-defined]  # which would keep every header in memory
                if not one.isreg() or one.issparse():
                    continue
                key, ending = sample_key(checked_name(shown, one.name))
                if ending in _IMAGES and not any(map(ignored, one.name.removeprefix("./").split("/"))):
                    _add(images, key, one, shown)
                elif (ending in _LABELS or ending == ".json") and one.size <= _MOST_LABEL:
                    content = archive.extractfile(one)
                    text = b"" if content is None else content.read()
                    found = _label_of(text, ending, label_field, f"{one.name} in {shown}")
                    if found is not None and labels.setdefault(key, found) != found:
                        raise UserError(f"{shown} has two labels for the key {key!r}; keep one of them")
            _require_end(archive)
    except (tarfile.TarError, OSError, EOFError, ValueError) as problem:
        raise UserError(f"the shard {shown} cannot be read as a tar file ({problem}); fetch or make it again") from None
    found = images.values()
    return TarContents(
        names=StringArray.of(one.name for one in found),
        offsets=np.asarray([one.offset_data for one in found], dtype=np.int64),
        lengths=np.asarray([one.size for one in found], dtype=np.int32),
        labels=[labels.get(key) for key in images],
    )


def _require_end(archive: tarfile.TarFile) -> None:
    """Raise a `ReadError` where a tar file lacks the block of zeros that ends it: tarfile itself would not mind."""
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
        raise tarfile.ReadError("it is cut off")


def sample_key(name: str) -> tuple[str, str]:
    """Return the key of a member, its path up to the first dot of its file's name, and the ending in small letters.

    Example:
        >>> sample_key("n01/cat.v2/000123.JPG"), sample_key("7.seg.png")
        (('n01/cat.v2/000123', '.jpg'), ('7', '.seg.png'))
    """
    folder, slash, file = name.rpartition("/")
    stem, dot, ending = file.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{ending}".lower()


def _add(images: dict[str, tarfile.TarInfo], key: str, member: tarfile.TarInfo, shown: str) -> None:
    if key in images:
        raise UserError(
            f"{shown} has the key {key!r} twice ({images[key].name} and {member.name}); give each image its own"
        )
    if member.size > MOST_IMAGE:
        raise UserError(f"{member.name} in {shown} has more than {MOST_IMAGE:,} bytes, the most that are read")
    images[key] = member


def _label_of(content: bytes, ending: str, label_field: str, shown: str) -> str | None:
    try:
        value = parse_json(content) if ending == ".json" else content.decode("utf-8-sig").strip()
    except ValueError as problem:
        raise UserError(f"{shown} cannot be read as a label ({problem}); write it again") from None
    if ending == ".json":
        value = value.get(label_field) if isinstance(value, dict) else None
    if value is None or value == "":
        return None
    if isinstance(value, bool | float | list | dict):
        raise UserError(f"{shown} has the label {str(value)[:80]!r}; expected one class, a whole number or a name")
    return sys.intern(str(value))  # of a million labels there are few different ones


def build_index(files: Sequence[Shard], rows: Sequence[TarContents], names: Sequence[str] = ()) -> ShardIndex:
    """Put the rows of all shards together.

    Args:
        files: the shards.
        rows: of each.
        names: of the classes, by their numbers; empty where the labels are the names.

    Raises:
        UserError: there are no images, or a number stands for none of the names.
    """
    counts = [len(one.offsets) for one in rows]
    if not sum(counts):
        raise UserError(
            f"{files[0].name if len(files) == 1 else counted(len(files), 'tar file')} held no images (expected members "
            f"ending in {', '.join(IMAGE_SUFFIXES)})"
        )
    classes, labels = _encoded([label for one in rows for label in one.labels], names)
    bare, empty = int((labels < 0).sum()), [file.name for file, count in zip(files, counts, strict=True) if not count]
    notes = [f"{counted(bare, 'image')} in the shards {was(bare)} without a label"] if bare and classes else []
    notes += (
        [f"{counted(len(empty), 'shard')} held no images ({empty[0]}{', ...' * (len(empty) > 1)})"] if empty else []
    )
    return ShardIndex(
        files=tuple(files),
        classes=classes,
        shards=np.repeat(np.arange(len(files)), counts).astype(np.int32),
        offsets=np.concatenate([one.offsets for one in rows]),
        lengths=np.concatenate([one.lengths for one in rows]),
        labels=labels,
        keys=StringArray.joined([one.names for one in rows]),
        notes=tuple(notes),
    )


def _encoded(values: Sequence[str | None], names: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Return the classes and the (N,) labels; numbers are in the order of numbers, not of text."""
    found = {value for value in values if value is not None}
    numeric = all(value.isdecimal() and len(value) < 10 for value in found)
    if names and numeric:
        beyond = [value for value in found if int(value) >= len(names)]
        if beyond:
            raise UserError(
                f"the shards have the label {beyond[0]}, and classes.txt names {len(names)} classes, numbered from 0; "
                "correct one of the two"
            )
        places = {value: int(value) for value in found}
        classes = tuple(names)
    else:
        classes = tuple(sorted({str(int(one)) for one in found}, key=int)) if numeric else tuple(sorted(found))
        of_class = {name: place for place, name in enumerate(classes)}
        places = {value: of_class[str(int(value)) if numeric else value] for value in found}
    labels = [-1 if value is None else places[value] for value in values]
    return classes, np.asarray(labels, dtype=np.int32)


class TarStore(EncodedStore):
    """Images of tar shards.

    Args:
        place: where the shards lie.
        index: where the images lie in them.
        keys: of the images, for messages.
    """

    def __init__(self, place: ShardFolder, index: ShardIndex, keys: StringArray) -> None:
        self._place, self._index, self._keys = place, index, keys

    def __len__(self) -> int:
        return len(self._index)

    def name(self, index: int) -> str:
        """Return the key."""
        return self._keys[index]

    def stamp(self, index: int) -> Stamp:
        """Return the image's place in the index."""
        shard = self._index.files[int(self._index.shards[index])]
        return Stamp(f"{self._place.location}/{self._keys[index]}", int(self._index.lengths[index]), shard.changed)

    def source(self, index: int) -> bytes:
        """Return the bytes of an image.

        Raises:
            UnreadableImage: the shard is missing, cannot be fetched, or is not the one that was indexed.
        """
        length, shard = int(self._index.lengths[index]), self._index.files[int(self._index.shards[index])]
        try:
            content = self._read(shard, int(self._index.offsets[index]) - HEADER, HEADER + length)
        except OSError as problem:
            reason = problem.strerror or problem
            raise UnreadableImage(f"image {self.name(index)} cannot be read from its shard: {reason}") from None
        if len(content) < HEADER + length or size_in_header(content) != length:
            raise UnreadableImage(
                f"image {self.name(index)} is not where the index says: the shard was changed or cut off since; index "
                "the shards again"
            )
        return content[HEADER:]

    def _read(self, shard: Shard, start: int, count: int) -> bytes:
        # Opened for each image, as forked processes would share the place in a file that stays open.
        for last in (False, True):
            try:
                with open(self._place.path(shard), "rb", buffering=0) as file:
                    file.seek(start)
                    return file.read(count)
            except FileNotFoundError:  # a fetched one that had to make room for another in between
                if last:
                    raise
        raise AssertionError


def size_in_header(content: bytes) -> int | None:
    """Return the size that a tar header says its member has; None where it is no header."""
    try:
        return int(content[_SIZE].rstrip(b" \0") or b"-1", 8)
    except ValueError:
        return None
