"""Opens tar shards as a set of images, with the index in their folder, or with an index that is built and cached."""

import hashlib
import itertools
import os
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from paucal.data.classes import class_names_by_line
from paucal.data.decode import UnreadableImage
from paucal.data.decoded.cache_folder import SHARDS, usable_cache_folder
from paucal.data.images import ImageSet
from paucal.data.shards.folders import LocalShardFolder, RemoteShardFolder, ShardFolder
from paucal.data.shards.index import (
    CLASSES_NAME,
    HEADER_BYTES,
    INDEX_NAME,
    MAX_BYTES,
    REMAKE_ADVICE,
    DamagedShard,
    Shard,
    ShardIndex,
    damage_notes,
    read_index,
)
from paucal.data.shards.stream import Stream, is_streamed, streaming_note, window_size
from paucal.data.shards.tar import (
    JSON_FIELD,
    LABEL_SUFFIXES,
    TarContents,
    TarStore,
    build_index,
    index_tar,
    sample_key,
    size_in_header,
)
from paucal.data.sources.archive import COMPRESSED_SUFFIXES
from paucal.data.sources.folder import is_ignored
from paucal.data.sources.source import SourceOptions
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.splits.part_names import PART_BY_WORD, only_split
from paucal.data.string_arrays import GroupedStrings, RepeatedStrings
from paucal.reading import decode_text, read_bytes
from paucal.types import NoLabelsError, UserError
from paucal.wording import counted, was_or_were

TAR_SUFFIX = ".tar"
_MAX_CLASSES_BYTES = 64 << 20  # maximum size of `classes.txt`
_SKIP_ADVICE = ", or leave the shard out with --on-bad-image skip"
_INSPECTED_ENTRIES = 64  # number of entries of a tar file or folder by which shards are recognised


def has_shards(folder: Path) -> bool:
    """Return whether a folder has an index of shards, or tar files and no images, perhaps in train/val/test folders."""
    if (folder / INDEX_NAME).is_file():
        return True
    folders, files = _list_entries(folder)
    if any(file.lower().endswith(IMAGE_SUFFIXES) for file in files):
        return False
    parts = {
        name: _list_entries(folder / name, _INSPECTED_ENTRIES)[1] for name in folders if name.lower() in PART_BY_WORD
    }
    files += [f"{name}/{file}" for name, part_files in parts.items() for file in part_files]
    compressed = [file for file in files if file.lower().endswith(COMPRESSED_SUFFIXES)]
    tars = [file for file in files if file.lower().endswith(TAR_SUFFIX)]
    if compressed and len(compressed) == len(files) and set(folders) == set(parts):
        raise UserError(
            f"{folder / compressed[0]} is compressed as a whole, so single images cannot be read: unpack the file to "
            "an uncompressed .tar (gunzip, unxz, zstd -d), which is hardly larger, since images are already compressed."
        )
    return bool(tars) and all(
        any(file.lower().endswith(TAR_SUFFIX) for file in parts.get(name, ())) for name in folders
    )


def _list_entries(folder: Path, limit: int | None = None) -> tuple[list[str], list[str]]:
    """Return the sorted names of the folders and of the files in a folder; only the first `limit` entries are read."""
    folders, files = [], []
    with os.scandir(folder) as entries:
        for entry in itertools.islice(entries, limit):
            if not is_ignored(entry.name):
                (folders if entry.is_dir() else files).append(entry.name)
    return sorted(folders), sorted(files)


def is_shard(file: Path) -> bool:
    """Return whether a tar file seems to have WebDataset's layout: one of the first 64 members is a label."""
    try:
        with tarfile.open(file, "r:") as archive:
            names = [member.name for _, member in zip(range(_INSPECTED_ENTRIES), archive, strict=False)]
    except (tarfile.TarError, OSError, EOFError, ValueError):
        return False
    return any(sample_key(name)[1] in LABEL_SUFFIXES for name in names)


def open_shards(folder: ShardFolder, options: SourceOptions, single_shard: str | None = None) -> ImageSet:
    """Open tar shards as one set, or only `single_shard`.

    The split of a shard's images is in the name of the shard (`train-000000.tar`) or of its folder. If
    `options.labelled`, images without a label are left out, with a note; `options.label_column` is the field of JSON
    members that contains the label (None for "label").
    """
    label_field = options.label_column or JSON_FIELD
    index = _read_index_in_folder(folder, single_shard, options.skip_damaged)
    index = index or _load_or_build_index(folder, label_field, single_shard, options)
    images = _image_set(folder, index, options.labelled, single_shard)
    if not options.labelled:
        return images
    labelled_positions = np.flatnonzero(images.labels >= 0)
    if not len(labelled_positions):
        raise (NoLabelsError if options.label_column is None else UserError)(
            f"no image of {folder.location} has a label: expected a member such as 000001.cls for 000001.jpg, or "
            f"the field {label_field!r} in 000001.json (--label-column chooses another field). 'paucal pretrain' uses "
            "images without labels."
        )
    if not (n_unlabelled := len(images) - len(labelled_positions)):
        return images
    example = images.keys[int(np.flatnonzero(images.labels < 0)[0])]
    note = f"{counted(n_unlabelled, 'image')} without a label {was_or_were(n_unlabelled)} left out ({example}, ...)"
    return images.select(labelled_positions, note)


def _read_index_in_folder(folder: ShardFolder, single_shard: str | None, skip_damaged: bool) -> ShardIndex | None:
    """Return the index in the folder of the shards, after a comparison with the shards; None if there is no index."""
    path = None if single_shard is not None else folder.fetch_file(INDEX_NAME, MAX_BYTES)
    if path is None:
        return None
    index = read_index(path, f"{folder.location}/{INDEX_NAME}")
    shard_files = folder.list_files()
    if shard_files is None:  # each shard is then compared with the index when the shard is downloaded
        return index
    shards = {shard.name: shard for shard in shard_files if shard.name.lower().endswith(TAR_SUFFIX)}
    damaged: dict[int, str] = {}
    for number, shard in enumerate(index.files):
        current = shards.pop(shard.name, None)
        if current is None:
            problem = f"is in {INDEX_NAME}, but not in {folder.location}; add the shard, or"
            damaged[number] = f"the shard {shard.name} {problem} {REMAKE_ADVICE}"
        elif current.size != shard.size or (
            current.changed != shard.changed and not _is_unchanged(folder, index, number)
        ):
            sizes = f"{current.size} bytes, but {shard.size} bytes according to {INDEX_NAME}"
            subject = f"the shard {shard.name} of {folder.location}"
            damaged[number] = f"{subject} was changed after it was indexed ({sizes}); {REMAKE_ADVICE}"
    if damaged and not skip_damaged:
        raise UserError(f"{next(iter(damaged.values()))}{_SKIP_ADVICE}.")
    if shards:
        raise UserError(f"{INDEX_NAME} of {folder.location} does not list the shard {min(shards)}; {REMAKE_ADVICE}.")
    return index.without_damaged(damaged, folder.location)


def _is_unchanged(folder: ShardFolder, index: ShardIndex, number: int) -> bool:
    """Return whether the first and the last image of a local shard are where the index says."""
    if not isinstance(folder, LocalShardFolder):
        return True
    rows = index.rows(number)  # the modification time is no evidence of a change, since it is new for a copy
    with folder.fetch_shard(index.files[number]).open("rb") as file:
        for row in (0, -1) if len(rows.offsets) else ():
            file.seek(int(rows.offsets[row]) - HEADER_BYTES)
            if size_in_header(file.read(HEADER_BYTES)) != rows.lengths[row]:
                return False
    return True


def _load_or_build_index(
    folder: ShardFolder, label_field: str, single_shard: str | None, options: SourceOptions
) -> ShardIndex:
    """Return the cached index of shards without an index file, if it matches the shards, else a new index."""
    shard_files = folder.list_files()
    if shard_files is None:
        raise UserError(
            f"the files in {folder.location} cannot be listed: check the address, or add the index {INDEX_NAME}, which "
            "'paucal shard' writes with the shards."
        )
    files = [
        Shard(shard.name, shard.size, split_of_shard(shard.name), shard.changed)
        for shard in shard_files
        if shard.name.lower().endswith(TAR_SUFFIX) and not any(map(is_ignored, shard.name.split("/")))
        if single_shard in (None, shard.name)
    ]
    if not files:
        raise UserError(f"there are no shards (.tar, .parquet) in {folder.location}; check the address.")
    names = _class_names(folder)
    identity = "\n".join([folder.location, label_field, single_shard or "", *names])
    digest = hashlib.blake2b(identity.encode(errors="surrogateescape"), digest_size=16).hexdigest()
    cache = usable_cache_folder()
    cached = None if cache is None else cache / SHARDS / f"{digest}.npz"
    if cached is not None and cached.is_file():
        try:
            index = read_index(cached, str(cached))
        except (UserError, OSError):
            index = None
        if index is not None and index.files == tuple(files):
            return index
    index = _index_shards(folder, files, label_field, names, options)
    if cached is not None and len(index.files) == len(files):
        try:
            cached.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            index.write(cached)
            return read_index(cached, str(cached))  # the stored index takes less memory than the new index
        except OSError:  # the disk may be full; the next run will index the shards again
            cached.unlink(missing_ok=True)
    return index


def _index_shards(
    folder: ShardFolder, files: list[Shard], label_field: str, names: list[str], options: SourceOptions
) -> ShardIndex:
    """Read all shards and return their index; damaged shards are left out with a note, or raise an error."""
    rows: dict[Shard, TarContents] = {}
    damaged: dict[str, str] = {}
    for number, file in enumerate(files):
        try:
            rows[file] = index_tar(folder.fetch_shard(file), f"{folder.location}/{file.name}", label_field)
        except UnreadableImage as problem:  # the shard cannot be downloaded
            raise UserError(str(problem)) from None
        except DamagedShard as problem:
            if not options.skip_damaged:
                raise
            damaged[file.name] = str(problem)
        if options.progress is not None:
            options.progress(number + 1, len(files))
    notes = damage_notes(damaged, len(files), folder.location)
    index = build_index(list(rows), list(rows.values()), names)
    return replace(index, notes=(*index.notes, *notes))


def _class_names(folder: ShardFolder) -> list[str]:
    path = folder.fetch_file(CLASSES_NAME, _MAX_CLASSES_BYTES)
    if path is None:
        return []
    shown_path = f"{folder.location}/{CLASSES_NAME}"
    names = class_names_by_line(
        decode_text(read_bytes(path, _MAX_CLASSES_BYTES), shown_path).text.splitlines(), shown_path
    )
    if len(set(names)) != len(names):
        raise UserError(f"{shown_path} contains a class name twice; give each class one line, in label order.")
    return names


def split_of_shard(name: str) -> str:
    """Return the split in the name of a shard, else in the name of its folder; "" if neither names a split."""
    folder, _, file = name.lower().rpartition("/")
    return only_split(re.split(r"[-_.]", file)) or PART_BY_WORD.get(folder.rpartition("/")[2], "")


def _image_set(folder: ShardFolder, index: ShardIndex, labelled: bool, single_shard: str | None) -> ImageSet:
    keys = GroupedStrings([shard.name for shard in index.files], index.counts, index.names_of)
    parts = ("", "train", "val", "test")
    codes = np.repeat(np.asarray([parts.index(shard.part) for shard in index.files], dtype=np.uint8), index.counts)
    mean_bytes = sum(int(index.lengths[slice(*span)].sum()) for span in index.spans.tolist()) / len(index)
    n_bytes = sum(shard.size for shard in index.files)
    streamed = isinstance(folder, RemoteShardFolder) or is_streamed(len(index), n_bytes)
    return ImageSet(
        name=folder.name if single_shard is None else Path(single_shard).stem,
        location=folder.location if single_shard is None else f"{folder.location}/{single_shard}",
        classes=index.classes if labelled else (),
        keys=keys,
        labels=index.labels if labelled else np.full(len(index), -1, dtype=np.int8),
        declared_splits=RepeatedStrings(parts, codes if single_shard is None else np.zeros_like(codes)),
        store=TarStore(folder, index, keys),
        notes=(*([streaming_note(len(index), len(index.files))] if streamed else []), *index.notes),
        stream=Stream.from_shards(index.counts, window_size(mean_bytes)) if streamed else None,
    )
