"""The table of all models with their sizes, costs and sources.

The table is stored in the package, because measuring over a thousand models takes minutes.

Neither timm nor torch is imported here, so that `paucal models` and shell completion respond at once.
"""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from paucal.types import UserError

TABLE_FILE = "models.csv"
COLUMNS = ("model", "parameters", "macs", "height", "width", "rows", "columns", "dim", "source", "drloc_weight")
TIMM = "timm"  # source of the models that paucal does not implement


@dataclass(frozen=True)
class ListedModel:
    """Size and cost of a model at its default image size and number of classes."""

    parameters: int  # number of parameters, including frozen ones
    # Multiply-adds of convolutions, linear layers and attention products for one image, which papers often call FLOPs;
    # None if they cannot be counted.
    macs: int | None
    image_size: tuple[int, int]  # (height, width) in pixels at which the model was measured
    grid: tuple[int, int] | None  # (rows, columns) of the last feature map; None if the model has no feature map
    dim: int | None  # channels of the last feature map; None if the model has no feature map
    source: str  # paper of a model that paucal implements, else "timm"
    drloc_weight: float  # default weight of DrLoc's loss for the model


@lru_cache(maxsize=1)
def stored_table() -> dict[str, ListedModel]:
    """Return the table that comes with the package, by model name."""
    return dict(read_table(_table_text().splitlines()))


def model_names() -> list[str]:
    """Return the names of all models: from the table if the table was made with the installed timm, else from timm."""
    if f"timm {version('timm')}," in _table_text().partition("\n")[0]:
        return list(stored_table())
    import timm

    import paucal.backbones  # noqa: F401  (registers our models with timm)

    return timm.list_models()


def _table_text() -> str:
    return files("paucal.models").joinpath(TABLE_FILE).read_text(encoding="utf-8")


def read_table(lines: Iterable[str]) -> Iterator[tuple[str, ListedModel]]:
    """Yield the name and the entry of each model in a CSV table; lines that begin with # are comments."""
    reader = csv.DictReader(line for line in lines if not line.startswith("#"))
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise UserError(f"the table of models has columns {reader.fieldnames}, expected {list(COLUMNS)}.")
    for row in reader:
        parameters, macs, height, width, rows, columns, dim = (int(row[name] or 0) for name in COLUMNS[1:8])
        grid = (rows, columns) if rows and columns else None
        source, weight = row["source"], float(row["drloc_weight"])
        yield row["model"], ListedModel(parameters, macs or None, (height, width), grid, dim or None, source, weight)


def write_table(path: Path, models: Iterable[tuple[str, ListedModel]], comment: str) -> None:
    """Write a table with the comment in its first line."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# {comment}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name, entry in models:
            grid = entry.grid or (None, None)
            numbers = (entry.parameters, entry.macs, *entry.image_size, *grid, entry.dim)
            writer.writerow((name, *numbers, entry.source, f"{entry.drloc_weight:g}"))
