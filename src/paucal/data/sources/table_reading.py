"""Reads the rows of files that describe images: CSV with any usual separator, TSV, JSON lines, and lists of paths."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from paucal.data.sources.locating import MAX_SHOWN, plain_path
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.reading import parse_json, read_decoded
from paucal.types import NoLabelsError, UserError

JSON_LINES = (".jsonl", ".ndjson")
TABLE_SUFFIXES = (".csv", ".tsv", *JSON_LINES)
LIST_SUFFIX = ".txt"
MAX_BYTES = 512 << 20  # maximum size of a table
MAX_LIST_BYTES = 256 << 20  # maximum size of a list, twice that of a list of ImageNet's 1.3 million images
_DELIMITERS = ",;\t|"
_SAMPLED_ROWS = 21  # number of rows from which the separator of columns is detected
_ENDINGS = "|".join(re.escape(suffix) for suffix in IMAGE_SUFFIXES)
_LIST_LINE = re.compile(rf"(?P<path>\S.*?(?:{_ENDINGS}))(?:\s+(?P<label>\d{{1,9}}))?\s*", re.IGNORECASE)


class TableRow(NamedTuple):
    """The cells of a row, and the number of its first line in the file, from 1; 0 for the header of JSON lines."""

    line: int
    cells: list[str]


class TableRows(NamedTuple):
    """The rows of a table, including a header, and a note on the text encoding (empty for UTF-8, UTF-16 and UTF-32)."""

    rows: list[TableRow]
    note: str


def read_table(file: Path, max_rows: int | None = None, keep_whitespace: bool = False) -> TableRows:
    """Read up to `max_rows` non-empty rows of a table; `keep_whitespace` is for files that paucal has written."""
    text, _, note = read_decoded(file, MAX_BYTES)
    rows = _json_rows(file, text) if file.suffix.lower() in JSON_LINES else csv_rows(file, text, keep_whitespace)
    return TableRows(list(islice(rows, max_rows)), note)


def read_list(file: Path, labelled: bool, max_rows: int | None = None) -> TableRows:
    """Read the lines of a list file as rows of a path and a class number, which is "-1" unless `labelled`."""
    text, _, note = read_decoded(file, MAX_LIST_BYTES)
    lines = ((n, line.strip()) for n, line in enumerate(io.StringIO(text, newline=None), start=1) if line.strip())
    rows: list[TableRow] = []
    for number, line in islice(lines, max_rows):
        match = _LIST_LINE.fullmatch(line)
        if match is None or (labelled and match["label"] is None):
            expected = "a path and a class number, such as 'cat/1.jpg 0'" if labelled else "the path of an image"
            raise (NoLabelsError if match and not rows else UserError)(
                f"line {number} of {file} is {line[:MAX_SHOWN]!r}; expected {expected}."
            )
        rows.append(TableRow(number, [plain_path(match["path"]), str(int(match["label"])) if labelled else "-1"]))
    if not rows:
        raise UserError(f"{file} contains no images; expected a path and a class number on each line.")
    return TableRows(rows, note)


def csv_rows(file: Path, text: str, keep_whitespace: bool = False) -> Iterator[TableRow]:
    """Yield the non-empty rows in the text of a CSV file; refuse an unclosed quote, which would join lines."""
    first_line, _, later_lines = text.partition("\n")
    first_line = first_line.strip().lower()
    if first_line.startswith("sep=") and len(first_line) == 5:  # names the separator for Excel
        delimiter, text = first_line[4], f"\n{later_lines}"
    else:
        delimiter = _detect_delimiter(file, text)

    def make_reader(strict: bool) -> Any:
        content = io.StringIO(text, newline="")
        return csv.reader(content, delimiter=delimiter, skipinitialspace=not keep_whitespace, strict=strict)

    # The quotes are checked in a separate pass, so that the cells of a large table are never all in memory.
    lines, row_line = make_reader(_check_quotes(file, make_reader)), 1
    for cells in lines:
        if any(cell.strip() for cell in cells):
            yield TableRow(row_line, cells if keep_whitespace else [cell.strip() for cell in cells])
        row_line = lines.line_num + 1


def _check_quotes(file: Path, make_reader: Callable[[bool], Any]) -> bool:
    """Raise a UserError for an unclosed quote; return whether the file can be parsed with `strict`."""
    # Strict parsing finds unclosed quotes, but also refuses white space after a closing quote. In that case, the file
    # is parsed again without `strict`, and an unclosed quote is recognised as a cell of several lines.
    for strict in (True, False):
        lines, row_line, unclosed_line = make_reader(strict), 1, 0
        try:
            for _ in lines:
                if not strict and lines.line_num > row_line and unclosed_line == 0:
                    unclosed_line = row_line
                row_line = lines.line_num + 1
        except csv.Error as problem:
            if strict and "expected after" in str(problem):
                continue
            if "unexpected end" not in str(problem):
                raise UserError(
                    f"line {row_line} of {file} cannot be read ({problem}): save the file as CSV again."
                ) from None
            unclosed_line = row_line
        if unclosed_line:
            raise UserError(
                f'line {unclosed_line} of {file} has a quote (") that is not closed: add the closing quote, or write '
                'the quote as "".'
            )
        return strict
    raise AssertionError("parsing without `strict` must accept white space after a closing quote")


def _detect_delimiter(file: Path, text: str) -> str:
    """Return the separator with which the most sampled rows have as many cells as the first row, two or more."""
    delimiters = "\t,;|" if file.suffix.lower() == ".tsv" else _DELIMITERS

    def count_cells(delimiter: str) -> tuple[int, int]:
        """Return the number of rows with as many cells as the first row, and the number of cells of the first row."""
        lines = csv.reader(io.StringIO(text[: 1 << 20], newline=""), delimiter=delimiter, skipinitialspace=True)
        try:
            widths = [len(row) for row in islice(filter(any, lines), _SAMPLED_ROWS)]
        except csv.Error:
            return 0, 0
        return (widths.count(widths[0]), widths[0]) if widths and widths[0] > 1 else (0, 0)

    return max(delimiters, key=count_cells)  # the first separator if counts are equal


def _json_rows(file: Path, text: str) -> Iterator[TableRow]:
    """Yield a header with all names in the objects of a JSON-lines file, then a row for each object."""
    objects: list[tuple[int, dict[str, object]]] = []
    for number, line in enumerate(io.StringIO(text), start=1):
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except ValueError as problem:
            raise UserError(f"line {number} of {file} cannot be read: {problem}.") from None
        if not isinstance(value, dict):
            raise UserError(
                f"line {number} of {file} is {line[:MAX_SHOWN].strip()!r}; expected a JSON object, {{...}}."
            )
        objects.append((number, value))
    names = list(dict.fromkeys(name for _, value in objects for name in value))
    yield TableRow(0, names)
    for number, value in objects:
        cells = ["" if (cell := value.get(name)) is None else cell for name in names]
        texts = [cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False) for cell in cells]
        yield TableRow(number, [text.strip() for text in texts])
