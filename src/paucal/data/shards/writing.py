"""Writes images to shards: tar files in WebDataset's layout with an index, or Parquet files for Hugging Face."""

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

from paucal.cores import count_usable_cores
from paucal.data.channels.arrays import is_npy, is_tiff
from paucal.data.decode import UnreadableImage
from paucal.data.images import UNKNOWN, ImageSet
from paucal.data.randomness import derive_seed
from paucal.data.shards.index import (
    CLASSES_NAME,
    HEADER_BYTES,
    INDEX_NAME,
    Shard,
    ShardIndex,
    compact_labels,
    spans_from_counts,
)
from paucal.data.shards.stream import StreamOrder
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.stores import EncodedStore, locate
from paucal.data.string_arrays import StringArray, take_strings
from paucal.data.unreadable import OnBad, ReportProgress, drop_unreadable
from paucal.types import UserError
from paucal.wording import counted

ShardFormat = Literal["tar", "parquet"]
Label = int | list[int]  # class number of an image, or class numbers in a multi-label set

_CHUNK_IMAGES = 256  # number of images that are read and checked together
_MAX_THREADS = 16  # maximum number of threads that read and check images
_MAX_NAME_LENGTH = 60  # maximum number of characters of a key in a file name; a tar header has space for 100 characters
# Limits of a row group, which is the smallest block of a Parquet file that can be read.
_MAX_GROUP_IMAGES, _MAX_GROUP_BYTES = 256, 8 << 20
_SPECIAL_CHARACTERS = re.compile(r"[^A-Za-z0-9_/-]+")


def write_shards(
    images: ImageSet,
    folder: Path,
    form: ShardFormat = "tar",
    max_bytes: int = 256 << 20,
    max_images: int = 10_000,
    seed: int = 0,
    on_bad: OnBad = "refuse",
    progress: ReportProgress | None = None,
) -> tuple[list[Shard], list[str]]:
    """Write all images of a set to shards in random order, separately for train, val and test, into an empty folder.

    The encoded bytes of images are copied. Each image is also decoded, so that no unreadable image is written. Labels
    are class numbers or, in Parquet files, lists of class numbers. Class names are written to `classes.txt` in the
    folder of tar files, or to the metadata of Parquet files. A shard is full at `max_bytes` or `max_images`.

    Return the shards, and the keys of the unreadable images that were left out (or refused, see `OnBad`).
    """
    _require_writable_labels(images, form)
    if form == "parquet":
        writer = _ParquetWriter(folder, images.classes, images.multi_hot is not None)
    else:
        writer = _TarWriter(folder, bool(images.classes))
    n_done, problems = 0, {}
    for part in ("", "test", "train", "val"):  # so that shards are written in the alphabetical order of their names
        order, count = shard_order(images, part, seed), 0
        for member in read_members(images, order, problems, n_done, progress):
            if problems and on_bad == "refuse":
                break
            if count == 0:
                writer.open(part)
            count += 1
            size = writer.add(member)
            if size >= max_bytes or count >= max_images:
                writer.close()
                count = 0
        if count:
            writer.close()
        n_done += len(order)
    left_out = drop_unreadable(images, problems, on_bad)[1]
    if isinstance(writer, _TarWriter):
        if images.classes:
            (folder / CLASSES_NAME).write_text("".join(f"{name}\n" for name in images.classes), encoding="utf-8")
        writer.build_index(images.classes).write(folder / INDEX_NAME)
    return writer.shards, left_out


def _require_writable_labels(images: ImageSet, form: ShardFormat) -> None:
    """Raise a UserError for labels that the format cannot store."""
    if images.multi_hot is None:
        return
    if form == "tar":
        raise UserError(
            "--format tar stores one label for each image, but these images may have several labels: use --format "
            "parquet, which stores lists of labels."
        )
    if unknown := int((images.multi_hot == UNKNOWN).sum()):
        raise UserError(
            f"these images have {counted(unknown, 'unknown label')}, which shards cannot store: exclude the classes "
            "with unknown labels with --classes, or train on the table itself."
        )


@dataclass(frozen=True)
class ShardMember:
    """An image to write into a shard: its label, encoded bytes, suffix such as ".jpg", and key in its set."""

    label: Label
    content: bytes
    suffix: str
    key: str

    def stem(self, number: int) -> str:
        """Return a unique file name without suffix: the last 60 characters of the key, then `number`."""
        name = _SPECIAL_CHARACTERS.sub("_", os.path.splitext(self.key)[0]).strip("/")[-_MAX_NAME_LENGTH:].lstrip("/")
        return f"{name}-{number:08d}" if name else f"{number:08d}"


def shard_order(images: ImageSet, part: str, seed: int) -> NDArray[np.int64]:
    """Return the positions of one split in random order, so that each shard is a random sample of the images."""
    positions = np.flatnonzero(np.asarray(images.declared_splits, dtype="<U6") == part)
    order_seed = derive_seed(seed, len(positions))
    if images.stream is not None:  # the images are already in shards, so neighbouring images should be read together
        return positions[StreamOrder(images.stream.take(positions), order_seed)[np.arange(len(positions))]]
    return positions[np.random.default_rng(order_seed).permutation(len(positions))]


def read_members(
    images: ImageSet,
    order: NDArray[np.int64],
    problems: dict[int, str],
    n_done: int = 0,
    progress: ReportProgress | None = None,
) -> Iterator[ShardMember]:
    """Yield the readable images at the positions `order` with their encoded bytes; images from arrays become PNG.

    The errors of other images are added to `problems`. `n_done` images were done before, for `progress` (done, total).
    """
    with ThreadPoolExecutor(min(_MAX_THREADS, count_usable_cores())) as pool:
        for first in range(0, len(order), _CHUNK_IMAGES):
            positions = order[first : first + _CHUNK_IMAGES]
            contents = pool.map(lambda position: encode_image(images, position), positions.tolist())
            keys = take_strings(images.keys, positions)
            for position, key, content in zip(positions.tolist(), keys, contents, strict=True):
                if isinstance(content, str):
                    problems[position] = content
                else:
                    label: Label = int(images.labels[position])
                    if images.multi_hot is not None:
                        label = np.flatnonzero(images.multi_hot[position] == 1).tolist()
                    yield ShardMember(label, *content, key)
            if progress is not None:
                progress(n_done + first + len(positions), len(images))


def encode_image(images: ImageSet, position: int) -> tuple[bytes, str] | str:
    """Return the encoded bytes of an image and a suffix such as ".jpg", or an error message for an unreadable image."""
    store, row = locate(images.store, position)
    try:
        if not isinstance(store, EncodedStore):
            buffer = io.BytesIO()
            store.read(row).save(buffer, "PNG")
            return buffer.getvalue(), ".png"
        images.store.check(position)  # unlike `store.check(row)`, this also checks the number of channels
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
    """Writes tar files, and records the position of every image for the index."""

    _archive: tarfile.TarFile  # the open shard

    def __init__(self, folder: Path, labelled: bool) -> None:
        self.shards: list[Shard] = []
        self._folder, self._labelled, self._next_image_number = folder, labelled, 0
        # Byte position, size in bytes, and label of each image in the open shard.
        self._rows: list[tuple[int, int, int]] = []
        self._names: list[str] = []
        self._tables: list[tuple[NDArray[np.int64], StringArray]] = []  # rows and names of finished shards

    def open(self, part: str) -> None:
        self._path, self._part = self._folder / _shard_name(part, self.shards, ".tar"), part
        self._archive = tarfile.open(self._path, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115 (until `close`)

    def add(self, member: ShardMember) -> int:
        """Add an image and its label; return the size of the shard in bytes."""
        label = member.label
        assert isinstance(label, int)
        stem = member.stem(self._next_image_number)
        self._next_image_number += 1
        self._rows.append((self._archive.offset + HEADER_BYTES, len(member.content), label))
        self._names.append(f"{stem}{member.suffix}")
        _add_file(self._archive, self._names[-1], member.content)
        if self._labelled and label >= 0:
            _add_file(self._archive, f"{stem}.cls", str(label).encode())
        return self._archive.offset

    def close(self) -> None:
        self._archive.close()
        status = self._path.stat()
        self.shards.append(Shard(self._path.name, status.st_size, self._part, status.st_mtime_ns))
        self._tables.append((np.asarray(self._rows, dtype=np.int64), StringArray.from_strings(self._names)))
        self._rows, self._names = [], []

    def build_index(self, classes: Sequence[str]) -> ShardIndex:
        table = np.concatenate([rows for rows, _ in self._tables])
        return ShardIndex(
            files=tuple(self.shards),
            classes=tuple(classes),
            spans=spans_from_counts([len(rows) for rows, _ in self._tables]),
            offsets=table[:, 0].copy(),
            lengths=table[:, 1].astype(np.int32),
            labels=compact_labels(table[:, 2], len(classes)),
            names=StringArray.concatenate([names for _, names in self._tables]),
        )


def _add_file(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)  # time and owner are not set, so that the same images give identical shards
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _shard_name(part: str, shards: Sequence[Shard], suffix: str) -> str:
    """Return the name of the next shard of a split, such as "train-000003.tar", given all finished shards."""
    return f"{part or 'shard'}-{sum(shard.part == part for shard in shards):06d}{suffix}"


class _ParquetWriter:
    """Writes Parquet files in the layout of Hugging Face data sets."""

    _file: pq.ParquetWriter  # the open shard

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
        self._images: list[dict[str, object]] = []
        self._labels: list[Label] = []
        self._n_pending_bytes = self._size = 0

    def open(self, part: str) -> None:
        self._path, self._part = self._folder / _shard_name(part, self.shards, ".parquet"), part
        # Compression is off, since encoded images are already compressed.
        self._file = pq.ParquetWriter(self._path, self._schema, compression="none", use_dictionary=False)
        self._size = 0

    def add(self, member: ShardMember) -> int:
        """Add an image and its label; return the size in bytes of all images in the shard."""
        self._images.append({"bytes": member.content, "path": member.key.encode(errors="replace").decode()})
        self._labels.append(member.label)
        self._n_pending_bytes += len(member.content)
        self._size += len(member.content)
        if len(self._labels) >= _MAX_GROUP_IMAGES or self._n_pending_bytes >= _MAX_GROUP_BYTES:
            self._flush()
        return self._size

    def close(self) -> None:
        self._flush()
        self._file.close()
        self.shards.append(Shard(self._path.name, self._path.stat().st_size, self._part))

    def _flush(self) -> None:
        if not self._labels:
            return
        columns = [pa.array(self._images, self._schema.field("image").type)]
        if self._labelled:
            columns.append(pa.array(self._labels, self._schema.field("label").type))
        self._file.write_table(pa.Table.from_arrays(columns, schema=self._schema))
        self._images, self._labels, self._n_pending_bytes = [], [], 0
