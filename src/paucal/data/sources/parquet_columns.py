"""Finds the columns of images and labels in Parquet and Arrow files, and converts labels to class numbers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from paucal.data.images import UNKNOWN
from paucal.data.sources.labels import ONE_LABEL, Labels, is_missing, labels_from_cells, multi_hot_labels
from paucal.data.sources.source import SourceOptions
from paucal.types import NoLabelsError, UserError
from paucal.wording import first_line

Features = dict[str, dict[str, Any]]  # Hugging Face's description of each column, by the column's name
_NO_LIST = -1  # value in `StoredLabels.lengths` of a row without a list
_MAX_EXACT_INTEGER = 2**53  # float64 represents all smaller integers exactly


@dataclass(frozen=True)
class ParquetColumns:
    """Names of the columns that are read from a file, and of the classes."""

    image: str
    label: str | None  # None if labels are not read
    classes: tuple[str, ...]  # class names in the metadata, in label order; empty if the metadata has none


def find_columns(shown_path: str, schema: pa.Schema, options: SourceOptions) -> ParquetColumns:
    """Return the columns of images and labels in a schema; `shown_path` is the path of the file for messages."""
    features = read_features(schema)
    image_features = [name for name, value in features.items() if value.get("_type") == "Image"]
    usual_names = ["image", "img", *(image_features if len(image_features) == 1 else [])]
    candidates = (name for name in usual_names if name in schema.names and _holds_bytes(schema.field(name).type))
    image = options.image_column or next(candidates, None)
    if image is None:
        raise UserError(
            f"{shown_path} has no image column; expected a column 'image' with bytes, but found "
            f"{describe_columns(schema)}. Choose the column with --image-column."
        )
    if image not in schema.names or not _holds_bytes(schema.field(image).type):
        raise UserError(
            f"--image-column: {shown_path} has no column {image!r} with bytes of images; its columns are "
            f"{describe_columns(schema)}."
        )
    if not options.labelled:
        return ParquetColumns(image, None, ())
    label = options.label_column or find_label_column(schema, features)
    if label is None or label not in schema.names:
        expected = f"'{label}'" if label else "'label' or 'labels'"
        suggested = f", such as {' or '.join(classes[:3])}" if (classes := _class_features(features)) else ""
        raise (UserError if label or len(schema.names) > 1 else NoLabelsError)(
            f"{shown_path} has no label column; expected {expected}, but found {describe_columns(schema)}. "
            f"Rename the column of the classes to 'label', or choose a column with --label-column{suggested}."
        )
    return ParquetColumns(image, label, class_names(features, label))


def is_number_or_text(column_type: pa.DataType) -> bool:
    """Return whether the values of a column type are numbers, text or booleans."""
    types = pa.types
    if types.is_dictionary(column_type):
        return is_number_or_text(column_type.value_type)
    tests = (types.is_integer, types.is_floating, types.is_decimal, types.is_string, types.is_large_string)
    return types.is_boolean(column_type) or any(test(column_type) for test in tests)


def csv_cells(column: Any) -> list[str]:
    """Return the numbers, texts or booleans in a column as text for the cells of a CSV file; "" for missing values."""
    values = ["" if value is None or value != value else value for value in column.to_pylist()]
    return [str(int(value) if isinstance(value, float) and value.is_integer() else value) for value in values]


def read_features(schema: pa.Schema) -> Features:
    """Return Hugging Face's description of each column, from the metadata; for lists, the description of the items."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    if not isinstance(features, dict):
        return {}
    for name, value in features.items():
        if isinstance(value, list) and len(value) == 1:  # a list column in the format of older versions of `datasets`
            features[name] = value[0]
        elif isinstance(value, dict) and isinstance(value.get("feature"), dict):  # `Sequence` or `List`
            features[name] = value["feature"]
    return {name: value for name, value in features.items() if isinstance(value, dict)}


def class_names(features: Features, label: str) -> tuple[str, ...]:
    """Return the class names in the description of a label column, with invalid Unicode replaced; () without names."""
    names = features.get(label, {}).get("names", [])
    return tuple(str(name).encode(errors="replace").decode() for name in names) if isinstance(names, list) else ()


def find_label_column(schema: pa.Schema, features: Features) -> str | None:
    """Return the label column: "label", or else "labels", or else the only column of the type `ClassLabel`, or None."""
    for name in ("label", "labels"):
        if name in schema.names:
            return name
    classes = _class_features(features)
    return classes[0] if len(classes) == 1 else None


def describe_columns(schema: pa.Schema) -> str:
    """Return the names and types of all columns as text for messages."""
    return ", ".join(f"'{field.name}' ({field.type})" for field in schema)


def _class_features(features: Features) -> list[str]:
    return [name for name, value in features.items() if value.get("_type") == "ClassLabel"]


def _holds_bytes(column_type: pa.DataType) -> bool:
    if pa.types.is_struct(column_type):
        position = column_type.get_field_index("bytes")
        return position >= 0 and _holds_bytes(column_type.field(position).type)
    return pa.types.is_binary(column_type) or pa.types.is_large_binary(column_type)


@dataclass(frozen=True)
class StoredLabels:
    """Labels of N rows, as stored in a file."""

    # (N,) int64 or texts, with -1 or "" for no label; or the items of all lists of labels, as one array.
    values: NDArray[Any]
    lengths: NDArray[np.int64] | None = None  # (N,) number of items per list, -1 for no list; None for single labels
    are_indicators: bool = False  # whether each list has a 1 or 0 for every class

    def __len__(self) -> int:
        return len(self.values if self.lengths is None else self.lengths)

    @property
    def kind(self) -> str:
        """Type of the labels, for messages."""
        type_of_values = "text" if self.values.dtype == object else "numbers"
        return type_of_values if self.lengths is None else f"lists of {type_of_values}"

    @property
    def are_missing(self) -> bool:
        """Whether no row has a label."""
        if self.lengths is not None:
            return bool((self.lengths < 0).all())
        return bool((self.values == "").all() if self.values.dtype == object else (self.values < 0).all())


def read_label_column(column: pa.ChunkedArray, name: str, shown_path: str) -> StoredLabels:
    """Return the labels in a column; `name` and `shown_path` are the names of the column and the file for messages."""
    kind = column.type
    try:
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            return _list_values(column, name, shown_path)
        return StoredLabels(_plain_values(column, kind, name, shown_path))
    except pa.ArrowException as error:
        raise unreadable_column_error(name, shown_path, error) from None


def unreadable_column_error(name: str, shown_path: str, problem: Exception) -> UserError:
    """Return the error for a column that cannot be read."""
    return UserError(f"column '{name}' of {shown_path} cannot be read ({first_line(problem)}); give another file.")


def _plain_values(column: pa.ChunkedArray, shown_type: pa.DataType, name: str, shown_path: str) -> NDArray[Any]:
    """Return a column of integers or names as an array; `shown_type` is the type of the column for messages."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_integer(kind):  # cast to int64 first, since unsigned types cannot represent -1
        return column.cast(kind).cast(pa.int64()).fill_null(-1).to_numpy()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = column.cast(kind).fill_null("").to_pylist()
        return np.asarray(["" if is_missing(text.strip()) else text for text in texts], dtype=object)
    if pa.types.is_floating(kind):  # pandas stores integers with missing values as floats
        values = column.cast(kind).cast(pa.float64()).fill_null(np.nan).to_numpy()
        numbers = np.where(np.isnan(values), -1, values)
        if (numbers == np.floor(numbers)).all() and (np.abs(numbers) < _MAX_EXACT_INTEGER).all():
            return numbers.astype(np.int64)
    raise UserError(
        f"column '{name}' of {shown_path} has the type {shown_type}; expected one integer or name per row, or a "
        "list of integers or names per row."
    )


def _list_values(column: pa.ChunkedArray, name: str, shown_path: str) -> StoredLabels:
    lengths = pc.call_function("list_value_length", [column]).cast(pa.int64()).fill_null(_NO_LIST).to_numpy()
    items = pc.call_function("list_flatten", [column])
    if items.null_count:
        raise UserError(
            f"column '{name}' of {shown_path} has a list with a null item; replace this item by a label, or remove it."
        )
    if pa.types.is_boolean(items.type) or pa.types.is_floating(items.type):
        indicators = items.cast(pa.float64()).to_numpy()
        if not np.isin(indicators, (0, 1)).all() or not _are_equally_long(lengths):
            raise UserError(
                f"column '{name}' of {shown_path} has the type {column.type}; expected lists of integers or names, "
                "or lists with a 1 or 0 for every class."
            )
        return StoredLabels(indicators.astype(np.int64), lengths, are_indicators=True)
    values = _plain_values(items, column.type, name, shown_path)
    if values.dtype != object and len(values) and values.min() < 0:
        raise UserError(f"column '{name}' of {shown_path} has the label {values.min()} in a list; expected 0 or more.")
    return StoredLabels(values, lengths)


def _are_equally_long(lengths: NDArray[np.int64]) -> bool:
    """Return whether all lists have the same length of at least two, like lists with one value per class."""
    distinct_lengths = np.unique(lengths[lengths >= 0])
    return len(distinct_lengths) == 1 and distinct_lengths[0] > 1


def encode_labels(
    stored: Sequence[StoredLabels], columns: ParquetColumns, shown_path: str, separator: str | None = None
) -> Labels:
    """Return the labels of all rows of several files; -1 without a label.

    `separator` separates several labels in one text; None or "none" if each text is one label.
    """
    kinds = sorted({values.kind for values in stored if len(values)})
    if len(kinds) > 1:
        raise UserError(
            f"column '{columns.label}' has {kinds[0]} in some files of {shown_path} and {kinds[1]} in other files; "
            "use one type in all files."
        )
    values = np.concatenate([labels.values for labels in stored])
    lengths = [labels.lengths for labels in stored if labels.lengths is not None]
    if lengths:
        are_indicators = any(labels.are_indicators for labels in stored)
        return _labels_from_lists(values, np.concatenate(lengths), are_indicators, columns, shown_path)
    if separator is not None and separator != ONE_LABEL:
        if values.dtype != object:
            raise UserError(
                f"--label-separator is for text, but column '{columns.label}' of {shown_path} has numbers; remove "
                "--label-separator."
            )
        return labels_from_cells(values.tolist(), separator)
    return Labels(*_number_classes(values, columns, shown_path))


def _number_classes(
    values: NDArray[Any], columns: ParquetColumns, shown_path: str
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the class names, and the class number of each value (-1 for no label)."""
    if values.dtype == object:
        distinct = sorted(set(values) - {""})
        label_by_name = {name: label for label, name in enumerate(distinct)}
        return tuple(distinct), np.asarray([label_by_name.get(name, -1) for name in values], dtype=np.int64)
    if not columns.classes:
        distinct, labels = np.unique(values[values >= 0], return_inverse=True)
        encoded = np.full(len(values), -1, dtype=np.int64)
        encoded[values >= 0] = labels
        return tuple(str(value) for value in distinct), encoded
    if values.max(initial=-1) >= len(columns.classes):
        raise UserError(
            f"column '{columns.label}' of {shown_path} has the label {values.max()}, but the metadata has only "
            f"{len(columns.classes)} class names; correct the labels or the metadata."
        )
    return columns.classes, np.maximum(values, -1)


def _labels_from_lists(
    values: NDArray[Any], lengths: NDArray[np.int64], are_indicators: bool, columns: ParquetColumns, shown_path: str
) -> Labels:
    rows = np.repeat(np.arange(len(lengths)), np.maximum(lengths, 0))  # row of each value
    if not are_indicators and values.dtype != object and _are_equally_long(lengths) and np.isin(values, (0, 1)).all():
        # The lists have a 0 or 1 per class, and are not class numbers, if some list has the same value twice.
        n_ones = np.bincount(rows, weights=values, minlength=len(lengths))[lengths >= 0]
        are_indicators = bool(((n_ones > 1) | (lengths[lengths >= 0] - n_ones > 1)).any())
    if are_indicators:
        n_classes = int(lengths.max())
        if columns.classes and len(columns.classes) != n_classes:
            raise UserError(
                f"column '{columns.label}' of {shown_path} has lists of {n_classes} values of 1 or 0, but the metadata "
                f"has {len(columns.classes)} class names; correct the lists or the metadata."
            )
        multi_hot = np.full((len(lengths), n_classes), UNKNOWN, dtype=np.int8)
        multi_hot[lengths >= 0] = values.reshape(-1, n_classes)
        classes = columns.classes or tuple(str(index) for index in range(n_classes))
        source = f"lists of a 1 or 0 for every class in the column '{columns.label}'"
        return multi_hot_labels(classes, multi_hot, source, lengths >= 0)
    classes, numbers = _number_classes(values, columns, shown_path)
    if (lengths == 1).all():  # one label per image: not a multi-label set
        return Labels(classes, numbers)
    multi_hot = np.zeros((len(lengths), len(classes)), dtype=np.int8)
    multi_hot[rows[numbers >= 0], numbers[numbers >= 0]] = 1
    multi_hot[lengths < 0] = UNKNOWN  # rows without a list
    return multi_hot_labels(classes, multi_hot, f"lists in the column '{columns.label}'", lengths >= 0)
