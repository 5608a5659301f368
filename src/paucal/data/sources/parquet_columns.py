"""Columns of Parquet and Arrow files: those with images and labels, and the encoding of labels."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from paucal.data.images import UNKNOWN
from paucal.data.sources.labels import ONE_LABEL, Labels, from_cells, is_missing, several_notes
from paucal.data.sources.source import SourceOptions
from paucal.types import NoLabelsError, UserError
from paucal.wording import first_line

Features = dict[str, dict[str, Any]]
_NO_LIST = -1  # length given to a row without a list
_LARGEST = 2**53  # floats represent all whole numbers up to here


@dataclass(frozen=True)
class Columns:
    """Names of the image column, the label column and, if the schema has them, the classes."""

    image: str
    label: str | None
    names: tuple[str, ...]


def find_columns(shown: str, schema: pa.Schema, options: SourceOptions) -> Columns:
    """Return the columns of a file."""
    features = features_of(schema)
    image = options.image_column or _image_column(schema, features)
    if image is None:
        raise UserError(
            f"{shown} has no image column; expected 'image' with bytes and found {found_in(schema)}; "
            "name the column by --image-column."
        )
    if image not in schema.names or not _holds_bytes(schema.field(image).type):
        raise UserError(
            f"--image-column: {shown} has no column {image!r} with bytes of images, only {found_in(schema)}."
        )
    if not options.labelled:
        return Columns(image, None, ())
    label = options.label_column or label_column_of(schema, features)
    if label is None or label not in schema.names:
        expected = f"'{label}'" if label else "'label' or 'labels'"
        suggested = f", such as {' or '.join(classes[:3])}" if (classes := _class_features(features)) else ""
        raise (UserError if label or len(schema.names) > 1 else NoLabelsError)(
            f"{shown} has no label column; expected {expected} and found {found_in(schema)}; "
            f"call the column of the classes 'label', or name it by --label-column{suggested}."
        )
    return Columns(image, label, class_names(features, label))


def is_plain(kind: pa.DataType) -> bool:
    """Return whether a column has numbers, texts, or true and false."""
    kinds = pa.types
    if kinds.is_dictionary(kind):
        return is_plain(kind.value_type)
    tests = (kinds.is_integer, kinds.is_floating, kinds.is_decimal, kinds.is_string, kinds.is_large_string)
    return kinds.is_boolean(kind) or any(test(kind) for test in tests)


def cells_of(column: Any) -> list[str]:
    """Return plain values as CSV cells, "" for missing ones.

    Example:
        >>> cells_of(pa.array([1.5, None, 3.0]))
        ['1.5', '', '3']
    """
    values = ["" if value is None or value != value else value for value in column.to_pylist()]
    return [str(int(value) if isinstance(value, float) and value.is_integer() else value) for value in values]


def features_of(schema: pa.Schema) -> Features:
    """Return Hugging Face's column descriptions from the metadata; for a list, the description of its members."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    if not isinstance(features, dict):
        return {}
    for name, value in features.items():
        if isinstance(value, list) and len(value) == 1:  # [x] in older versions
            features[name] = value[0]
        elif isinstance(value, dict) and isinstance(value.get("feature"), dict):  # a Sequence or List
            features[name] = value["feature"]
    return {name: value for name, value in features.items() if isinstance(value, dict)}


def class_names(features: Features, label: str) -> tuple[str, ...]:
    """Return the class names in the metadata as valid Unicode text, or ()."""
    names = features.get(label, {}).get("names", [])
    return tuple(str(name).encode(errors="replace").decode() for name in names) if isinstance(names, list) else ()


def label_column_of(schema: pa.Schema, features: Features) -> str | None:
    """Return the column `label` or `labels`, or else the only column of classes; None if there is none."""
    for name in ("label", "labels"):
        if name in schema.names:
            return name
    classes = _class_features(features)
    return classes[0] if len(classes) == 1 else None


def found_in(schema: pa.Schema) -> str:
    """Return a list of the columns for messages."""
    return ", ".join(f"'{field.name}' ({field.type})" for field in schema)


def _class_features(features: Features) -> list[str]:
    return [name for name, value in features.items() if value.get("_type") == "ClassLabel"]


def _image_column(schema: pa.Schema, features: Features) -> str | None:
    image_features = [name for name, value in features.items() if value.get("_type") == "Image"]
    for name in ["image", "img", *(image_features if len(image_features) == 1 else [])]:
        if name in schema.names and _holds_bytes(schema.field(name).type):
            return name
    return None


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        position = kind.get_field_index("bytes")
        return position >= 0 and _holds_bytes(kind.field(position).type)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


@dataclass(frozen=True)
class Values:
    """Labels of N rows as stored in the file.

    Attributes:
        values: (N,) int64, -1 for no label; (N,) text, "" for no label; or the members of all lists, one after another.
        lengths: (N,) number of members in the list of each row, -1 for a row without a list; None for single labels.
        marks: Whether each list has a 1 or 0 for every class.
    """

    values: NDArray[Any]
    lengths: NDArray[np.int64] | None = None
    marks: bool = False

    def __len__(self) -> int:
        return len(self.values if self.lengths is None else self.lengths)

    @property
    def kind(self) -> str:
        """Type of the labels, for messages."""
        inner = "text" if self.values.dtype == object else "numbers"
        return inner if self.lengths is None else f"lists of {inner}"

    @property
    def hidden(self) -> bool:
        """Whether no row has a label."""
        if self.lengths is not None:
            return bool((self.lengths < 0).all())
        return bool((self.values == "").all() if self.values.dtype == object else (self.values < 0).all())


def read_values(column: pa.ChunkedArray, name: str, shown: str) -> Values:
    """Return the labels of a column."""
    kind = column.type
    try:
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            return _list_values(column, name, shown)
        return Values(_plain_values(column, kind, name, shown))
    except pa.ArrowException as error:
        raise unreadable_column(name, shown, error) from None


def unreadable_column(name: str, shown: str, problem: Exception) -> UserError:
    """Return the error for a damaged column of a file."""
    return UserError(f"column '{name}' of {shown} cannot be read ({first_line(problem)}); give another file.")


def _plain_values(column: pa.ChunkedArray, whole: pa.DataType, name: str, shown: str) -> NDArray[Any]:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_integer(kind):  # unsigned types cannot represent -1
        return column.cast(kind).cast(pa.int64()).fill_null(-1).to_numpy()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = column.cast(kind).fill_null("").to_pylist()
        return np.asarray(["" if is_missing(text.strip()) else text for text in texts], dtype=object)
    if pa.types.is_floating(kind):  # pandas stores integers with missing values as floats
        values = column.cast(kind).cast(pa.float64()).fill_null(np.nan).to_numpy()
        numbers = np.where(np.isnan(values), -1, values)
        if (numbers == np.floor(numbers)).all() and (np.abs(numbers) < _LARGEST).all():
            return numbers.astype(np.int64)
    raise UserError(
        f"column '{name}' of {shown} holds {whole}; expected one integer or name per row, or a list of them."
    )


def _list_values(column: pa.ChunkedArray, name: str, shown: str) -> Values:
    lengths = pc.call_function("list_value_length", [column]).cast(pa.int64()).fill_null(_NO_LIST).to_numpy()
    members = pc.call_function("list_flatten", [column])
    if members.null_count:
        raise UserError(f"column '{name}' of {shown} has a list with an empty member; write a label there, or nothing.")
    if pa.types.is_boolean(members.type) or pa.types.is_floating(members.type):
        marks = members.cast(pa.float64()).to_numpy()
        if not np.isin(marks, (0, 1)).all() or not _are_equally_long(lengths):
            raise UserError(
                f"column '{name}' of {shown} holds {column.type}; expected lists of whole numbers or names, or a 1 or "
                "0 for every class."
            )
        return Values(marks.astype(np.int64), lengths, marks=True)
    values = _plain_values(members, column.type, name, shown)
    if values.dtype != object and len(values) and values.min() < 0:
        raise UserError(f"column '{name}' of {shown} has the label {values.min()} in a list; expected 0 or more.")
    return Values(values, lengths)


def _are_equally_long(lengths: NDArray[np.int64]) -> bool:
    """Return whether all lists have the same length of two or more, as lists with one value per class do."""
    distinct_lengths = np.unique(lengths[lengths >= 0])
    return len(distinct_lengths) == 1 and distinct_lengths[0] > 1


def encode(cells: Sequence[Values], columns: Columns, shown: str, separator: str | None = None) -> Labels:
    """Return the classes and labels of all rows of several files; rows without a label get -1 (in every class).

    Text may have a separator between several labels; None and "none" mean one label. Messages call the files `shown`.
    """
    kinds = sorted({part.kind for part in cells if len(part)})
    if len(kinds) > 1:
        raise UserError(
            f"column '{columns.label}' holds {kinds[0]} in some files of {shown} and {kinds[1]} in others; choose one."
        )
    values = np.concatenate([part.values for part in cells])
    lengths = [part.lengths for part in cells if part.lengths is not None]
    if lengths:
        return _from_lists(Values(values, np.concatenate(lengths), any(part.marks for part in cells)), columns, shown)
    if separator is not None and separator != ONE_LABEL:
        if values.dtype != object:
            raise UserError(f"--label-separator is for text, and column '{columns.label}' of {shown} holds numbers.")
        return from_cells(values.tolist(), separator)
    return Labels(*_number_classes(values, columns, shown))


def _number_classes(values: NDArray[Any], columns: Columns, shown: str) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the class names and the class number of each value, -1 for no label."""
    if values.dtype == object:
        distinct = sorted(set(values) - {""})
        position = {name: label for label, name in enumerate(distinct)}
        return tuple(distinct), np.asarray([position.get(name, -1) for name in values], dtype=np.int64)
    if not columns.names:
        distinct, labels = np.unique(values[values >= 0], return_inverse=True)
        encoded = np.full(len(values), -1, dtype=np.int64)
        encoded[values >= 0] = labels
        return tuple(str(value) for value in distinct), encoded
    if values.max(initial=-1) >= len(columns.names):
        raise UserError(
            f"column '{columns.label}' of {shown} has the label {values.max()}, but its metadata names only "
            f"{len(columns.names)} classes; correct one of the two."
        )
    return columns.names, np.maximum(values, -1)


def _from_lists(cells: Values, columns: Columns, shown: str) -> Labels:
    assert cells.lengths is not None
    values, lengths = cells.values, cells.lengths
    rows = np.repeat(np.arange(len(lengths)), np.maximum(lengths, 0))
    if cells.marks or _are_indicator_lists(values, lengths, rows):
        return _from_marks(values, lengths, columns, shown)
    classes, numbers = _number_classes(values, columns, shown)
    if (lengths == 1).all():  # a list of one label is a label
        return Labels(classes, numbers)
    multi_hot = np.zeros((len(lengths), len(classes)), dtype=np.int8)
    multi_hot[rows[numbers >= 0], numbers[numbers >= 0]] = 1
    return _multi_labels(classes, multi_hot, lengths, f"lists in the column '{columns.label}'")


def _are_indicator_lists(values: NDArray[Any], lengths: NDArray[np.int64], rows: NDArray[np.int64]) -> bool:
    """Return whether lists have a 0 or 1 per class, not class numbers: equally long, with 0 or 1 repeated."""
    if values.dtype == object or not _are_equally_long(lengths) or not np.isin(values, (0, 1)).all():
        return False
    n_ones = np.bincount(rows, weights=values, minlength=len(lengths))[lengths >= 0]
    return bool(((n_ones > 1) | (lengths[lengths >= 0] - n_ones > 1)).any())


def _from_marks(values: NDArray[np.int64], lengths: NDArray[np.int64], columns: Columns, shown: str) -> Labels:
    width = int(lengths.max())
    if columns.names and len(columns.names) != width:
        raise UserError(
            f"column '{columns.label}' of {shown} has lists of {width} marks, but its metadata names "
            f"{len(columns.names)} classes; correct one of the two."
        )
    multi_hot = np.full((len(lengths), width), UNKNOWN, dtype=np.int8)
    multi_hot[lengths >= 0] = values.reshape(-1, width)
    classes = columns.names or tuple(str(index) for index in range(width))
    source = f"lists of a 1 or 0 for every class in the column '{columns.label}'"
    return _multi_labels(classes, multi_hot, lengths, source)


def _multi_labels(
    classes: tuple[str, ...], multi_hot: NDArray[np.int8], lengths: NDArray[np.int64], source: str
) -> Labels:
    multi_hot[lengths < 0] = UNKNOWN  # rows without a list
    notes = several_notes(multi_hot[lengths >= 0], source) if (lengths >= 0).any() else ()
    return Labels(classes, np.full(len(lengths), -1, dtype=np.int64), multi_hot, notes)
