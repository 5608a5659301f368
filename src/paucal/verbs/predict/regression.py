"""`paucal predict` with a model that gives numbers: the number of each image with its interval."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from paucal.models.trained import TrainedModel
from paucal.runner.console import Console
from paucal.runner.frames import to_pandas
from paucal.runner.input_images import Pictures
from paucal.runs import csv_text
from paucal.tasks.regression.model import card_of
from paucal.verbs.predict.asking import ask
from paucal.verbs.predict.settings import PredictSettings

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = ("path", "predicted", "low", "high")


@dataclass(frozen=True)
class NumberPrediction:
    """The number that a model predicts for one image.

    Attributes:
        path: Path of the image; None for an image given as pixels.
        predicted: Number in the unit of the target.
        low: Lower end of the 90 % interval; minus infinity if there were too few images for one.
        high: Upper end.
    """

    path: str | None
    predicted: float
    low: float
    high: float


class NumberPredictions(list[NumberPrediction]):
    """The predictions of one call, as a list that turns into tables."""

    def to_arrow(self) -> pa.Table:
        """Return a table with the columns path, predicted, low and high."""
        kinds = (pa.string(), *(pa.float64(),) * 3)
        return pa.table(
            {
                name: pa.array([getattr(row, name) for row in self], kind)
                for name, kind in zip(COLUMNS, kinds, strict=True)
            }
        )

    def to_pandas(self) -> "DataFrame":
        """Return the table of `to_arrow` as a DataFrame of pandas.

        Raises:
            UserError: pandas is not installed.
        """
        return to_pandas(self.to_arrow())


def predict_numbers(
    model: TrainedModel, pictures: Pictures, settings: PredictSettings, console: Console
) -> NumberPredictions:
    """Return the number of each picture; the arguments are as `open_pictures` returns them.

    Raises:
        UserError: An image cannot be read.
    """
    half = card_of(model).half_width
    rows = NumberPredictions()
    for block in ask(model, pictures, settings, console):
        names = [name for name, readable in zip(block.names, block.readable, strict=True) if readable]
        values = block.shares[:, 0].double().tolist()
        rows += [NumberPrediction(name, one, one - half, one + half) for name, one in zip(names, values, strict=True)]
    return rows


def as_text(rows: Iterable[NumberPrediction], form: str) -> str:
    """Return predictions as "csv", or as "json": a list of mappings, where an interval without end is null."""
    if form == "csv":
        lines = [[row.path, *(f"{value:.9g}" for value in (row.predicted, row.low, row.high))] for row in rows]
        return csv_text(COLUMNS, *lines)

    def plain(value: Any) -> Any:
        return None if isinstance(value, float) and math.isinf(value) else value

    entries = [{name: plain(getattr(row, name)) for name in COLUMNS} for row in rows]
    return json.dumps(entries, indent=2, ensure_ascii=False) + "\n"
