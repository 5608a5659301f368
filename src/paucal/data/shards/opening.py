"""Opens tar shards as a set of images, with the index beside them or one that is built once and cached."""

import hashlib
import itertools
import os
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from paucal.data.classes import numbered_names
from paucal.data.decode import UnreadableImage
from paucal.data.decoded.cache_folder import SHARDS, usable_folder
from paucal.data.images import ImageSet
from paucal.data.shards.folders import LocalShardFolder, RemoteShardFolder, ShardFolder
from paucal.data.shards.index import (
    HEADER,
    MAX_BYTES,
    NAME,
    REMAKE,
    DamagedShard,
    Shard,
    ShardIndex,
    damage_notes,
    read_index,
)
from paucal.data.shards.stream import Stream, is_streamed, streaming_note, window_for
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
from paucal.data.sources.archive import COMPRESSED
from paucal.data.sources.folder import is_ignored
from paucal.data.sources.source import SourceOptions
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.splits.part_names import PARTS
from paucal.data.string_arrays import GroupedStrings, RepeatedStrings
from paucal.reading import decode_text
from paucal.types import NoLabelsError, UserError
from paucal.wording import counted, was

SUFFIX = ".tar"
CLASSES = "classes.txt"
_MAX_LIST_BYTES = 64 << 20  # largest list of classes
_SKIP = ", or leave it out with --on-bad-image skip"
_INSPECTED = 64  # first members of a tar file, which show whether it is a shard


def find_shards(folder: Path) -> bool:
    """Return whether a folder holds tar shards: an index, or tar files in it or in its split folders, but no images."""
    if (folder / NAME).is_file():
        return True
    folders, files = _list_entries(folder)
    if any(file.lower().endswith(IMAGE_SUFFIXES) for file in files):
        return False
    parts = {name: _list_entries(folder / name, _INSPECTED)[1] for name in folders if name.lower() in PARTS}
    files += [f"{name}/{file}" for name, part_files in parts.items() for file in part_files]
    packed = [file for file in files if file.lower().endswith(COMPRESSED)]
    tars = [file for file in files if file.lower().endswith(SUFFIX)]
    if packed and len(packed) == len(files) and set(folders) == set(parts):
        raise UserError(
            f"{folder / packed[0]} is compressed as a whole, so that single images cannot be read from it: unpack it "
            "to a plain .tar (gunzip, unxz, zstd -d), which is hardly larger, since images are compressed already."
        )
    return bool(tars) and all(any(file.lower().endswith(SUFFIX) for file in parts.get(name, ())) for name in folders)


def _list_entries(folder: Path, limit: int | None = None) -> tuple[list[str], list[str]]:
    """Return the sorted names of the folders and of the files in a folder; at most `limit` entries are listed."""
    folders, files = [], []
    with os.scandir(folder) as entries:
        for entry in itertools.islice(entries, limit):
            if not is_ignored(entry.name):
                (folders if entry.is_dir() else files).append(entry.name)
    return sorted(folders), sorted(files)


def is_shard(file: Path) -> bool:
    """Return whether a tar file has WebDataset's layout: one of its first members is a label."""
    try:
        with tarfile.open(file, "r:") as archive:
            names = [member.name for _, member in zip(range(_INSPECTED), archive, strict=False)]
    except (tarfile.TarError, OSError, EOFError, ValueError):
        return False
    return any(sample_key(name)[1] in LABEL_SUFFIXES for name in names)


def open_shards(folder: ShardFolder, options: SourceOptions, only: str | None = None) -> ImageSet:
    """Open tar shards as one set; names of shards, such as `train-000000.tar`, or of folders give the split.

    Args:
        folder: Folder of the shards.
        options: `labelled` leaves out images without a label, with a note; `label_column` is the field of JSON files
            that holds the label (None for "label").
        only: Name of the one shard to open; None for all.

    Raises:
        UserError: There are no shards, one is missing, damaged or compressed (unless `skip_damaged`), the index does
            not match them, or no image has a label.
    """
    label_field = options.label_column or JSON_FIELD
    index = _read_shipped_index(folder, only, options.skip_damaged)
    index = index or _load_or_build_index(folder, label_field, only, options)
    images = _image_set(folder, index, options.labelled, only)
    if not options.labelled:
        return images
    labelled = np.flatnonzero(images.labels >= 0)
    if not len(labelled):
        raise (NoLabelsError if options.label_column is None else UserError)(
            f"no image of {folder.location} has a label: expected a member such as 000001.cls beside 000001.jpg, or a "
            f"field {label_field!r} in 000001.json (--label-column names another); 'paucal pretrain' takes images "
            "without labels."
        )
    if not (n_bare := len(images) - len(labelled)):
        return images
    first = images.keys[int(np.flatnonzero(images.labels < 0)[0])]
    return images.select(labelled, f"{counted(n_bare, 'image')} without a label {was(n_bare)} left out ({first}, ...)")


def _read_shipped_index(folder: ShardFolder, single_shard: str | None, skip_damaged: bool) -> ShardIndex | None:
    """Return the index beside the shards after comparing it with them; None if there is none."""
    path = None if single_shard is not None else folder.local_copy(NAME, MAX_BYTES)
    if path is None:
        return None
    shown = f"{folder.location}/{NAME}"
    index = read_index(path, shown)
    shard_files = folder.list_files()
    if shard_files is None:  # then each shard is compared when it is downloaded
        return index
    shards = {shard.name: shard for shard in shard_files if shard.name.lower().endswith(SUFFIX)}
    damaged: dict[int, str] = {}
    for number, shard in enumerate(index.files):
        current = shards.pop(shard.name, None)
        if current is None:
            problem = f"is missing in {folder.location}, although {NAME} names it; put it there, or"
            damaged[number] = f"the shard {shard.name} {problem} {REMAKE}"
        elif current.size != shard.size or (current.changed != shard.changed and not _is_same(folder, index, number)):
            sizes = f"{current.size} bytes, {shard.size} in {NAME}"
            place = f"the shard {shard.name} of {folder.location}"
            damaged[number] = f"{place} was changed after it was indexed ({sizes}); {REMAKE}"
    if damaged and not skip_damaged:
        raise UserError(f"{next(iter(damaged.values()))}{_SKIP}.")
    if shards:
        raise UserError(f"{NAME} of {folder.location} does not name the shard {min(shards)}; {REMAKE}.")
    return index.without(damaged, folder.location)


def _is_same(folder: ShardFolder, index: ShardIndex, number: int) -> bool:
    """Return whether the first and the last image of a local shard are at their positions in the index.

    The time of change is not enough, since that of a copy may differ from that of its original.
    """
    if not isinstance(folder, LocalShardFolder):
        return True
    rows = index.rows(number)
    with folder.local_path(index.files[number]).open("rb") as file:
        for row in (0, -1) if len(rows.offsets) else ():
            file.seek(int(rows.offsets[row]) - HEADER)
            if size_in_header(file.read(HEADER)) != rows.lengths[row]:
                return False
    return True


def _load_or_build_index(
    folder: ShardFolder, label_field: str, single_shard: str | None, options: SourceOptions
) -> ShardIndex:
    """Return an index for shards without one: the cached index if the shards are unchanged, else a new index."""
    shard_files = folder.list_files()
    if shard_files is None:
        raise UserError(
            f"{folder.location} lists no files: check the address, or put the index {NAME} there, which 'paucal shard' "
            "writes with the shards."
        )
    files = [
        Shard(shard.name, shard.size, part_of(shard.name), shard.changed)
        for shard in shard_files
        if shard.name.lower().endswith(SUFFIX) and not any(map(is_ignored, shard.name.split("/")))
        if single_shard in (None, shard.name)
    ]
    if not files:
        raise UserError(f"there are no shards (.tar, .parquet) in {folder.location}; check the address.")
    names = _class_names(folder)
    cached = _cache_path(folder, label_field, names, single_shard)
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
            return read_index(cached, str(cached))  # the stored index takes less memory
        except OSError:  # if the disk is full, the next run indexes the shards again
            cached.unlink(missing_ok=True)
    return index


def _index_shards(
    folder: ShardFolder, files: list[Shard], label_field: str, names: list[str], options: SourceOptions
) -> ShardIndex:
    """Return a new index; damaged shards are left out of it with a note, or refused."""
    rows: dict[Shard, TarContents] = {}
    damaged: dict[str, str] = {}
    for number, file in enumerate(files):
        try:
            rows[file] = index_tar(_local_path(folder, file), f"{folder.location}/{file.name}", label_field)
        except DamagedShard as problem:
            if not options.skip_damaged:
                raise
            damaged[file.name] = str(problem)
        if options.progress is not None:
            options.progress(number + 1, len(files))
    notes = damage_notes(damaged, len(files), folder.location)
    index = build_index(list(rows), list(rows.values()), names)
    return replace(index, notes=(*index.notes, *notes))


def _local_path(folder: ShardFolder, shard: Shard) -> Path:
    try:
        return folder.local_path(shard)
    except UnreadableImage as problem:
        raise UserError(str(problem)) from None


def _cache_path(shard_folder: ShardFolder, label_field: str, names: list[str], single_shard: str | None) -> Path | None:
    folder = usable_folder()
    identity = "\n".join([shard_folder.location, label_field, single_shard or "", *names])
    digest = hashlib.blake2b(identity.encode(errors="surrogateescape"), digest_size=16).hexdigest()
    return None if folder is None else folder / SHARDS / f"{digest}.npz"


def _class_names(folder: ShardFolder) -> list[str]:
    content = folder.read_small_file(CLASSES, _MAX_LIST_BYTES)
    if content is None:
        return []
    place = f"{folder.location}/{CLASSES}"
    names = numbered_names(decode_text(content, place).text.splitlines(), place)
    if len(set(names)) != len(names):
        raise UserError(f"{place} names a class twice; give each class one line, in label order.")
    return names


def part_of(name: str) -> str:
    """Return the split named in a shard's name, else in the name of its folder; "" if neither names one.

    Example:
        >>> part_of("imagenet1k-train-0000.tar"), part_of("validation/0000.tar"), part_of("0000.tar")
        ('train', 'val', '')
    """
    folder, _, file = name.lower().rpartition("/")
    named_parts = {PARTS[word] for word in re.split(r"[-_.]", file) if word in PARTS}
    if len(named_parts) == 1:
        return named_parts.pop()
    return PARTS.get(folder.rpartition("/")[2], "")


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
        declared=RepeatedStrings(parts, codes if single_shard is None else np.zeros_like(codes)),
        store=TarStore(folder, index, keys),
        notes=(*([streaming_note(len(index), len(index.files))] if streamed else []), *index.notes),
        stream=Stream.in_shards(index.counts, window_for(mean_bytes)) if streamed else None,
    )
