"""The sizes and costs of all models, measured once and stored, since measuring over a thousand takes minutes."""

import csv
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TextIO

from paucal.backbones.measure import Measured, measure

FILE = "models.csv"
FIELDS = ("model", "parameters", "macs", "height", "width", "rows", "columns", "dim")


def describe(name: str) -> Measured:
    """Return what is stored of a model; one that is not in the table (a newer timm's) is measured.

    Example:
        >>> describe("resnet50").parameters
        25557032
    """
    return stored().get(name) or measure(name)


@lru_cache(maxsize=1)
def stored() -> dict[str, Measured]:
    """Return the table that comes with the package."""
    with files("paucal.backbones").joinpath(FILE).open(encoding="utf-8") as file:
        return dict(read_table(file))


def read_table(lines: Iterable[str]) -> Iterator[tuple[str, Measured]]:
    """Yield the rows of a table; lines that begin with # are comments."""
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        number = {key: int(value) if value else None for key, value in row.items() if key != "model"}
        rows, columns = number["rows"], number["columns"]
        grid = None if rows is None or columns is None else (rows, columns)
        size = (number["height"] or 0, number["width"] or 0)
        yield row["model"], Measured(number["parameters"] or 0, number["macs"], size, grid, number["dim"])


def write_table(path: Path, models: Iterable[tuple[str, Measured]], comment: str) -> None:
    """Write a table, sorted as given.

    Args:
        path: of the file.
        models: names and what was measured.
        comment: one line on what it was measured with.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        _write(file, models, comment)


def _write(file: TextIO, models: Iterable[tuple[str, Measured]], comment: str) -> None:
    file.write(f"# {comment}\n")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(FIELDS)
    for name, one in models:
        rows, columns = one.grid or (None, None)
        writer.writerow((name, one.parameters, one.macs, *one.image_size, rows, columns, one.dim))
