"""Parquet files in the layout of Hugging Face data sets: images as bytes, classes in the metadata."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from paucal.data.images import ImageSet
from paucal.data.shards.stream import Stream, is_streamed, read_as_they_come, window_for
from paucal.data.shards.texts import Repeated, Texts
from paucal.data.sources.arrow_store import ArrowStore, read_arrow
from paucal.data.sources.folder import PARTS
from paucal.data.sources.parquet_store import ParquetStore
from paucal.reading import require_regular
from paucal.types import UserError
from paucal.wording import counted, was

PARQUET_SUFFIX, ARROW_SUFFIX = ".parquet", ".arrow"
_PART_NAME = re.compile(rf"({'|'.join(PARTS)})([-_.].*)?\.(parquet|arrow)", re.IGNORECASE)


@dataclass(frozen=True)
class _Columns:
    """Where the images and labels are, and the class names if the schema has them."""

    image: str
    label: str | None
    names: tuple[str, ...]


def find_parquet(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder, else the Arrow files that Hugging Face's `save_to_disk` has written.

    They lie in the folder itself, in `data/`, in folders of parts, or in its only subfolder that has some.
    """
    for suffix in (PARQUET_SUFFIX, ARROW_SUFFIX):
        here = sorted(folder.glob(f"*{suffix}")) or sorted(folder.glob(f"data/*{suffix}"))
        if here:
            return here
        below = sorted(path for path in folder.glob(f"*/*{suffix}") if not path.parent.name.startswith("."))
        if below and (len({path.parent for path in below}) == 1 or all(_part(path) for path in below)):
            return below
    return []


def open_parquet(
    root: Path,
    files: list[Path],
    labelled: bool = True,
    label_column: str | None = None,
    image_column: str | None = None,
) -> ImageSet:
    """Open Parquet or Arrow files as one set; the parts come from names such as `train-00000-of-00002.parquet`.

    Where the name of a file tells no part, that of its folder may (`train/0000.parquet`).

    One file alone declares no part: whoever names a single file wants all of it. Rows without a label (null
    or -1, as in the hidden test labels of some sets) are left out of a labelled set, with a note.

    Args:
        root: folder that the keys are relative to.
        files: the Parquet files.
        labelled: False leaves the label column unread.
        label_column: name of the label column; None takes `label`, `labels`, or the only class column there
            is.
        image_column: name of the image column; None takes `image`, `img`, or the only image column there is.

    Raises:
        UserError: a file is no Parquet file, lacks the columns or numbers its classes otherwise than the others, or
            labels lie outside of the class names.
    """
    files, notes = _with_parts([require_regular(file) for file in files])
    columns = _columns(files[0], labelled, label_column, image_column)
    rows: list[NDArray[np.int64]] = []
    raw: list[NDArray[Any]] = []
    for number, file in enumerate(files):
        values = _labels(file, columns)
        rows.append(np.stack([np.full(len(values), number), np.arange(len(values))], axis=1))
        raw.append(values)
    if len({values.dtype == object for values in raw}) > 1:
        raise UserError(
            f"column '{columns.label}' holds numbers in some files of {root} and text in others; choose one"
        )
    classes, labels = _encode(np.concatenate(raw), columns, files[0])
    table = np.concatenate(rows).astype(np.int64)
    kept = np.flatnonzero(labels >= 0) if columns.label else np.arange(len(labels))
    if len(kept) == 0:
        raise UserError(f"{files[0]} has no rows with an image and a label; choose another file")
    if len(kept) < len(labels):
        bare = len(labels) - len(kept)
        notes.append(f"{counted(bare, 'row')} without a label {was(bare)} left out")
    names = [file.relative_to(root).as_posix() for file in files]
    parts = ["" if len(files) == 1 else _part(file) for file in files]
    if not labelled and {"train", "val", "test"} <= set(parts) and _hidden(files, parts):
        # With labels these rows are left out, and the validation files are what is tested with.
        parts = [part.replace("val", "test") for part in parts]
        notes.append("the labels of the test files are hidden, so the validation files are test images too")
    table = table[kept]
    keys = Texts.rows(names, [len(values) for values in raw])
    keys = keys if len(kept) == len(labels) else keys.take(kept)
    declared = Repeated(parts, table[:, 0])
    stream = _stream(files, table)
    if stream is not None:
        notes.append(read_as_they_come(len(kept), len(files)))
    store = _store(files)([str(file) for file in files], columns.image, table, keys)
    return ImageSet(
        name=files[0].stem if len(files) == 1 else root.resolve().name,
        location=str((files[0] if len(files) == 1 else root).resolve()),
        classes=classes,
        keys=list(keys) if stream is None else keys,
        labels=labels[kept],
        declared=list(declared) if stream is None else declared,
        store=store,
        notes=tuple(notes),
        stream=stream,
    )


def _stream(files: list[Path], table: NDArray[np.int64]) -> Stream | None:
    """Return where the rows lie, by their row groups, where there are too many to be decoded before a run."""
    n_bytes = sum(file.stat().st_size for file in files)
    if files[0].suffix == ARROW_SUFFIX or not is_streamed(len(table), n_bytes):
        return None
    blocks, first = np.zeros(len(table), dtype=np.int32), 0
    for number, file in enumerate(files):
        about = pq.read_metadata(file, memory_map=True)
        ends = np.cumsum([about.row_group(group).num_rows for group in range(about.num_row_groups)])
        rows = table[:, 0] == number
        blocks[rows] = first + np.searchsorted(ends, table[rows, 1], side="right")
        first += about.num_row_groups
    return Stream(table[:, 0].astype(np.int32), blocks, window_for(n_bytes / max(1, len(table))))


def _hidden(files: list[Path], parts: list[str]) -> bool:
    """Whether no row of the test files has a label, as in sets that are judged by those who made them."""
    schema = _schema(files[0])
    columns = _Columns("", _label_column(schema, _features(schema)), ())
    if columns.label is None:
        return False
    try:
        values = [_labels(file, columns) for file, part in zip(files, parts, strict=True) if part == "test"]
    except UserError:
        return False
    return all(((one == "") if one.dtype == object else (one < 0)).all() for one in values)


def _part(file: Path) -> str:
    match = _PART_NAME.fullmatch(file.name)
    return PARTS[match[1].lower()] if match else PARTS.get(file.parent.name.lower(), "")


def _store(files: list[Path]) -> type[ParquetStore] | type[ArrowStore]:
    return ArrowStore if files[0].suffix == ARROW_SUFFIX else ParquetStore


def _with_parts(files: list[Path]) -> tuple[list[Path], list[str]]:
    """Drop the files that name no part where others do (`unsupervised-...` beside `train-...`)."""
    named = [file for file in files if _part(file)]
    if not named or len(named) == len(files):
        return files, []
    left_out = [file.name for file in files if not _part(file)]
    return named, [f"files that are neither train, validation nor test were left out ({', '.join(left_out)})"]


def _columns(file: Path, labelled: bool, label_column: str | None, image_column: str | None = None) -> _Columns:
    schema = _schema(file)
    features = _features(schema)
    image = image_column or _image_column(schema, features)
    if image is None:
        raise UserError(
            f"{file} has no image column; expected 'image' with bytes and found {_found(schema)}; "
            "name the column by --image-column"
        )
    if image not in schema.names or not _holds_bytes(schema.field(image).type):
        raise UserError(f"--image-column: {file} has no column {image!r} with bytes of images, only {_found(schema)}")
    if not labelled:
        return _Columns(image, None, ())
    label = label_column or _label_column(schema, features)
    if label is None or label not in schema.names:
        expected = f"'{label}'" if label else "'label' or 'labels'"
        raise UserError(
            f"{file} has no label column; expected {expected} and found {_found(schema)}; "
            f"call the column of the classes 'label', or name it by --label-column{_suggested(features)}"
        )
    return _Columns(image, label, _class_names(features, label))


def _suggested(features: dict[str, dict[str, Any]]) -> str:
    classes = [name for name, value in features.items() if value.get("_type") == "ClassLabel"]
    return f", such as {' or '.join(classes[:3])}" if classes else ""


def _class_names(features: dict[str, dict[str, Any]], label: str) -> tuple[str, ...]:
    """Return the names that the metadata gives the classes, as text that can be written; none where it has none."""
    names = features.get(label, {}).get("names", [])
    return tuple(str(name).encode(errors="replace").decode() for name in names) if isinstance(names, list) else ()


def _schema(file: Path) -> pa.Schema:
    if file.suffix == ARROW_SUFFIX:
        return read_arrow(file).schema
    try:
        return pq.read_schema(file, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file} cannot be read as a Parquet file ({error}); give another one") from None


def _features(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Return the feature descriptions that Hugging Face keeps in the metadata; none where there are none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    if not isinstance(features, dict):
        return {}
    return {name: value for name, value in features.items() if isinstance(value, dict)}


def _image_column(schema: pa.Schema, features: dict[str, dict[str, Any]]) -> str | None:
    marked = [name for name, value in features.items() if value.get("_type") == "Image"]
    for name in ["image", "img", *(marked if len(marked) == 1 else [])]:
        if name in schema.names and _holds_bytes(schema.field(name).type):
            return name
    return None


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        position = kind.get_field_index("bytes")
        return position >= 0 and _holds_bytes(kind.field(position).type)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _label_column(schema: pa.Schema, features: dict[str, dict[str, Any]]) -> str | None:
    for name in ("label", "labels"):
        if name in schema.names:
            return name
    classes = [name for name, value in features.items() if value.get("_type") == "ClassLabel"]
    return classes[0] if len(classes) == 1 else None


def _found(schema: pa.Schema) -> str:
    return ", ".join(f"'{field.name}' ({field.type})" for field in schema)


def _labels(file: Path, columns: _Columns) -> NDArray[Any]:
    """Return one value per row: an integer, -1 where the label is null or not asked for, or a class name."""
    schema = _schema(file)
    missing = [name for name in (columns.image, columns.label) if name and name not in schema.names]
    if missing:
        raise UserError(f"{file} has no column '{missing[0]}' as the other files have, only {_found(schema)}")
    if columns.label is None:
        return np.full(_count(file), -1, dtype=np.int64)
    names = _class_names(_features(schema), columns.label)
    if names and columns.names and names != columns.names:
        raise UserError(f"{file} numbers its classes otherwise than the other files; write them alike")
    kind = schema.field(columns.label).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise UserError(f"column '{columns.label}' of {file} holds {kind}; expected one integer or name per row")
    try:
        values = _column(file, columns.label).cast(kind)
        if pa.types.is_integer(kind):  # unsigned numbers know no -1
            return values.cast(pa.int64()).fill_null(-1).to_numpy()
        return np.asarray(values.fill_null("").to_pylist(), dtype=object)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"column '{columns.label}' of {file} cannot be read ({reason}); give another file") from None


def _count(file: Path) -> int:
    if file.suffix == ARROW_SUFFIX:
        return read_arrow(file).num_rows
    return pq.read_metadata(file, memory_map=True).num_rows


def _column(file: Path, name: str) -> pa.ChunkedArray:
    if file.suffix == ARROW_SUFFIX:
        return read_arrow(file)[name]
    return pq.read_table(file, columns=[name], memory_map=True)[name]


def _encode(values: NDArray[Any], columns: _Columns, file: Path) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the class names and the (N,) labels, -1 for rows without one."""
    if columns.label is None:
        return (), values
    if values.dtype == object:
        found = sorted(set(values) - {""})
        position = {name: label for label, name in enumerate(found)}
        return tuple(found), np.asarray([position.get(name, -1) for name in values], dtype=np.int64)
    if not columns.names:
        found, labels = np.unique(values[values >= 0], return_inverse=True)
        encoded = np.full(len(values), -1, dtype=np.int64)
        encoded[values >= 0] = labels
        return tuple(str(value) for value in found), encoded
    if values.max(initial=-1) >= len(columns.names):
        raise UserError(
            f"column '{columns.label}' of {file} has the label {values.max()}, but its metadata names only "
            f"{len(columns.names)} classes; correct one of the two"
        )
    return columns.names, np.maximum(values, -1)
