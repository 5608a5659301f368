"""Which columns of Parquet and Arrow files hold the images and the labels, and how the classes are called."""

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from paucal.data.sources.options import SourceOptions
from paucal.types import NoLabelsError, UserError

Features = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Columns:
    """Where the images and labels are, and the class names if the schema has them."""

    image: str
    label: str | None
    names: tuple[str, ...]


def find_columns(shown: str, schema: pa.Schema, options: SourceOptions) -> Columns:
    """Return the columns of a file.

    Args:
        shown: the file in messages.
        schema: of the file.
        options: which columns are given, and whether labels are wanted.

    Raises:
        UserError: there is no such column, or none of images.
    """
    features = features_of(schema)
    image = options.image_column or _image_column(schema, features)
    if image is None:
        raise UserError(
            f"{shown} has no image column; expected 'image' with bytes and found {found_in(schema)}; "
            "name the column by --image-column"
        )
    if image not in schema.names or not _holds_bytes(schema.field(image).type):
        raise UserError(
            f"--image-column: {shown} has no column {image!r} with bytes of images, only {found_in(schema)}"
        )
    if not options.labelled:
        return Columns(image, None, ())
    label = options.label_column or label_column_of(schema, features)
    if label is None or label not in schema.names:
        expected = f"'{label}'" if label else "'label' or 'labels'"
        raise (UserError if label or len(schema.names) > 1 else NoLabelsError)(
            f"{shown} has no label column; expected {expected} and found {found_in(schema)}; "
            f"call the column of the classes 'label', or name it by --label-column{_suggested(features)}"
        )
    return Columns(image, label, class_names(features, label))


def features_of(schema: pa.Schema) -> Features:
    """Return the descriptions that Hugging Face keeps in the metadata, of a list that of its members; else none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    if not isinstance(features, dict):
        return {}
    members = {name: _member(value) for name, value in features.items()}
    return {name: value for name, value in members.items() if isinstance(value, dict)}


def _member(value: Any) -> Any:
    """Return what a list is of: `[x]` in older versions, or a `Sequence` or `List` with the field `feature`."""
    if isinstance(value, list) and len(value) == 1:
        return value[0]
    if isinstance(value, dict) and isinstance(value.get("feature"), dict):
        return value["feature"]
    return value


def class_names(features: Features, label: str) -> tuple[str, ...]:
    """Return the names that the metadata gives the classes, as text that can be written; none where it has none."""
    names = features.get(label, {}).get("names", [])
    return tuple(str(name).encode(errors="replace").decode() for name in names) if isinstance(names, list) else ()


def label_column_of(schema: pa.Schema, features: Features) -> str | None:
    """Return the column `label` or `labels`, or the only one of classes; None where there is none."""
    for name in ("label", "labels"):
        if name in schema.names:
            return name
    classes = _of_classes(features)
    return classes[0] if len(classes) == 1 else None


def found_in(schema: pa.Schema) -> str:
    """Return the columns as a list for people."""
    return ", ".join(f"'{field.name}' ({field.type})" for field in schema)


def _suggested(features: Features) -> str:
    classes = _of_classes(features)
    return f", such as {' or '.join(classes[:3])}" if classes else ""


def _of_classes(features: Features) -> list[str]:
    return [name for name, value in features.items() if value.get("_type") == "ClassLabel"]


def _image_column(schema: pa.Schema, features: Features) -> str | None:
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
