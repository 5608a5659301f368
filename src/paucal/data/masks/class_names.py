"""Names of classes from a file, with the mask value or the colour of each where the file has them."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from paucal.data.masks.pixels import packed
from paucal.reading import read_decoded
from paucal.types import UserError

MOST_BYTES = 1 << 20
HEADINGS = {"name", "class", "label", "r", "g", "b", "red", "green", "blue", "value", "index", "id", "color", "colour"}


@dataclass(frozen=True)
class NamedClasses:
    """What a file of classes says.

    Attributes:
        names: in the order of the file.
        values: of each class in a mask, a colour as a packed number; None where the file has names alone.
        colours: whether the values are colours.
        note: Sentence on the encoding of the file where it was assumed; "" for none.
    """

    names: tuple[str, ...]
    values: tuple[int, ...] | None = None
    colours: bool = False
    note: str = ""


def read_class_names(path: Path) -> NamedClasses:
    """Read a text file of one name a line, or a CSV of names with a value (two columns) or a colour (four columns).

    A line of headings is known by its words ("name", "r", "g", "b", "value", ...); the name may be the first or the
    last column.

    Raises:
        UserError: there is no such file, it is no text, a row is not of that form, or a name or a value comes twice.
    """
    try:
        text, _, note = read_decoded(path, MOST_BYTES)
    except FileNotFoundError:
        raise UserError(f"--classes: there is no such file: {str(path)!r}; check the path.") from None
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text, newline=""))]
    except csv.Error as problem:
        raise UserError(f"--classes: {str(path)!r} cannot be read ({problem}); give one name a line.") from None
    rows = [row for row in rows if any(row)]
    if rows and rows[0] and len(rows) > 1 and {cell.lower() for cell in rows[0]} <= HEADINGS:
        rows = rows[1:]
    if not rows:
        raise UserError(f"--classes: {str(path)!r} names no class; expected one name a line.")
    found = [_read_row(row, path) for row in rows]
    widths = {len(numbers) for _, numbers in found}
    if len(widths) > 1:
        raise UserError(f"--classes: the rows of {str(path)!r} differ in length; give each the same columns.")
    names = tuple(name for name, _ in found)
    _refuse_twice(names, path)
    if widths == {0}:
        return NamedClasses(names, note=note)
    colours = widths == {3}
    values = tuple(int(packed(numbers)) if colours else numbers[0] for _, numbers in found)  # type: ignore[arg-type]
    _refuse_twice(values, path)
    return NamedClasses(names, values, colours, note)


def _read_row(row: list[str], path: Path) -> tuple[str, list[int]]:
    """Return the name in a row and its numbers: none, one value, or a colour."""
    for name, rest in ((row[0], row[1:]), (row[-1], row[:-1])):
        if len(rest) in (0, 1, 3) and all(cell.isascii() and cell.isdigit() for cell in rest) and name:
            numbers = [int(cell) for cell in rest if len(cell) < 6]
            most = 255 if len(rest) == 3 else 65535
            if len(numbers) == len(rest) and all(number <= most for number in numbers):
                return name, numbers
    raise UserError(
        f"--classes: the row {','.join(row)[:80]!r} of {str(path)!r} is not of the form NAME, NAME,VALUE or NAME,R,G,B."
    )


def _refuse_twice(entries: tuple[object, ...], path: Path) -> None:
    twice = next((entry for place, entry in enumerate(entries) if entry in entries[:place]), None)
    if twice is not None:
        raise UserError(f"--classes: {str(path)!r} has {str(twice)[:80]!r} twice; give each class once.")
