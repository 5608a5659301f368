"""Images written as shards: plain tar files in WebDataset's layout with an index, or Parquet in Hugging Face's."""

import io
import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from paucal.cores import usable_cores
from paucal.data.decode import UnreadableImage
from paucal.data.images import UNKNOWN, ImageSet
from paucal.data.randomness import derive_seed
from paucal.data.shards.index import HEADER, NAME, Shard, ShardIndex
from paucal.data.sources.folder import IMAGE_SUFFIXES
from paucal.data.stores import EncodedStore, locate
from paucal.data.string_arrays import StringArray, take_strings
from paucal.data.unreadable import OnBad, ReportProgress, drop_unreadable
from paucal.types import UserError
from paucal.wording import counted, was

_CHUNK = 256  # images that are read and checked at once


_MOST_THREADS = 16


_ODD = re.compile(r"[^A-Za-z0-9_/-]+")


_MOST_NAME = 60  # characters; a tar header holds a hundred


@dataclass(frozen=True)
class Member:
    """An image as it goes into a shard.

    Attributes:
        position: in its set.
        content: encoded.
        suffix: of its file's name.
        key: its identity in its set.
    """

    position: int
    content: bytes
    suffix: str
    key: str

    def stem(self, number: int) -> str:
        """Return a name without an ending that no other image has: its old one, as far as a tar can hold it."""
        plain = _ODD.sub("_", os.path.splitext(self.key)[0]).strip("/")[-_MOST_NAME:].lstrip("/")
        return f"{plain}-{number:08d}" if plain else f"{number:08d}"


Form = Literal["tar", "parquet"]
Label = int | list[int]  # of an image; a list where it may have several
CLASSES = "classes.txt"
_GROUP_IMAGES, _GROUP_BYTES = 256, 8 << 20  # of a row group of Parquet, the smallest piece that can be read


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        folder: where.
        images: how many.
        shards: how many.
        n_bytes: of all shards.
        left_out: keys of images that cannot be read.
    """

    folder: str
    images: int
    shards: int
    n_bytes: int
    left_out: tuple[str, ...] = ()


def write_shards(
    images: ImageSet,
    folder: Path,
    form: Form = "tar",
    most_bytes: int = 256 << 20,
    most_images: int = 10_000,
    seed: int = 0,
    on_bad: OnBad = "refuse",
    progress: ReportProgress | None = None,
) -> Written:
    """Write all images of a set into shards, each part of the set into its own, in random order.

    Images keep their bytes; each is decoded once on the way, so that the shards hold none that cannot be read. Labels
    are numbers, or lists of them (Parquet); `classes.txt` beside tars, or the metadata of Parquet, has their names.

    Args:
        images: the set.
        folder: an empty one.
        form: "tar" or "parquet".
        most_bytes: after which a shard is full.
        most_images: after which a shard is full.
        seed: of the order.
        on_bad: what to do about images that cannot be read.
        progress: called with (images done, images in all).

    Raises:
        UserError: an image cannot be read, and `on_bad` is "refuse"; or the form has no place for the labels.
        OSError: the disk is full.
    """
    _require_writable_labels(images, form)
    several = images.multi_hot is not None
    parquet = form == "parquet"
    writer = _ParquetWriter(folder, images.classes, several) if parquet else _TarWriter(folder, bool(images.classes))
    done, bad = 0, {}
    for part in ("", "test", "train", "val"):  # in the order of the shards' names
        order = shard_order(images, part, seed)
        count = 0
        for member in read_members(images, order, bad, _from(done, len(images), progress)):
            if bad and on_bad == "refuse":
                break
            if count == 0:
                writer.open(part)
            count += 1
            size = writer.add(member, _label_of(images, member.position))
            if size >= most_bytes or count >= most_images:
                writer.close()
                count = 0
        if count:
            writer.close()
        done += len(order)
    _, names = drop_unreadable(images, bad, on_bad)
    if isinstance(writer, _TarWriter):
        if images.classes:
            (folder / CLASSES).write_text("".join(f"{name}\n" for name in images.classes), encoding="utf-8")
        writer.index(images.classes).write(folder / NAME)
    return Written(
        str(folder), len(images) - len(names), len(writer.shards), sum(one.size for one in writer.shards), tuple(names)
    )


def _from(done: int, total: int, progress: ReportProgress | None) -> ReportProgress | None:
    return None if progress is None else lambda now, _: progress(done + now, total)


def _require_writable_labels(images: ImageSet, form: Form) -> None:
    if images.multi_hot is None:
        return
    if form == "tar":
        raise UserError(
            "--format is tar, where an image has one label, and these have several: give --format parquet, which has "
            "lists of labels"
        )
    if unknown := int((images.multi_hot == UNKNOWN).sum()):
        raise UserError(
            f"{counted(unknown, 'label')} of these images {was(unknown)} neither given nor denied, and lists of labels "
            "cannot say so: leave these classes out with --classes, or train on the table itself"
        )


def _label_of(images: ImageSet, position: int) -> Label:
    if images.multi_hot is None:
        return int(images.labels[position])
    return np.flatnonzero(images.multi_hot[position] == 1).tolist()


class _TarWriter:
    """Writes tar files and remembers where every image lies.

    Args:
        folder: for the shards.
        labelled: whether images have labels.
    """

    def __init__(self, folder: Path, labelled: bool) -> None:
        self.shards: list[Shard] = []
        self._folder, self._labelled, self._number = folder, labelled, 0
        self._places: list[tuple[int, int, int, int]] = []  # of the open shard: number, offset, length, label
        self._names: list[str] = []
        self._tables: list[tuple[NDArray[np.int64], StringArray]] = []  # of the finished ones
        self._archive: tarfile.TarFile | None = None

    def open(self, part: str) -> None:
        """Begin another shard."""
        self._path, self._part = self._folder / _shard_name(part, self.shards, ".tar"), part
        self._archive = tarfile.open(self._path, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115 (until `close`)

    def add(self, member: Member, label: Label) -> int:
        """Add an image and its label, and return how large the shard is now."""
        assert self._archive is not None
        assert isinstance(label, int)
        stem = member.stem(self._number)
        self._number += 1
        self._places.append((len(self.shards), self._archive.offset + HEADER, len(member.content), label))
        self._names.append(f"{stem}{member.suffix}")
        _put(self._archive, self._names[-1], member.content)
        if self._labelled and label >= 0:
            _put(self._archive, f"{stem}.cls", str(label).encode())
        return self._archive.offset

    def close(self) -> None:
        """Finish the shard."""
        assert self._archive is not None
        self._archive.close()
        found = self._path.stat()
        self.shards.append(Shard(self._path.name, found.st_size, self._part, found.st_mtime_ns))
        self._tables.append((np.asarray(self._places, dtype=np.int64), StringArray.of(self._names)))
        self._places, self._names = [], []

    def index(self, classes: Sequence[str]) -> ShardIndex:
        """Return the index of what was written."""
        table = np.concatenate([places for places, _ in self._tables])
        return ShardIndex(
            files=tuple(self.shards),
            classes=tuple(classes),
            shards=table[:, 0].astype(np.int32),
            offsets=table[:, 1].copy(),
            lengths=table[:, 2].astype(np.int32),
            labels=table[:, 3].astype(np.int32),
            keys=StringArray.joined([names for _, names in self._tables]),
        )


def _put(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)  # no time and no owner: the same images give the same shards
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _shard_name(part: str, shards: Sequence[Shard], suffix: str) -> str:
    return f"{part or 'shard'}-{sum(one.part == part for one in shards):06d}{suffix}"


class _ParquetWriter:
    """Writes Parquet files in the layout of Hugging Face's data sets.

    Args:
        folder: for the shards.
        classes: names, empty without labels.
        several: whether each image has a list of labels.
    """

    def __init__(self, folder: Path, classes: Sequence[str], several: bool = False) -> None:
        self.shards: list[Shard] = []
        self._folder, self._labelled = folder, bool(classes)
        image = pa.field("image", pa.struct({"bytes": pa.binary(), "path": pa.string()}))
        features: dict[str, object] = {"image": {"_type": "Image"}}
        fields = [image]
        if classes:
            one = {"names": list(classes), "_type": "ClassLabel"}
            fields.append(pa.field("label", pa.list_(pa.int64()) if several else pa.int64()))
            features["label"] = {"feature": one, "_type": "Sequence"} if several else one
        told = json.dumps({"info": {"features": features}})
        self._schema = pa.schema(fields, metadata={"huggingface": told.encode(errors="replace").decode()})
        self._file: pq.ParquetWriter | None = None
        self._images: list[dict[str, object]] = []
        self._labels: list[Label] = []
        self._waiting = self._size = 0

    def open(self, part: str) -> None:
        """Begin another shard."""
        self._path, self._part = self._folder / _shard_name(part, self.shards, ".parquet"), part
        # The bytes of images are compressed already.
        self._file = pq.ParquetWriter(self._path, self._schema, compression="none", use_dictionary=False)
        self._size = 0

    def add(self, member: Member, label: Label) -> int:
        """Add an image, and return how large the shard is now."""
        path = member.key.encode(errors="replace").decode()
        self._images.append({"bytes": member.content, "path": path})
        self._labels.append(label)
        self._waiting += len(member.content)
        self._size += len(member.content)
        if len(self._labels) >= _GROUP_IMAGES or self._waiting >= _GROUP_BYTES:
            self._flush()
        return self._size

    def close(self) -> None:
        """Finish the shard."""
        assert self._file is not None
        self._flush()
        self._file.close()
        self.shards.append(Shard(self._path.name, self._path.stat().st_size, self._part))

    def _flush(self) -> None:
        if not self._labels:
            return
        assert self._file is not None
        columns = [pa.array(self._images, self._schema.field("image").type)]
        if self._labelled:
            columns.append(pa.array(self._labels, self._schema.field("label").type))
        self._file.write_table(pa.Table.from_arrays(columns, schema=self._schema))
        self._images, self._labels, self._waiting = [], [], 0


def shard_order(images: ImageSet, part: str, seed: int) -> NDArray[np.int64]:
    """Return the positions of a part's images in random order, which depends on the seed alone.

    Whatever a shard holds is then a sample of all, so that a window over a few of them mixes classes.
    """
    positions = np.flatnonzero(np.asarray(images.declared, dtype="<U6") == part)
    generator = np.random.default_rng(derive_seed(seed, len(positions)))
    if images.stream is not None:  # from shards to shards: neighbours are read together
        return positions[images.stream.take(positions).order(generator)]
    return positions[generator.permutation(len(positions))]


def read_members(
    images: ImageSet, order: NDArray[np.int64], bad: dict[int, str], progress: ReportProgress | None = None
) -> Iterator[Member]:
    """Yield the images that can be decoded, with their bytes as they are; those of arrays as PNG.

    Args:
        images: the set.
        order: positions.
        bad: is filled with why an image cannot be read, by position.
        progress: called with (images done, images in all).
    """
    with ThreadPoolExecutor(min(_MOST_THREADS, usable_cores())) as pool:
        for first in range(0, len(order), _CHUNK):
            positions = order[first : first + _CHUNK]
            read = pool.map(lambda position: _encoded(images, position), positions.tolist())
            keys = take_strings(images.keys, positions)
            for position, key, found in zip(positions.tolist(), keys, read, strict=True):
                if isinstance(found, str):
                    bad[position] = found
                else:
                    yield Member(position, *found, key)
            if progress is not None:
                progress(first + len(positions), len(order))


def _encoded(images: ImageSet, position: int) -> tuple[bytes, str] | str:
    """Return the bytes of an image and the ending they need; why it cannot be read where that is so."""
    store, place = locate(images.store, position)
    try:
        if not isinstance(store, EncodedStore):
            buffer = io.BytesIO()
            store.read(place).save(buffer, "PNG")
            return buffer.getvalue(), ".png"
        store.check(place)
        source = store.source(place)
        content = source.read_bytes() if isinstance(source, Path) else source
        return content, _suffix(source, content)
    except UnreadableImage as problem:
        return str(problem)
    except OSError as problem:
        return f"image {images.keys[position]} cannot be read: {problem.strerror or problem}"


def _suffix(source: bytes | Path, content: bytes) -> str:
    """Return the ending of an image's name: its file's, else what its format is usually called."""
    if isinstance(source, Path) and source.suffix.lower() in IMAGE_SUFFIXES:
        return source.suffix.lower()
    with Image.open(io.BytesIO(content)) as image:
        form = (image.format or "png").lower()
    return {"jpeg": ".jpg", "tiff": ".tif", "jpeg2000": ".jp2", "ppm": ".ppm"}.get(form, f".{form}")
