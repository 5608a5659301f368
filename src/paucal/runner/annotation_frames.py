"""Let `paucal.detect` and `paucal.segment` take DataFrames of boxes or mask paths, which are stored as CSV files."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from paucal.data.boxes.table import find_columns as find_box_columns
from paucal.data.masks.mask_table import MASK_COLUMNS
from paucal.data.sources.table_columns import IMAGE_COLUMNS, normalise_column_name
from paucal.runner.frames import (
    F,
    columns_of,
    find_image_column,
    is_frame,
    replace_frame_by_path,
    store_table,
    with_stored_data,
)
from paucal.types import UserError

IMAGE_COLUMN, CLASS_COLUMN, MASK_COLUMN = "filename", "class", "mask"


def takes_annotations(function: F) -> F:
    """Decorate a function so that DATA may be a DataFrame of boxes or masks.

    DATA is the first argument, or the keyword argument `data`.

    The function receives the path of a CSV file with the table. The settings `image`, `label` (class of a box) and
    `mask` (path of a mask) name columns; box coordinates are found by their usual column names. A table without boxes
    or masks is stored in the same way as by `takes_frames`.
    """
    return with_stored_data(function, _store_frame)


def _store_frame(data: Any, settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
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
        name: [_numbers_as_text(cell) for cell in cells]
        for name, cells in further_columns.items()
        if normalise_column_name(name) not in reserved_names
    }
    return str(store_table({**table, **table_columns})), other_settings


def _numbers_as_text(cell: Any) -> Any:
    """Return a list of numbers, such as a box, as text separated by spaces; return other values unchanged."""
    return " ".join(map(str, cell)) if isinstance(cell, list | tuple | np.ndarray) else cell


def _absolute_path(value: Any, root: str | os.PathLike[str], row: int) -> str:
    if not isinstance(value, str | os.PathLike):
        raise UserError(f"the image in row {row} is of type {type(value).__name__}, expected the path of a file.")
    return os.path.abspath(os.path.join(os.path.expanduser(root), os.path.expanduser(os.fspath(value))))
