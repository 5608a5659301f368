"""Which tables describe the images of a folder, and which of them belong together."""

from pathlib import Path

from paucal.data.part_names import PARTS, files_of_set, part_name, train_files
from paucal.data.sources.locating import FOLDERS_OF_TABLES
from paucal.data.sources.options import SourceOptions
from paucal.data.sources.table_columns import has_labels
from paucal.data.sources.table_rows import MOST_BYTES, TABLE_SUFFIXES, read_table
from paucal.reading import is_regular
from paucal.types import UserError

_LOOKED_AT = 21  # rows that tell whether a file is a table with a column for each class


def find_tables(folder: Path, options: SourceOptions) -> dict[str, Path]:
    """Return the tables that describe the images of a folder, by their parts; none where there is no such table.

    They are the train table with those beside it, or the only table with a path and a class, in the folder or in one
    called `annotations` or the like; or one table in each folder of a part.

    Args:
        folder: Path of the folder.
        options: Columns of paths and of classes where they are given.

    Raises:
        UserError: There are several; one has to be named.
    """
    beside = [below for below in sorted(folder.iterdir()) if below.name.lower() in FOLDERS_OF_TABLES and below.is_dir()]
    for place in (folder, *beside):
        if (file := _find_table(place, options)) is not None:
            return together(file, options)
    found: dict[str, Path] = {}
    folders = [below for below in sorted(folder.iterdir()) if below.name.lower() in PARTS and below.is_dir()]
    for below in sorted(folders, key=lambda below: PARTS[below.name.lower()] != "train"):
        part, table = PARTS[below.name.lower()], _find_table(below, options)
        if table is None and "train" in found and (same := below / found["train"].name).exists():
            table = same if _is_table(same, options, refuse=True) else None
        if table is not None and found.setdefault(part, table) != table:
            raise UserError(f"{found[part]} and {table} are both tables of {part}; keep one")
    return {part: found[part] for part in ("train", "val", "test") if part in found} if "train" in found else {}


def _find_table(folder: Path, options: SourceOptions) -> Path | None:
    files = [file for file in sorted(folder.iterdir()) if file.suffix.lower() in TABLE_SUFFIXES]
    files = [file for file in files if not file.name.startswith(".") and "submission" not in file.stem.lower()]
    found = [file for file in files if _is_table(file, options)]
    others = [file for file in found if not part_name(file).part]
    others = others or train_files(found) or found[: len(found) == 1]
    if len(others) > 1:
        names = ", ".join(file.name for file in others)
        raise UserError(f"{folder} has several tables of images ({names}); name one of them, such as {others[0]}")
    return others[0] if others else None


def together(file: Path, options: SourceOptions) -> dict[str, Path]:
    """Return a table with those of the other parts beside it, by part; "" for a table on its own.

    Args:
        file: Path of the table.
        options: As in `find_tables`.

    Raises:
        UserError: Two tables are of one part, or one cannot be read.
    """
    # The test table of a competition has no labels.
    return files_of_set(file, lambda other: _is_table(other, options, refuse=True), "tables")


def _is_table(file: Path, options: SourceOptions, refuse: bool = False) -> bool:
    """Return whether a file has columns for paths and classes by their names, or a column for each class.

    Args:
        file: Path of the file.
        options: As in `find_tables`.
        refuse: Whether one that cannot be read is refused, since it belongs to others; else it is no table.
    """
    if not is_regular(file) or file.stat().st_size > MOST_BYTES:
        return False
    try:
        return has_labels(read_table(file, _LOOKED_AT).rows, options.image_column, options.label_column)
    except (OSError, UserError):
        if refuse:
            raise
        return False
