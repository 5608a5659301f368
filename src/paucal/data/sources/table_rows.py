"""Rows of the files that describe images: CSV with any usual separator, TSV, JSON lines, and lists of paths."""

import csv
import io
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from paucal.data.sources.locating import plain_path
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.reading import parse_json, read_decoded
from paucal.types import NoLabelsError, UserError

JSON_LINES = (".jsonl", ".ndjson")
TABLE_SUFFIXES = (".csv", ".tsv", *JSON_LINES)
LIST_SUFFIX = ".txt"
MAX_BYTES = 512 << 20
MAX_LIST_BYTES = 256 << 20  # twice the size of a list of ImageNet's 1.3 million images
_DELIMITERS = ",;\t|"
_SAMPLED_ROWS = 21  # number of rows that decide the separator
_SHOWN = 80  # maximum number of characters of a line in a message
_ENDINGS = "|".join(re.escape(suffix) for suffix in IMAGE_SUFFIXES)
_LIST_LINE = re.compile(rf"(?P<path>\S.*?(?:{_ENDINGS}))(?:\s+(?P<label>\d{{1,9}}))?\s*", re.IGNORECASE)


class TableRow(NamedTuple):
    """The number of a row's first line in the file, and its cells."""

    line: int
    cells: list[str]


class TableRows(NamedTuple):
    """Rows of a table, beginning with the header if it has one, and a note on its encoding ("" for none)."""

    rows: list[TableRow]
    note: str


def read_table(file: Path, max_rows: int | None = None, exact: bool = False) -> TableRows:
    """Read the non-empty rows of a table, at most `max_rows`.

    White space at the ends of cells is kept if `exact`, as in files written by programs.

    Raises:
        UserError: The file is not text, or it has an unclosed quote or a line that is not a JSON object.
        OSError: The file does not exist, or cannot be read.
    """
    text, _, note = read_decoded(file, MAX_BYTES)
    rows = _json_rows(file, text) if file.suffix.lower() in JSON_LINES else _csv_rows(file, text, exact)
    return TableRows(list(islice(rows, max_rows)), note)


def read_list(file: Path, labelled: bool, max_rows: int | None = None) -> TableRows:
    """Read the non-blank lines of a list, at most `max_rows`: each has a path with any spaces, and a class number.

    Rows have the path with forward slashes and the class number, which is required if `labelled` and "-1" otherwise.
    """
    text, _, note = read_decoded(file, MAX_LIST_BYTES)
    lines = ((n, line.strip()) for n, line in enumerate(io.StringIO(text, newline=None), start=1) if line.strip())
    rows: list[TableRow] = []
    for number, line in islice(lines, max_rows):
        match = _LIST_LINE.fullmatch(line)
        if match is None or (labelled and match["label"] is None):
            expected = "a path and a class number, such as 'cat/1.jpg 0'" if labelled else "the path of an image"
            raise (NoLabelsError if match and not rows else UserError)(
                f"line {number} of {file} is {line[:_SHOWN]!r}; expected {expected}."
            )
        rows.append(TableRow(number, [plain_path(match["path"]), str(int(match["label"])) if labelled else "-1"]))
    if not rows:
        raise UserError(f"{file} lists no images; expected a path and a class number on each line.")
    return TableRows(rows, note)


def _csv_rows(file: Path, text: str, exact: bool) -> Iterator[TableRow]:
    """Yield the rows of a CSV file; an unclosed quote, which would join many lines to one cell, is refused."""
    first, _, later_lines = text.partition("\n")
    delimiter = first.strip().lower()
    if delimiter.startswith("sep=") and len(delimiter) == 5:  # a line that Excel adds
        delimiter, text = delimiter[4], f"\n{later_lines}"
    else:
        delimiter = _delimiter(file, text)
    for strict in (True, False):
        content = io.StringIO(text, newline="")
        lines = csv.reader(content, delimiter=delimiter, skipinitialspace=not exact, strict=strict)
        begin, broken, rows = 1, 0, []
        try:
            for cells in lines:
                if not strict and lines.line_num > begin and broken == 0:
                    broken = begin
                if any(cell.strip() for cell in cells):
                    rows.append(TableRow(begin, cells if exact else [cell.strip() for cell in cells]))
                begin = lines.line_num + 1
        except csv.Error as problem:
            if strict and "expected after" in str(problem):  # white space after a quote, or an earlier unclosed quote
                continue
            if "unexpected end" not in str(problem):
                raise UserError(f"line {begin} of {file} cannot be read ({problem}): save it as CSV again.") from None
            broken = begin
        if broken:
            raise UserError(f'line {broken} of {file} has a quote (") that is not closed: close it, or double it.')
        yield from rows
        return


def _delimiter(file: Path, text: str) -> str:
    """Return the separator for which most sampled rows have as many cells as the first row, if more than one."""
    order = "\t,;|" if file.suffix.lower() == ".tsv" else _DELIMITERS

    def fit(delimiter: str) -> tuple[int, int]:
        lines = csv.reader(io.StringIO(text[: 1 << 20], newline=""), delimiter=delimiter, skipinitialspace=True)
        try:
            widths = [len(row) for row in islice(filter(any, lines), _SAMPLED_ROWS)]
        except csv.Error:
            return 0, 0
        return (widths.count(widths[0]), widths[0]) if widths and widths[0] > 1 else (0, 0)

    return max(order, key=fit)  # the first of equally good ones


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
        yield TableRow(number, [_json_cell(value.get(name)) for name in names])


def _json_cell(value: object) -> str:
    if value is None or isinstance(value, str):
        return (value or "").strip()
    return json.dumps(value, ensure_ascii=False)
