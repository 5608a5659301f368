"""Writes images as shards: plain tar files in WebDataset's layout with an index, or Parquet for Hugging Face."""

import io
import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from paucal.cores import usable_cores
from paucal.data.channels.arrays import is_npy, is_tiff
from paucal.data.decode import UnreadableImage
from paucal.data.images import UNKNOWN, ImageSet
from paucal.data.randomness import derive_seed
from paucal.data.shards.index import HEADER, NAME, Shard, ShardIndex, smallest_labels, spans_of
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.stores import EncodedStore, locate
from paucal.data.string_arrays import StringArray, take_strings
from paucal.data.unreadable import OnBad, ReportProgress, drop_unreadable
from paucal.types import UserError
from paucal.wording import counted

Form = Literal["tar", "parquet"]
Label = int | list[int]  # label of an image, or list of its labels

CLASSES = "classes.txt"
_CHUNK = 256  # images that are read and checked together
_MAX_THREADS = 16
_MAX_NAME = 60  # characters; a tar header holds a hundred
_GROUP_IMAGES, _GROUP_BYTES = 256, 8 << 20  # limits of a Parquet row group, the smallest piece that can be read
_SPECIAL_CHARACTERS = re.compile(r"[^A-Za-z0-9_/-]+")


def write_shards(
    images: ImageSet,
    folder: Path,
    form: Form = "tar",
    max_bytes: int = 256 << 20,
    max_images: int = 10_000,
    seed: int = 0,
    on_bad: OnBad = "refuse",
    progress: ReportProgress | None = None,
) -> tuple[list[Shard], list[str]]:
    """Write all images of a set in random order, with separate shards for train, val and test.

    Images keep their bytes. Each is decoded once, so that the shards hold no unreadable image. Labels are numbers or,
    in Parquet, lists of numbers; the class names are in `classes.txt` beside tar files, or in the metadata of Parquet.

    Args:
        images: Images to write.
        folder: Empty folder.
        form: "tar" or "parquet".
        max_bytes: Size in bytes after which a shard is full.
        max_images: Number of images after which a shard is full.
        seed: Seed of the order.
        on_bad: Treatment of unreadable images: "refuse" or "skip".
        progress: Function called with (images done, number of images).

    Returns:
        The shards, and the keys of the unreadable images that were left out.

    Raises:
        UserError: An image is unreadable and `on_bad` is "refuse", or the format cannot hold the labels.
        OSError: The disk is full.
    """
    _require_writable_labels(images, form)
    if form == "parquet":
        writer = _ParquetWriter(folder, images.classes, images.multi_hot is not None)
    else:
        writer = _TarWriter(folder, bool(images.classes))
    n_done, problems = 0, {}
    for part in ("", "test", "train", "val"):  # in the order of the shards' names
        order, count = shard_order(images, part, seed), 0
        for member in read_members(images, order, problems, n_done, progress):
            if problems and on_bad == "refuse":
                break
            if count == 0:
                writer.open(part)
            count += 1
            size = writer.add(member, _label_of(images, member.position))
            if size >= max_bytes or count >= max_images:
                writer.close()
                count = 0
        if count:
            writer.close()
        n_done += len(order)
    left_out = drop_unreadable(images, problems, on_bad)[1]
    if isinstance(writer, _TarWriter):
        if images.classes:
            (folder / CLASSES).write_text("".join(f"{name}\n" for name in images.classes), encoding="utf-8")
        writer.index(images.classes).write(folder / NAME)
    return writer.shards, left_out


def _require_writable_labels(images: ImageSet, shard_format: Form) -> None:
    if images.multi_hot is None:
        return
    if shard_format == "tar":
        raise UserError(
            "--format tar holds one label for each image, and these images have several: give --format parquet, which "
            "holds lists of labels."
        )
    if unknown := int((images.multi_hot == UNKNOWN).sum()):
        raise UserError(
            f"these images have {counted(unknown, 'unknown label')}, which lists of labels cannot express: leave these "
            "classes out with --classes, or train on the table itself."
        )


def _label_of(images: ImageSet, position: int) -> Label:
    if images.multi_hot is None:
        return int(images.labels[position])
    return np.flatnonzero(images.multi_hot[position] == 1).tolist()


@dataclass(frozen=True)
class Member:
    """An image to be written into a shard, with its position and key in its set, and a suffix such as ".jpg"."""

    position: int
    content: bytes
    suffix: str
    key: str

    def stem(self, number: int) -> str:
        """Return a unique file name without suffix: as much of the key as a tar header can hold, then the number."""
        plain = _SPECIAL_CHARACTERS.sub("_", os.path.splitext(self.key)[0]).strip("/")[-_MAX_NAME:].lstrip("/")
        return f"{plain}-{number:08d}" if plain else f"{number:08d}"


def shard_order(images: ImageSet, part: str, seed: int) -> NDArray[np.int64]:
    """Return the positions of the images of one part in a random order that depends on the seed alone.

    A shard is then a random sample, so that a window over a few of them mixes classes.
    """
    positions = np.flatnonzero(np.asarray(images.declared, dtype="<U6") == part)
    order_seed = derive_seed(seed, len(positions))
    if images.stream is not None:  # the input is shards as well: neighbours are read together
        return positions[images.stream.take(positions).order(order_seed)[np.arange(len(positions))]]
    return positions[np.random.default_rng(order_seed).permutation(len(positions))]


def read_members(
    images: ImageSet,
    order: NDArray[np.int64],
    bad: dict[int, str],
    done: int = 0,
    progress: ReportProgress | None = None,
) -> Iterator[Member]:
    """Yield the readable images with their encoded bytes; images from arrays are encoded as PNG.

    Args:
        images: Set of images.
        order: Positions to read.
        bad: Dictionary to which the reasons why images are unreadable are added, by position.
        done: Number of images read before this call.
        progress: Function called with (images done, number of images).
    """
    with ThreadPoolExecutor(min(_MAX_THREADS, usable_cores())) as pool:
        for first in range(0, len(order), _CHUNK):
            positions = order[first : first + _CHUNK]
            contents = pool.map(lambda position: encode_image(images, position), positions.tolist())
            keys = take_strings(images.keys, positions)
            for position, key, content in zip(positions.tolist(), keys, contents, strict=True):
                if isinstance(content, str):
                    bad[position] = content
                else:
                    yield Member(position, *content, key)
            if progress is not None:
                progress(done + first + len(positions), len(images))


def encode_image(images: ImageSet, position: int) -> tuple[bytes, str] | str:
    """Return the encoded bytes of an image and a suffix for its file, or the reason why it is unreadable."""
    store, row = locate(images.store, position)
    try:
        if not isinstance(store, EncodedStore):
            buffer = io.BytesIO()
            store.read(row).save(buffer, "PNG")
            return buffer.getvalue(), ".png"
        images.store.check(position)  # with the channels of the set
        source = store.source(row)
        content = source.read_bytes() if isinstance(source, Path) else source
        suffix = PurePosixPath(store.name(row)).suffix.lower()
        if suffix in IMAGE_SUFFIXES or is_npy(content) or is_tiff(content):
            return content, suffix if suffix in IMAGE_SUFFIXES else ".npy" if is_npy(content) else ".tif"
        with Image.open(io.BytesIO(content)) as image:
            image_format = (image.format or "png").lower()
        suffixes = {"jpeg": ".jpg", "jpeg2000": ".jp2", "ppm": ".ppm"}
        return content, suffixes.get(image_format, f".{image_format}")
    except UnreadableImage as problem:
        return str(problem)
    except OSError as problem:
        return f"image {images.keys[position]} cannot be read: {problem.strerror or problem}"


class _TarWriter:
    """Writes tar files and records the position of every image."""

    def __init__(self, folder: Path, labelled: bool) -> None:
        self.shards: list[Shard] = []
        self._folder, self._labelled, self._number = folder, labelled, 0
        self._rows: list[tuple[int, int, int, int]] = []  # shard, offset, length and label, in the open shard
        self._names: list[str] = []
        self._tables: list[tuple[NDArray[np.int64], StringArray]] = []  # rows and names of finished shards
        self._archive: tarfile.TarFile | None = None

    def open(self, part: str) -> None:
        """Begin another shard."""
        self._path, self._part = self._folder / _shard_name(part, self.shards, ".tar"), part
        self._archive = tarfile.open(self._path, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115 (until `close`)

    def add(self, member: Member, label: Label) -> int:
        """Add an image and its label; return the size of the shard in bytes."""
        assert self._archive is not None
        assert isinstance(label, int)
        stem = member.stem(self._number)
        self._number += 1
        self._rows.append((len(self.shards), self._archive.offset + HEADER, len(member.content), label))
        self._names.append(f"{stem}{member.suffix}")
        _add_file(self._archive, self._names[-1], member.content)
        if self._labelled and label >= 0:
            _add_file(self._archive, f"{stem}.cls", str(label).encode())
        return self._archive.offset

    def close(self) -> None:
        """Finish the shard."""
        assert self._archive is not None
        self._archive.close()
        status = self._path.stat()
        self.shards.append(Shard(self._path.name, status.st_size, self._part, status.st_mtime_ns))
        self._tables.append((np.asarray(self._rows, dtype=np.int64), StringArray.from_strings(self._names)))
        self._rows, self._names = [], []

    def index(self, classes: Sequence[str]) -> ShardIndex:
        """Return the index of the finished shards."""
        table = np.concatenate([rows for rows, _ in self._tables])
        return ShardIndex(
            files=tuple(self.shards),
            classes=tuple(classes),
            spans=spans_of([len(rows) for rows, _ in self._tables]),
            offsets=table[:, 1].copy(),
            lengths=table[:, 2].astype(np.int32),
            labels=smallest_labels(table[:, 3], len(classes)),
            names=StringArray.concatenate([names for _, names in self._tables]),
        )


def _add_file(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)  # has no time or owner, so that the same images give the same shards
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _shard_name(part: str, shards: Sequence[Shard], suffix: str) -> str:
    return f"{part or 'shard'}-{sum(shard.part == part for shard in shards):06d}{suffix}"


class _ParquetWriter:
    """Writes Parquet files in the layout of Hugging Face data sets."""

    def __init__(self, folder: Path, classes: Sequence[str], multi_label: bool) -> None:
        self.shards: list[Shard] = []
        self._folder, self._labelled = folder, bool(classes)
        features: dict[str, object] = {"image": {"_type": "Image"}}
        fields = [pa.field("image", pa.struct({"bytes": pa.binary(), "path": pa.string()}))]
        if classes:
            label = {"names": list(classes), "_type": "ClassLabel"}
            fields.append(pa.field("label", pa.list_(pa.int64()) if multi_label else pa.int64()))
            features["label"] = {"feature": label, "_type": "Sequence"} if multi_label else label
        metadata = json.dumps({"info": {"features": features}})
        self._schema = pa.schema(fields, metadata={"huggingface": metadata.encode(errors="replace").decode()})
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
        """Add an image and its label; return the size of the shard's images in bytes."""
        self._images.append({"bytes": member.content, "path": member.key.encode(errors="replace").decode()})
        self._labels.append(label)
        self._waiting, self._size = self._waiting + len(member.content), self._size + len(member.content)
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
