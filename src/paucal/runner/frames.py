"""Let functions take a DataFrame (of pandas, Polars, Arrow and others) as DATA, by storing the DataFrame as a file.

A table of paths is stored as CSV and a table of images as Parquet. The file is then opened like a file of the user.
The file name contains a digest of the content, so that all processes find the same file.
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from pyarrow import csv
from pyarrow.interchange import from_dataframe

from paucal.data.arguments import ImageInMemory
from paucal.data.boxes.table import find_columns as find_box_columns
from paucal.data.decoded.cache_folder import dataframes_folder
from paucal.data.masks.pairs import MASK_COLUMNS
from paucal.data.sources.table_columns import IMAGE_COLUMNS, normalise_column_name
from paucal.types import UserError
from paucal.wording import first_line
from paucal.writing import csv_text, write_atomically

if TYPE_CHECKING:
    from pandas import DataFrame

F = TypeVar("F", bound=Callable[..., Any])
IMAGE_COLUMN, CLASS_COLUMN, MASK_COLUMN = "filename", "class", "mask"


class ArrowFrame(Protocol):
    """A table with the Arrow PyCapsule protocol, such as a pandas, Polars or Arrow table."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> object: ...


class InterchangeFrame(Protocol):
    """A table with the dataframe interchange protocol."""

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> Any: ...


Frame = ArrowFrame | InterchangeFrame
Data = str | os.PathLike[str] | Frame


def is_frame(value: object) -> TypeGuard[Frame]:
    """Return whether a value is a DataFrame of any supported library."""
    return hasattr(value, "__arrow_c_stream__") or hasattr(value, "__dataframe__")


def takes_frames(function: F) -> F:
    """Decorate a function so that DATA (the first argument, or the keyword argument `data`) may be a DataFrame.

    The settings `image` and `label` name columns. The function receives the path of the stored table, and the two
    settings as `image_column` and `label_column`.
    """
    return with_stored_data(function, replace_frame_by_path)


def with_stored_data(function: F, store: Callable[[Any, Mapping[str, Any]], tuple[Any, dict[str, Any]]]) -> F:
    """Return a function that passes DATA and its settings through `store` before it calls `function`."""

    @wraps(function)
    def call(*args: Any, **settings: Any) -> Any:
        data, settings = store(args[0] if args else settings.pop("data", None), settings)
        return function(data, *args[1:], **settings) if args or data is not None else function(**settings)

    return call  # type: ignore[return-value]


def replace_frame_by_path(data: Any, settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Store a DataFrame; return its path (or other DATA unchanged), and settings that name the columns."""
    if not is_frame(data):
        return data, dict(settings)
    columns = {"image_column": settings.get("image"), "label_column": settings.get("label")}
    other_settings = {name: value for name, value in settings.items() if name not in ("image", "label")}
    with_columns = {**other_settings, **{name: column for name, column in columns.items() if column is not None}}
    table_settings = store_frame(data, with_columns.get("image_column"), with_columns.get("data_root"))
    return table_settings.pop("data"), {**with_columns, **table_settings}


def store_frame(frame: Any, image: str | None = None, root: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """Store a table in the cache; return the settings `data`, `image_column` and, for paths, `data_root`.

    `image` names the column of paths, images or encoded bytes; None means the first column with a usual name. Paths are
    relative to `root`, or to the working directory if `root` is None.
    """
    return store_columns(columns_of(frame), image, root)


def store_columns(
    columns: Mapping[str, Sequence[Any]], image: str | None = None, root: str | os.PathLike[str] | None = None
) -> dict[str, str]:
    """Store a table, given as a mapping from column names to values, as `store_frame` does."""
    image = find_image_column(columns, image)
    values, other_columns = columns[image], {name: cells for name, cells in columns.items() if name != image}
    if all(isinstance(value, str | os.PathLike) for value in values):
        paths, folder = _relative_to_common_folder([os.fspath(value) for value in values], root)
        return {"data": str(store_table({image: paths, **other_columns})), "image_column": image, "data_root": folder}
    images = pa.array([{"bytes": encode_image(value, row)} for row, value in enumerate(values, start=1)])
    # Numbers become text, since negative numbers would count as missing labels.
    texts = {
        name: pa.array([list(map(_csv_cell, cell)) if _is_list(cell) else _csv_cell(cell) for cell in cells])
        for name, cells in other_columns.items()
    }
    buffer = io.BytesIO()
    pq.write_table(pa.table({image: images, **texts}), buffer, compression="none")  # images are already compressed
    return {"data": str(_store_file(buffer.getvalue(), "parquet")), "image_column": image}


def store_table(columns: Mapping[str, Sequence[Any]]) -> Path:
    """Store columns of text, numbers or lists as a CSV file in the cache, and return its path."""
    rows = zip(*([_csv_cell(cell) for cell in cells] for cells in columns.values()), strict=True)
    return _store_file(csv_text(columns, *rows).encode(errors="surrogateescape"), "csv")


def images_of_frame(
    frame: Any, image: str | None = None, root: str | os.PathLike[str] | None = None
) -> list[str | ImageInMemory]:
    """Return the path or image in each row of a table; the arguments are those of `store_frame`."""
    columns, images = columns_of(frame), []
    for row, value in enumerate(columns[find_image_column(columns, image)], start=1):
        if isinstance(value, str | os.PathLike):
            images.append(os.path.join(root or "", os.fspath(value)))
        elif isinstance(value, Image.Image | np.ndarray):
            images.append(value)
        else:
            images.append(Image.open(io.BytesIO(encode_image(value, row))))
    return images


def columns_of(frame: Any) -> dict[str, list[Any]]:
    """Return the values of each column of a table as Python values."""
    names = [str(name) for name in getattr(frame, "columns", ())]
    try:
        table = pa.table(frame) if hasattr(frame, "__arrow_c_stream__") else from_dataframe(frame)
        columns = {
            str(name): column.to_pylist() for name, column in zip(table.column_names, table.columns, strict=True)
        }
        names = table.column_names
    except (pa.ArrowException, TypeError, AttributeError, ValueError):  # a pandas table of objects such as images
        columns = {str(name): list(frame[name]) for name in getattr(frame, "columns", ())}
    if len(columns) < len(names):
        raise UserError(
            f"the table has several columns with the same name ({', '.join(map(repr, names))}): give each column "
            "a different name."
        )
    if not columns or not next(iter(columns.values())):
        raise UserError("the table has no rows: give a table with a row for each image.")
    return columns


def encode_image(value: Any, row: int) -> bytes:
    """Return the bytes of an image file; encoded bytes are returned unchanged, other images as lossless PNG or TIFF.

    `value` is a PIL image, an array of uint8, encoded bytes, or a mapping with "bytes" as in Hugging Face datasets.
    """
    if isinstance(value, dict):
        value = value.get("bytes")
    if isinstance(value, bytes):
        return value
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim in (2, 3):
        value = Image.fromarray(value[..., 0] if value.shape[2:] == (1,) else value)
    if not isinstance(value, Image.Image):
        is_array = isinstance(value, np.ndarray)
        description = f"{value.dtype} array with {value.ndim} axes" if is_array else type(value).__name__
        raise UserError(
            f"image {row} is of type {description}, expected paths, PIL images, encoded bytes, or uint8 arrays of "
            "shape (height, width) or (height, width, channels)."
        )
    buffer = io.BytesIO()
    if value.mode in ("I", "F"):  # PNG cannot store these values, and a conversion would clip them to 255
        value.save(buffer, "TIFF")
        return buffer.getvalue()
    storable = value if value.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16") else value.convert("RGB")
    storable.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def read_table(file: Path) -> pa.Table:
    """Read a CSV file of predictions; keys and class names remain text even if they look like numbers."""
    text_columns = dict.fromkeys(("key", "label", "labels", "predicted"), pa.string())
    try:
        return csv.read_csv(file, convert_options=csv.ConvertOptions(column_types=text_columns))
    except (OSError, pa.ArrowException) as problem:
        raise UserError(f"{str(file)!r} cannot be read ({first_line(problem)}): run 'paucal eval'.") from None


def to_pandas(table: pa.Table) -> "DataFrame":
    """Convert an Arrow table to a pandas DataFrame."""
    try:
        return table.to_pandas()
    except ImportError:
        raise UserError(
            "pandas is not installed: install pandas (pip install pandas), or use the Arrow table, which other "
            "data-frame libraries can read."
        ) from None


def _store_file(content: bytes, suffix: str) -> Path:
    folder = dataframes_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / f"frame-{hashlib.sha256(content).hexdigest()[:16]}.{suffix}"
    if not file.exists():
        write_atomically(file, lambda stream: stream.write(content))
    with suppress(OSError):
        os.utime(file)
    return file


def find_image_column(columns: Mapping[str, Sequence[Any]], requested_column: str | None) -> str:
    """Return the name of the image column: `requested_column`, or the first column with a usual name."""
    column_names = ", ".join(map(repr, list(columns)[:12]))
    if requested_column is not None:
        if requested_column not in columns:
            raise UserError(f"image: the table has no column {requested_column!r}; its columns are {column_names}.")
        return requested_column
    usual_columns = [name for name in columns if normalise_column_name(name) in IMAGE_COLUMNS]
    if not usual_columns:
        raise UserError(
            f"none of the table's columns has a usual name for paths or images ({column_names}): name the column with "
            "image=."
        )
    return min(usual_columns, key=lambda name: IMAGE_COLUMNS.index(normalise_column_name(name)))


def _relative_to_common_folder(paths: Sequence[str], root: str | os.PathLike[str] | None) -> tuple[list[str], str]:
    """Return the paths relative to their common folder, with forward slashes, and the folder."""
    if root is not None:
        return list(paths), os.fspath(root)
    if any(re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", path) for path in paths):
        return list(paths), os.getcwd()  # the reader of the table later refuses URLs with advice
    absolute_paths = [os.path.abspath(os.path.expanduser(path)) for path in paths]
    try:
        folder = os.path.commonpath([os.path.dirname(path) for path in absolute_paths])
    except ValueError:
        raise UserError("the images of the table are on several drives: move all images to one drive.") from None
    return [os.path.relpath(path, folder).replace(os.sep, "/") for path in absolute_paths], folder


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple | np.ndarray)


def _csv_cell(value: Any) -> str:
    """Return a value as a CSV cell: whole numbers without ".0", lists as JSON, and missing values as empty text."""
    if value is None or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    if _is_list(value):
        return json.dumps([str(entry) for entry in value], ensure_ascii=False)
    return str(value)


def takes_annotations(function: F) -> F:
    """Decorate a function so that DATA (the first argument, or `data`) may be a DataFrame of boxes or masks.

    The function receives the path of a CSV file with the table. The settings `image`, `label` (class of a box) and
    `mask` (path of a mask) name columns; box coordinates are found by their usual column names. A table without boxes
    or masks is stored as by `takes_frames`.
    """
    return with_stored_data(function, _replace_annotations_by_path)


def _replace_annotations_by_path(data: Any, settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Store a DataFrame of boxes or masks; return its path (or other DATA unchanged), and the other settings."""
    if not is_frame(data):
        return data, dict(settings)
    columns = columns_of(data)
    named_columns = {name: settings.get(name) for name in ("image", "label", "mask")}
    other_settings = {name: value for name, value in settings.items() if name not in (*named_columns, "data_root")}
    for name, column in named_columns.items():
        if column is not None and column not in columns:
            raise UserError(
                f"{name}: the table has no column {column!r}; its columns are {', '.join(map(repr, columns))}."
            )
    mask = named_columns["mask"] or next((name for name in columns if name.lower() in MASK_COLUMNS), None)
    if mask is None and find_box_columns([IMAGE_COLUMN, *columns]) is None:
        return replace_frame_by_path(data, settings)
    image = find_image_column(columns, named_columns["image"])
    root = settings.get("data_root") or ""
    paths = [_absolute_path(value, root, row) for row, value in enumerate(columns[image], 1)]
    table: dict[str, list[Any]] = {IMAGE_COLUMN: paths}
    if mask is not None:
        table[MASK_COLUMN] = [
            _absolute_path(value, root, row) if value else "" for row, value in enumerate(columns[mask], 1)
        ]
    if named_columns["label"] is not None:
        table[CLASS_COLUMN] = columns[named_columns["label"]]
    stored_columns = (image, mask, named_columns["label"])
    further_columns = {name: cells for name, cells in columns.items() if name not in stored_columns}
    # Columns with these names are left out, since the reader of the CSV file might use such a column in place of a
    # chosen column.
    reserved_names = {*table, *IMAGE_COLUMNS, *MASK_COLUMNS}
    table_columns = {
        # A list of numbers, such as a box, becomes text separated by spaces.
        name: [" ".join(map(str, cell)) if _is_list(cell) else cell for cell in cells]
        for name, cells in further_columns.items()
        if normalise_column_name(name) not in reserved_names
    }
    return str(store_table({**table, **table_columns})), other_settings


def _absolute_path(value: Any, root: str | os.PathLike[str], row: int) -> str:
    if not isinstance(value, str | os.PathLike):
        raise UserError(f"the image in row {row} is of type {type(value).__name__}, expected the path of a file.")
    return os.path.abspath(os.path.join(os.path.expanduser(root), os.path.expanduser(os.fspath(value))))
