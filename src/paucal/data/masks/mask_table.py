"""Tables of images and their masks, with columns such as `image,mask,split`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from paucal.data.sources.locating import leads_out, plain_path
from paucal.data.sources.table_columns import (
    IMAGE_COLUMNS,
    SPLIT_COLUMNS,
    first_position,
    normalise_column_name,
    refuse_repeated_columns,
)
from paucal.data.sources.table_reading import TABLE_SUFFIXES, read_table
from paucal.data.splits.part_names import PART_BY_WORD
from paucal.types import UserError
from paucal.wording import counted, left_out_notes

MASK_COLUMNS = ("mask", "mask_path", "mask_file", "mask_name", "segmentation", "segmentation_path", "annotation_path")


class MaskTable(NamedTuple):
    """Images and masks that a table lists.

    Attributes:
        root: Innermost folder that contains all images.
        rows: (key, mask files, split) of each image. The key is the path relative to `root`; the split is "train",
            "val", "test" or "".
        notes: Sentences on rows that were left out.
    """

    root: Path
    rows: list[tuple[str, tuple[Path, ...], str]]
    notes: tuple[str, ...]


def is_mask_table(file: Path) -> bool:
    """Return whether a file is a table with a column of images and a column of masks."""
    if not file.is_file() or file.suffix.lower() not in TABLE_SUFFIXES:
        return False
    try:
        return _column_positions(read_table(file, 1).rows[0].cells) is not None
    except (UserError, OSError, IndexError):
        return False


def read_mask_table(file: Path) -> MaskTable:
    """Read a table of images and masks.

    Relative paths are relative to the folder of the table. An image may have several masks, one in each row.
    """
    header, *rows = read_table(file).rows
    columns = _column_positions(header.cells)
    assert columns is not None
    image_column, mask_column, part_column = columns
    used_columns = [position for position in columns if position is not None]
    refuse_repeated_columns(file, list(map(normalise_column_name, header.cells)), used_columns)
    masks_and_part: dict[str, tuple[list[Path], str]] = {}
    n_without_mask = n_repeated = 0
    for row in rows:
        context = f"line {row.line} of {file}"
        if len(row.cells) <= max(image_column, mask_column, part_column or 0):
            raise UserError(
                f"{context} has {counted(len(row.cells), 'cell')}, but the first line has {len(header.cells)}: "
                "correct the line."
            )
        part = "" if part_column is None else row.cells[part_column].strip().lower()
        if part and part not in PART_BY_WORD:
            raise UserError(f"{context} has the split {part[:80]!r}, expected train, val or test: correct the line.")
        if not row.cells[mask_column].strip():
            n_without_mask += 1
            continue
        image, mask = (_resolve_path(row.cells[column], file, context) for column in (image_column, mask_column))
        masks, first_part = masks_and_part.setdefault(image, ([], PART_BY_WORD.get(part, "")))
        if first_part != PART_BY_WORD.get(part, ""):
            raise UserError(f"{context} puts {image!r} into a second split: put each image into one split.")
        if Path(mask) in masks:
            n_repeated += 1
        else:
            masks.append(Path(mask))
    if not masks_and_part:
        raise UserError(f"{file} contains no masks: fill in the column {header.cells[mask_column]!r}.")
    root = Path(os.path.commonpath([os.path.dirname(image) for image in masks_and_part]))
    keys = {image: Path(image).relative_to(root).as_posix() for image in masks_and_part}
    notes = left_out_notes(n_without_mask, "image without a mask", "images without a mask")
    notes += left_out_notes(n_repeated, f"repeated row of {file.name}", f"repeated rows of {file.name}")
    table_rows = [(keys[image], tuple(masks), part) for image, (masks, part) in masks_and_part.items()]
    return MaskTable(root, table_rows, tuple(notes))


def _column_positions(cells: Sequence[str]) -> tuple[int, int, int | None] | None:
    """Return the positions of the columns of images, masks and splits.

    The position of the splits is None if the table has no such column. The result is None if the table has no column of
    images or no column of masks.
    """
    column_names = list(map(normalise_column_name, cells))
    image, mask, part = (first_position(column_names, names) for names in (IMAGE_COLUMNS, MASK_COLUMNS, SPLIT_COLUMNS))
    return None if image is None or mask is None else (image, mask, part)


def _resolve_path(cell: str, file: Path, context: str) -> str:
    path = plain_path(cell)
    if leads_out(path) and not (os.path.isabs(path) and ".." not in path.split("/") and "\0" not in path):
        raise UserError(f"{context} has a path outside of the table's folder ({path[:80]!r}): correct the path.")
    absolute = os.path.join(os.path.abspath(file.parent), path)
    if not os.path.isfile(absolute):
        raise UserError(f"{context} names {path[:80]!r}, but there is no such file: correct the path.")
    return absolute
