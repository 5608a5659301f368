"""Opens Parquet and Arrow files in Hugging Face's layout, with images as bytes and class names in the metadata."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paucal.data.images import ImageSet
from paucal.data.shards.folders import LocalShardFolder, RemoteShardFolder, shard_from_file
from paucal.data.shards.index import DamagedShard, damage_notes
from paucal.data.shards.stream import Stream, is_streamed, streaming_note, window_size
from paucal.data.sources.folder import is_ignored, require_readable
from paucal.data.sources.labels import Labels
from paucal.data.sources.parquet_columns import (
    ParquetColumns,
    StoredLabels,
    class_names,
    csv_cells,
    describe_columns,
    encode_labels,
    find_columns,
    find_label_column,
    is_number_or_text,
    read_features,
    read_label_column,
    unreadable_column_error,
)
from paucal.data.sources.parquet_store import ARROW_SUFFIX, PARQUET_SUFFIX, ArrowStore, ParquetStore, RowFile
from paucal.data.sources.source import SourceOptions
from paucal.data.sources.table_columns import MAX_COLUMNS
from paucal.data.splits.part_names import PART_BY_WORD
from paucal.data.string_arrays import RepeatedStrings, StringArray
from paucal.reading import require_regular
from paucal.types import UserError
from paucal.wording import counted, first_line, was_or_were

_FILE_OF_PART = re.compile(rf"({'|'.join(PART_BY_WORD)})([-_.].*)?\.(parquet|arrow)", re.IGNORECASE)
_FILE_OF_SERIES = re.compile(r"(?P<series>.*)-(?P<number>\d{5})-of-(?P<total>\d{5})(?:-[0-9a-f]+)?\.(?:parquet|arrow)")
HUB_PREFIX = "hf:"  # prefix of the location of a data set on the Hugging Face hub
CONVERTED_REVISION = "refs/convert/parquet"  # branch on which the hub keeps most data sets as Parquet files
PARTIAL_PREFIX = "partial-"  # prefix of folders on this branch that have only the first gigabytes of a split
_SAFE_HUB_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")  # without a slash, which could lead to another folder

PARQUET_SUFFIXES = (".parquet", ".pq", ".arrow")


def find_parquet(folder: Path) -> list[Path]:
    """Return the Parquet files (else Arrow files) in a folder, its `data/`, its split folders or its only subfolder."""
    for suffix in (PARQUET_SUFFIX, ARROW_SUFFIX):
        files_here, files_in_data, files_below = (
            sorted(path for path in folder.glob(pattern) if not _is_in_ignored(path.relative_to(folder)))
            for pattern in (f"*{suffix}", f"data/*{suffix}", f"*/*{suffix}")
        )
        if files_here or files_in_data:
            return files_here or files_in_data
        if files_below and (
            len({path.parent for path in files_below}) == 1
            or all(_part_of_file(path.relative_to(folder).as_posix()) for path in files_below)
        ):
            require_readable(folder)
            return files_below
    return []


def _is_in_ignored(path: Path) -> bool:
    # `Dataset.map` of Hugging Face's `datasets` and others write cache files such as `cache-1a2b.arrow`.
    is_cache = any(name.startswith("cache-") and name.endswith(ARROW_SUFFIX) for name in path.parts)
    return is_cache or any(map(is_ignored, path.parts))


def open_parquet(root: Path, files: Sequence[Path], options: SourceOptions) -> ImageSet:
    """Open Parquet or Arrow files as one set.

    The split of a file's images is in the name of the file (`train-00000-of-00002.parquet`), or else of its folder
    (`train/0000.parquet`). A single file has no split. Rows without a label (null or -1, as in test data whose labels
    are not published) are left out of a labelled set, with a note. If rows have lists of labels, the set is
    multi-label.
    """
    folder = LocalShardFolder(root)
    shards = [shard_from_file(require_regular(file), file.relative_to(root).as_posix()) for file in files]
    location = files[0].resolve() if len(files) == 1 else root.resolve()
    name = files[0].stem if len(files) == 1 else location.name
    return _open_files([RowFile(folder, shard) for shard in shards], name, str(location), options)


def find_remote_parquet(folder: RemoteShardFolder) -> list[RowFile]:
    """Return the Parquet files in a folder on object storage; [] if there are tar files, or nothing can be listed."""
    remote_files = folder.list_files() or []
    if any(shard.name.lower().endswith(".tar") for shard in remote_files):
        return []
    return [
        RowFile(folder, shard)
        for shard in remote_files
        if shard.name.endswith(PARQUET_SUFFIX) and not any(map(is_ignored, shard.name.split("/")))
    ]


def open_remote_parquet(files: Sequence[RowFile], options: SourceOptions) -> ImageSet:
    """Open Parquet files on object storage as one streamed set; labels are read without downloading files."""
    folder, single = files[0].folder, len(files) == 1
    name = Path(files[0].shard.name).stem if single else folder.name
    return _open_files(list(files), name, str(files[0]) if single else folder.location, options)


def _open_files(files: list[RowFile], name: str, location: str, options: SourceOptions) -> ImageSet:
    damaged: dict[str, str] = {}
    for file in files if options.skip_damaged else ():
        try:
            file.schema()
        except DamagedShard as problem:
            damaged[file.shard.name] = str(problem)
    notes_on_damage = damage_notes(damaged, len(files), location)
    files, notes = _select_files_of_parts([file for file in files if file.shard.name not in damaged])
    notes += [*notes_on_damage, *_notes_on_missing_files(files)]
    columns = find_columns(str(files[0]), files[0].schema(), options)
    group_sizes, stored_labels = _read_labels(files, columns)
    counts = [sum(sizes) for sizes in group_sizes]
    file_numbers = np.repeat(np.arange(len(counts)), counts)
    # (N, 2) number of the file of each image, and number of the image's row in this file.
    positions = np.stack([file_numbers, np.concatenate([np.arange(count) for count in counts])], axis=1)
    labels, labelled_rows = Labels.unlabelled(len(positions)), np.arange(len(positions))
    if columns.label is not None:
        shown_path = str(files[0]) if len(files) == 1 else location
        labels = encode_labels(stored_labels, columns, shown_path, options.separator)
        is_labelled = labels.class_numbers >= 0 if labels.multi_hot is None else (labels.multi_hot >= 0).any(1)
        labelled_rows = np.flatnonzero(is_labelled)
    if len(labelled_rows) == 0:
        raise UserError(f"{files[0]} has no rows with an image and a label; choose another file.")
    if n_unlabelled := len(positions) - len(labelled_rows):
        notes.append(f"{counted(n_unlabelled, 'row')} without a label {was_or_were(n_unlabelled)} left out")
    parts, part_notes = _parts_of_files(files, options.labelled)
    positions = positions[labelled_rows]
    keys = StringArray.numbered([file.shard.name for file in files], counts).take(labelled_rows)
    stream = _make_stream(files, group_sizes, positions)
    stream_notes = [streaming_note(len(labelled_rows), len(files))] if stream is not None else []
    declared = RepeatedStrings(parts, positions[:, 0])
    store = ArrowStore if files[0].is_arrow else ParquetStore
    return ImageSet(
        name=name,
        location=location,
        classes=labels.classes,
        keys=list(keys) if stream is None else keys,
        labels=labels.class_numbers[labelled_rows],
        declared_splits=list(declared) if stream is None else declared,
        store=store(files[0].folder, [file.shard for file in files], columns.image, positions, keys),
        notes=(*notes, *part_notes, *stream_notes, *labels.notes),
        multi_hot=None if labels.multi_hot is None else labels.multi_hot[labelled_rows],
        stream=stream,
        columns={} if stream is not None else _extra_columns(files, columns, labelled_rows),
    )


def _extra_columns(files: Sequence[RowFile], columns: ParquetColumns, rows: NDArray[np.int64]) -> dict[str, list[str]]:
    """Return up to 16 undamaged columns of numbers or text, as CSV text; `rows` are row numbers over all files."""
    extra_columns: dict[str, list[str]] = {}
    schemas = [file.schema() for file in files]
    for field in schemas[0]:
        if len(extra_columns) == MAX_COLUMNS:
            break
        are_unique = all(schema.names.count(field.name) == 1 for schema in schemas)
        have_same_types = are_unique and all(schema.field(field.name).type == field.type for schema in schemas)
        if have_same_types and field.name not in (columns.image, columns.label) and is_number_or_text(field.type):
            with suppress(pa.ArrowException, OSError):
                cells = [cell for file in files for cell in csv_cells(file.read_rows(field.name)[1])]
                extra_columns[field.name] = [cells[row] for row in rows.tolist()]
    return extra_columns


def _notes_on_missing_files(files: Sequence[RowFile]) -> list[str]:
    """Return a note on each series of files (`train-00000-of-00004.parquet`) that is incomplete."""
    numbers: dict[tuple[str, int], set[int]] = {}
    for file in files:
        if match := _FILE_OF_SERIES.fullmatch(file.shard.name):
            numbers.setdefault((match["series"], int(match["total"])), set()).add(int(match["number"]))
    return [
        f"only {len(present)} of {counted(total, 'file')} of {series!r} {'is' if len(present) == 1 else 'are'} read, "
        "so images are missing"
        for (series, total), present in numbers.items()
        if len(present) < total
    ]


def _read_labels(files: Sequence[RowFile], columns: ParquetColumns) -> tuple[list[list[int]], list[StoredLabels]]:
    """Return the numbers of rows in the row groups of each file, and the labels of each file ([] if none are read)."""
    group_sizes: list[list[int]] = []
    labels: list[StoredLabels] = []
    for file in files:
        schema = file.schema()
        missing = [name for name in (columns.image, columns.label) if name and name not in schema.names]
        if missing:
            raise UserError(
                f"{file} has no column '{missing[0]}', unlike the other files; its columns are "
                f"{describe_columns(schema)}."
            )
        if columns.label is not None:
            names = class_names(read_features(schema), columns.label)
            if names and columns.classes and names != columns.classes:
                raise UserError(
                    f"{file} numbers its classes differently from the other files; write all files with the same "
                    "class names in the same order."
                )
        try:
            sizes, column = file.read_rows(columns.label)
        except (pa.ArrowException, OSError) as error:
            raise unreadable_column_error(str(columns.label), str(file), error) from None
        group_sizes.append(sizes)
        if column is not None:
            labels.append(read_label_column(column, str(columns.label), str(file)))
    return group_sizes, labels


def _make_stream(
    files: Sequence[RowFile], group_sizes: Sequence[list[int]], positions: NDArray[np.int64]
) -> Stream | None:
    """Return the stream of the images in the order of their row groups; None if the set is decoded before a run."""
    n_bytes = sum(file.shard.size for file in files)
    is_remote = isinstance(files[0].folder, RemoteShardFolder)
    if files[0].is_arrow or not (is_remote or is_streamed(len(positions), n_bytes)):
        return None
    blocks, n_blocks = np.zeros(len(positions), dtype=np.int32), 0
    for file_number, sizes in enumerate(group_sizes):
        is_in_file = positions[:, 0] == file_number
        group_numbers = np.searchsorted(np.cumsum(sizes), positions[is_in_file, 1], side="right")
        blocks[is_in_file] = n_blocks + group_numbers
        n_blocks += len(sizes)
    return Stream.from_blocks(positions[:, 0].astype(np.int32), blocks, window_size(n_bytes / max(1, len(positions))))


def _parts_of_files(files: Sequence[RowFile], labelled: bool) -> tuple[list[str], list[str]]:
    """Return the split of each file, and notes."""
    parts = ["" if len(files) == 1 else _part_of_file(file.shard.name) for file in files]
    if labelled or not {"train", "val", "test"} <= set(parts):
        return parts, []
    schema = files[0].schema()
    label_column = find_label_column(schema, read_features(schema))
    if label_column is None:
        return parts, []
    test_files = [file for file, part in zip(files, parts, strict=True) if part == "test"]
    try:
        _, stored_labels = _read_labels(test_files, ParquetColumns(label_column, label_column, ()))
    except UserError:
        return parts, []
    # Benchmarks that evaluate submissions publish test files without labels.
    if not all(labels.are_missing for labels in stored_labels):
        return parts, []
    # A labelled run leaves out the test files, and tests on the validation files. Pre-training must therefore not use
    # the validation files.
    note = "the labels of the test files are hidden, so the images of the validation files are also test images"
    return [part.replace("val", "test") for part in parts], [note]


def _part_of_file(name: str) -> str:
    folder, _, file = name.rpartition("/")
    match = _FILE_OF_PART.fullmatch(file)
    return PART_BY_WORD[match[1].lower()] if match else _part_of_folder(folder.rpartition("/")[2])


def _part_of_folder(name: str) -> str:
    return PART_BY_WORD.get(name.lower().removeprefix(PARTIAL_PREFIX), "")


def _select_files_of_parts(files: list[RowFile]) -> tuple[list[RowFile], list[str]]:
    """Return only the files of train, val and test, if any, with a note on files such as `unsupervised-...`."""
    files_with_part = [file for file in files if _part_of_file(file.shard.name)]
    if not files_with_part or len(files_with_part) == len(files):
        return files, []
    left_out = [file.shard.name.rpartition("/")[2] for file in files if not _part_of_file(file.shard.name)]
    return files_with_part, [f"files that are neither train, validation nor test were left out ({', '.join(left_out)})"]


def open_hub(location: str, _: Any, options: SourceOptions) -> ImageSet:
    """Open the Parquet files of "hf:OWNER/NAME", or "hf:OWNER/NAME/CONFIGURATION", on the Hugging Face hub."""
    location = str(location)
    owner, name, configuration = [*location.removeprefix(HUB_PREFIX).split("/", 2), "", ""][:3]
    if not all(map(_SAFE_HUB_NAME.fullmatch, (owner, name, configuration or name))):
        raise UserError(
            f"{location!r} is not the name of a data set on the Hugging Face hub; expected hf:OWNER/NAME, such as "
            "hf:uoft-cs/cifar100."
        )
    repository, problem = f"{owner}/{name}", ""
    for revision in (None, CONVERTED_REVISION):
        try:
            from huggingface_hub import snapshot_download  # imported here, since the import takes a second

            choices: dict[str, Any] = {"repo_type": "dataset", "revision": revision, "allow_patterns": ["*.parquet"]}
            folder = Path(snapshot_download(repository, local_files_only=not options.download, **choices))
        except Exception as error:  # the exception depends on whether the network, data set or permission is missing
            problem = first_line(error)
            continue
        if files := sorted(folder.rglob("*.parquet")):
            break
        problem = "there are no Parquet files"
    else:
        advice = "check the name and the network" if options.download else "download the data set with --download"
        raise UserError(f"the data set {repository} is not on this machine, or cannot be opened ({problem}); {advice}.")
    files = _select_configuration(folder, files, configuration, location)
    images = open_parquet(folder, files, options)
    partial = sorted({file.parent.name for file in files if file.parent.name.startswith(PARTIAL_PREFIX)})
    notes = [f"the hub stores only the first images of this set ({', '.join(partial)})"] if partial else []
    return replace(images, name=location.rsplit("/", 1)[-1], location=location, notes=(*images.notes, *notes))


def _select_configuration(root: Path, files: list[Path], configuration: str, location: str) -> list[Path]:
    """Return the files of one configuration, a folder in `root`; only one may exist if `configuration` is ""."""
    folders = sorted({file.relative_to(root).parts[0] for file in files if len(file.relative_to(root).parts) > 1})
    if configuration:
        if matching := [file for file in files if file.relative_to(root).parts[0] == configuration]:
            return matching
        raise UserError(f"{location} has no configuration {configuration!r}; it has {', '.join(folders[:8])}.")
    if len(folders) > 1 and not all(map(_part_of_folder, folders)):
        raise UserError(
            f"{location} has several configurations ({', '.join(folders[:8])}); choose a configuration, such as "
            f"{location}/{folders[0]}."
        )
    return files
