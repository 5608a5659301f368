"""Rows of cells in files that people write: CSV with any usual separator, TSV, and JSON with an object on each line."""

import csv
import io
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from paucal.reading import parse_json, read_decoded
from paucal.types import UserError

JSON_LINES = (".jsonl", ".ndjson")
TABLE_SUFFIXES = (".csv", ".tsv", *JSON_LINES)
MOST_BYTES = 512 << 20
_DELIMITERS = ",;\t|"
_LOOKED_AT = 21  # rows that tell the separator
_SHOWN = 80


class TableRow(NamedTuple):
    """One row of a table: the number of its first line in the file, and its cells."""

    line: int
    cells: list[str]


class TableRows(NamedTuple):
    """Rows of a table, the names of the columns first where it has them, and a note on its encoding ("" for none)."""

    rows: list[TableRow]
    note: str


def read_table(file: Path, most: int | None = None, exact: bool = False) -> TableRows:
    """Read the rows of a table that are not empty.

    Args:
        file: Path of the table.
        most: Largest number of rows to return; None for all.
        exact: Whether white space at the ends of cells belongs to them, as in a file that a program has written.

    Raises:
        UserError: The file is no text, or not as a table is written: an open quote, a line that is no JSON object.
        OSError: The file does not exist, or cannot be read.
    """
    found = read_decoded(file, MOST_BYTES)
    rows = _json_rows(file, found.text) if file.suffix.lower() in JSON_LINES else _csv_rows(file, found.text, exact)
    return TableRows(list(islice(rows, most)), found.note)


def _csv_rows(file: Path, text: str, exact: bool) -> Iterator[TableRow]:
    first, _, rest = text.partition("\n")
    named = first.strip().lower()
    if named.startswith("sep=") and len(named) == 5:  # written by Excel for itself
        return _divided(file, f"\n{rest}", named[4], exact)
    return _divided(file, text, _delimiter(file, text), exact)


def _delimiter(file: Path, text: str) -> str:
    """Return the separator by which most of the first rows have the width of the first one, which has several cells."""
    order = "\t,;|" if file.suffix.lower() == ".tsv" else _DELIMITERS

    def fit(delimiter: str) -> tuple[int, int]:
        lines = csv.reader(io.StringIO(text[: 1 << 20], newline=""), delimiter=delimiter, skipinitialspace=True)
        try:
            widths = [len(row) for row in islice(filter(any, lines), _LOOKED_AT)]
        except csv.Error:
            return 0, 0
        return (widths.count(widths[0]), widths[0]) if widths and widths[0] > 1 else (0, 0)

    return max(order, key=fit)  # the first of those that fit equally well


def _divided(file: Path, text: str, delimiter: str, exact: bool) -> Iterator[TableRow]:
    """Yield the rows of a CSV file; a quote that is not closed would make one cell of many lines, and is refused."""
    strict, broken = True, 0
    while True:
        lines = csv.reader(
            io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=not exact, strict=strict
        )
        begin, rows = 1, []
        try:
            for cells in lines:
                if not strict and lines.line_num > begin and broken == 0:
                    broken = begin
                if any(cell.strip() for cell in cells):
                    rows.append(TableRow(begin, cells if exact else [cell.strip() for cell in cells]))
                begin = lines.line_num + 1
        except csv.Error as problem:
            if strict and "expected after" in str(problem):  # white space after a quote, or a quote left open before
                strict = False
                continue
            if "unexpected end" not in str(problem):
                raise UserError(f"line {begin} of {file} cannot be read ({problem}): save it as CSV again.") from None
            broken = begin
        if broken:
            raise UserError(f'line {broken} of {file} has a quote (") that is not closed: close it, or double it.')
        yield from rows
        return


def _json_rows(file: Path, text: str) -> Iterator[TableRow]:
    objects: list[tuple[int, dict[str, object]]] = []
    for number, line in enumerate(io.StringIO(text), start=1):
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except ValueError as problem:
            raise UserError(f"line {number} of {file} cannot be read: {problem}.") from None
        if not isinstance(value, dict):
            raise UserError(f"line {number} of {file} is {line[:_SHOWN].strip()!r}; expected a JSON object, {{...}}.")
        objects.append((number, value))
    names = list(dict.fromkeys(name for _, value in objects for name in value))
    yield TableRow(0, names)
    for number, value in objects:
        yield TableRow(number, [_cell(value.get(name)) for name in names])


def _cell(value: object) -> str:
    if value is None or isinstance(value, str):
        return (value or "").strip()
    return json.dumps(value, ensure_ascii=False)
