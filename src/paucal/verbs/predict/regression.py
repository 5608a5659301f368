"""`paucal predict` with a regression model: a target value with its interval for each image."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor

from paucal.models.regression import RegressionCard
from paucal.models.trained import TrainedModel
from paucal.runner.console import Console
from paucal.runner.input_images import InputImages
from paucal.verbs.predict.answers import TableList, predict_batches
from paucal.verbs.predict.settings import PredictSettings
from paucal.writing import csv_text

COLUMNS = ("path", "predicted", "low", "high")


@dataclass(frozen=True)
class RegressionPrediction:
    """The target value that a model predicts for one image.

    Attributes:
        path: Path of the image; None for a PIL image or array.
        predicted: Predicted value, in the unit of the target.
        low: Lower end of the 90 % interval; minus infinity if there were too few training images for an interval.
        high: Upper end of the 90 % interval; infinity if there were too few training images.
        shares: Dict from each grade to its probability, if the target is an ordered grade such as 0 to 4; else empty.
        features: (D,) input of the regression head; None if not requested.
    """

    path: str | None
    predicted: float
    low: float
    high: float
    shares: Mapping[int, float] = field(default_factory=dict)
    features: Tensor | None = None

    @property
    def cells(self) -> dict[str, Any]:
        """The values of the prediction's table row, by column name."""
        shares = {f"p_{grade}": share for grade, share in self.shares.items()}
        return {**{name: getattr(self, name) for name in COLUMNS}, **shares}


class RegressionPredictions(TableList[RegressionPrediction]):
    """The target values of one call, as a list that can be converted to tables."""

    def to_arrow(self) -> pa.Table:
        """Return a table with the columns path, predicted, low and high, and for grades also p_1, p_2, ..."""
        names = self[0].cells if self else COLUMNS
        return pa.table(
            {
                name: pa.array([row.cells[name] for row in self], pa.string() if name == "path" else pa.float64())
                for name in names
            }
        )


def predict_target_values(
    model: TrainedModel, pictures: InputImages, settings: PredictSettings, console: Console, features: bool = False
) -> RegressionPredictions:
    """Predict the target value of each image; the first three arguments come from `open_pictures`."""
    card, rows = model.card, RegressionPredictions()
    assert isinstance(card, RegressionCard)
    for block in predict_batches(model, pictures, settings, console, features=features):
        rows += regression_rows(card, list(compress(block.names, block.readable)), block.shares, block.features)
    return rows


def regression_rows(
    card: RegressionCard, names: Sequence[str | None], outputs: Tensor, features: Tensor | None = None
) -> list[RegressionPrediction]:
    """Return the predictions for N images from the network's (N, 1) outputs and, if given, their (N, D) features."""
    values = outputs[:, 0].double().numpy()
    shares = np.empty((len(values), 0)) if card.grades is None else card.grades.probabilities(values)
    grades = () if card.grades is None else card.grades.values
    rows = [None] * len(values) if features is None else features
    return [
        RegressionPrediction(
            name, float(value), float(low), float(high), dict(zip(grades, row, strict=True)), feature_row
        )
        for name, row, feature_row, value, low, high in zip(
            names, shares.tolist(), rows, *card.read(values), strict=True
        )
    ]


def as_text(rows: Sequence[RegressionPrediction], form: str) -> str:
    """Return predictions as "csv" or "json" text; in JSON, an infinite end of an interval is null."""
    if form == "csv":
        header = list(rows[0].cells) if rows else COLUMNS
        return csv_text(header, *(regression_cells(row) for row in rows))

    ends = (-math.inf, math.inf)
    entries = [{name: None if value in ends else value for name, value in row.cells.items()} for row in rows]
    return json.dumps(entries, indent=2, ensure_ascii=False) + "\n"


def regression_cells(row: RegressionPrediction) -> list[Any]:
    """Return the values of a prediction's CSV row, with nine significant digits."""
    return [row.path, *(f"{value:.9g}" for name, value in row.cells.items() if name != "path")]
