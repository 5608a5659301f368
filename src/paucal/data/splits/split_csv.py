"""The split of a run as a CSV file with the columns key, label, class, split, digest and group."""

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

import numpy as np

from paucal.data.checking.survey import digest_of
from paucal.data.classes import are_alike
from paucal.data.images import ImageSet
from paucal.data.sources.locating import comparison_key, unescape
from paucal.data.sources.table_reading import read_table
from paucal.data.splits.split import PARTS, Split
from paucal.data.string_arrays import RepeatedStrings
from paucal.reading import is_regular
from paucal.types import UserError
from paucal.writing import write_atomically

MAX_BYTES = 512 << 20  # maximum size of a file, five times the size for ImageNet's 1.3 million images
MAX_NAME_LENGTH = 20  # number of characters of a column name that are shown in messages
_SEPARATORS = ";|,"
_COLUMNS = ["key", "label", "class", "split"]
_DIGEST = "digest"  # optional column: digest of the image in hexadecimal digits
_GROUP = "group"  # optional column: number of the image's group
_HEADERS = [[*_COLUMNS, *optional] for optional in ([], [_DIGEST], [_GROUP], [_DIGEST, _GROUP])]


def write_split(path: Path, image_set: ImageSet, split: Split, digests: Iterable[str] | None = None) -> None:
    """Write one row per image; an unlabelled image has the label -1 and an empty class.

    The class names of an image with several labels are separated by ";", or by "|" or "," if a name contains ";".
    Digests identify the images even if the files are moved or renamed.
    """
    if len(split.strings) != len(image_set):
        raise ValueError(f"the split has {len(split.strings)} rows for {len(image_set)} images")
    columns = [image_set.keys, _label_numbers(image_set), format_class_names(image_set), split.strings]
    optional = {_DIGEST: digests, _GROUP: split.groups}
    optional_columns = {name: column for name, column in optional.items() if column is not None}

    # File names on Linux may contain any bytes. Bytes that are not UTF-8 are written as escapes, so that any program
    # can read the file.
    def write(file: BinaryIO) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
        writer = csv.writer(text)
        writer.writerow([*_COLUMNS, *optional_columns])
        writer.writerows(zip(*columns, *optional_columns.values(), strict=True))
        text.detach()  # flush, and leave the file open

    write_atomically(path, write)


def read_split(path: Path, image_set: ImageSet) -> Split:
    """Read the split of a set; the set must have the images and classes of the file, in any order."""
    if (split := _read_in_order(path, image_set)) is not None:
        return split
    rows = read_rows(path)
    # A copy of the images may have names in another Unicode form. The form is therefore ignored, unless two keys differ
    # only in the form.
    normalise = comparison_key if len(set(map(comparison_key, image_set.keys))) == len(image_set) else str
    keys = [normalise(key) for key in image_set.keys]
    table = {normalise(row["key"]): row for row in rows}
    if len(table) != len(rows):
        raise UserError(f"{path} names an image twice; give the split.csv of a run unchanged.")
    missing = [key for key in keys if key not in table]
    unknown = sorted(set(table) - set(keys))
    if missing or unknown:
        raise UserError(
            f"{path} does not match {image_set.location}: {_count_and_first(missing)} of the images are not in the "
            f"file, and {_count_and_first(unknown)} of the file's rows are not among the images; give the data that "
            "the split was made for."
        )
    for key, name in zip(keys, format_class_names(image_set), strict=True):
        if not are_alike(table[key]["class"], name):  # a spreadsheet program may have changed 001 to 1
            raise UserError(
                f"{key} is in class '{table[key]['class']}' in {path}, but in class '{name}' in {image_set.location}; "
                "give the data that the split was made for."
            )
    parts = np.asarray([table[key]["split"] for key in keys], dtype="<U6")
    groups = None
    if all(_GROUP in row for row in rows):
        groups = np.unique([table[key][_GROUP] for key in keys], return_inverse=True)[1]
    return Split(parts, f"the split stored in {path.name}", groups)


def require_same_images(path: Path, image_set: ImageSet) -> None:
    """Raise a UserError if a set differs from the split file of a run in its images, labels or order."""
    rows = read_rows(path)
    for index, (row, key, label) in enumerate(zip_longest(rows, image_set.keys, _label_numbers(image_set))):
        if row is None or row["key"] != key:
            expected = "none" if row is None else repr(row["key"])
            raise UserError(
                f"image {index + 1} of {image_set.location} is {key or 'none'!r}, but image {index + 1} of the run is "
                f"{expected}: give the images of the run, with the same names and in the same order."
            )
        digest = row.get(_DIGEST)
        has_same_content = not digest or digest == digest_of(image_set.store, index).hex()
        if row["label"] != str(label) or not has_same_content:
            difference = "another label" if has_same_content else "other content"
            raise UserError(
                f"{key!r} has {difference} in {image_set.location} than in the run: give the images of the run, with "
                "the same labels."
            )


def format_class_names(image_set: ImageSet) -> Iterator[str]:
    """Yield the class names of each image as one text for the split file, joined by a separator."""
    separator = next((mark for mark in _SEPARATORS if not any(mark in name for name in image_set.classes)), ";")
    return (separator.join(image_set.classes_of(index)) for index in range(len(image_set)))


def _label_numbers(image_set: ImageSet) -> Iterator[object]:
    if image_set.multi_hot is None:
        return map(int, image_set.labels)
    return (";".join(map(str, np.flatnonzero(row == 1))) for row in image_set.multi_hot)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a split file as text by column name, without comparing the rows with a set."""
    try:
        lines = read_table(path, keep_whitespace=True).rows
    except OSError as error:
        raise UserError(f"{path} cannot be read as a split ({error}); give the split.csv of a run.") from None
    columns = [name.strip() for name in lines[0].cells] if lines else []
    if columns not in _HEADERS:
        names = str([name[:MAX_NAME_LENGTH] for name in columns[: len(_COLUMNS)]])
        n_more = len(columns) - len(_COLUMNS)
        names += f" and {n_more} more" if n_more > 0 else ""
        raise UserError(f"{path} has the columns {names}; expected {_COLUMNS}, as a run writes them.")
    rows = [dict.fromkeys(_COLUMNS, str(None)) | dict(zip(columns, row.cells, strict=False)) for row in lines[1:]]
    for row in rows:
        if row["split"] not in PARTS:
            raise UserError(f"{path} has the split '{row['split']}' for {row['key']}; expected {', '.join(PARTS)}.")
        row["key"] = unescape(row["key"])
    return rows


def _read_in_order(path: Path, image_set: ImageSet) -> Split | None:
    """Return the split if the rows of the file are in the order of the set; None if an image or class differs."""
    if not is_regular(path) or path.stat().st_size > MAX_BYTES:
        return None
    # Only splits and groups are kept in memory, since the rows of a million images as text would take up a gigabyte.
    names, codes = [*image_set.classes, ""], np.zeros(len(image_set), dtype=np.uint8)
    groups, group_numbers = np.zeros(len(image_set), dtype=np.int64), dict[str, int]()
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = csv.reader(file)
            header = next(rows, None) or []
            if header[: len(_COLUMNS)] != _COLUMNS:
                return None
            group_column = header.index(_GROUP) if _GROUP in header else None
            expected = zip(image_set.keys, image_set.labels, strict=True)
            for position, (row, (key, label)) in enumerate(zip(rows, expected, strict=True)):
                if len(row) < len(header) or row[0] != key or row[2] != names[label] or row[3] not in PARTS:
                    return None
                codes[position] = PARTS.index(row[3])
                if group_column is not None:
                    groups[position] = group_numbers.setdefault(row[group_column], len(group_numbers))
    except (OSError, csv.Error, ValueError):  # ValueError: there are more or fewer rows than images
        return None
    text = f"the split stored in {path.name}"
    return Split(RepeatedStrings(PARTS, codes), text, None if group_column is None else groups)


def _count_and_first(keys: list[str]) -> str:
    return f"{len(keys)}" + (f" ({keys[0]}{', ...' if len(keys) > 1 else ''})" if keys else "")
