"""The predictions of a classifier for images: as values, as CSV and as JSON."""

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from torch import Tensor

from paucal.evaluation.calibration import reach_thresholds
from paucal.models.card import ModelCard
from paucal.runner.frames import to_pandas
from paucal.runs import csv_text

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, eq=False)
class Prediction:
    """The prediction of a classifier for one image.

    Attributes:
        path: Path of the image; None for an image given as pixels.
        classes: K names.
        shares: (K,) float32 probabilities on the CPU. They sum to 1, unless the model predicts several labels: then
            each class has its own probability.
        thresholds: (K,) lowest probabilities at which such a model predicts a class; None for a single label.
        features: (D,) float32, the input of the classifier; None if not requested.
    """

    path: str | None
    classes: tuple[str, ...]
    shares: Tensor
    thresholds: tuple[float, ...] | None = None
    features: Tensor | None = None

    @cached_property
    def predicted(self) -> str:
        """The name of the class with the highest probability."""
        return self.classes[int(self.shares.argmax())]

    @cached_property
    def confidence(self) -> float:
        """The highest probability."""
        return float(self.shares.max())

    @cached_property
    def labels(self) -> list[str]:
        """The names of the predicted classes: one, or any number of classes that reach their thresholds."""
        if self.thresholds is None:
            return [self.predicted]
        return list(compress(self.classes, reach_thresholds(self.shares, self.thresholds).tolist()))

    @property
    def probabilities(self) -> Mapping[str, float]:
        """The probability of each class by its name."""
        return dict(zip(self.classes, self.shares.tolist(), strict=True))

    def top(self, count: int) -> list[tuple[str, float]]:
        """Return the likeliest classes (all if there are fewer) with their probabilities, in descending order."""
        order = self.shares.argsort(descending=True, stable=True)[:count].tolist()
        return [(self.classes[index], float(self.shares[index])) for index in order]


class Predictions(list[Prediction]):
    """The predictions of one call, as a list that turns into tables."""

    def to_arrow(self) -> pa.Table:
        """Return a table with the columns of `paucal predict --output answers.csv`, numbers unrounded.

        The columns are the path; the class and its confidence, or a list of labels from a model that predicts several;
        and "p_" with the name of each class.
        """
        columns: dict[str, Any] = {"path": pa.array([row.path for row in self], pa.string())}
        if self and self[0].thresholds is not None:
            columns["labels"] = [row.labels for row in self]
        else:
            columns["predicted"] = pa.array([row.predicted for row in self], pa.string())
            columns["confidence"] = pa.array([row.confidence for row in self], pa.float32())
        for index, name in enumerate(self[0].classes if self else ()):
            columns[f"p_{name}"] = pa.array([float(row.shares[index]) for row in self], pa.float32())
        return pa.table(columns)

    def to_pandas(self) -> "DataFrame":
        """Return the table of `to_arrow` as a DataFrame of pandas.

        Raises:
            UserError: pandas is not installed.
        """
        return to_pandas(self.to_arrow())


def csv_lines(rows: Iterable[Prediction], card: ModelCard, top_k: int | None = None) -> Iterator[str]:
    """Yield one line per image: path, class, confidence, and a probability per class.

    For a model that predicts several labels, the line has all classes that reach their threshold, separated by ";", and
    no confidence. `top_k` is the number of likeliest classes to name, instead of a column for each class.
    """
    yield csv_text(csv_header(card, top_k))
    for row in rows:
        yield csv_text(csv_cells(row, top_k))


def csv_header(card: ModelCard, top_k: int | None = None) -> list[str]:
    """Return the names of the columns of `csv_lines`."""
    answers = ["labels"] if card.several else ["predicted", "confidence"]
    if top_k is None:
        return ["path", *answers, *(f"p_{name}" for name in card.classes)]
    ranks = range(1, min(top_k, len(card.classes)) + 1)
    return ["path", *answers, *(column for rank in ranks for column in (f"class_{rank}", f"p_{rank}"))]


def csv_cells(row: Prediction, top_k: int | None = None) -> list[str | None]:
    """Return the cells of one line of `csv_lines`."""
    first_cells = [row.predicted, _format_share(row.confidence)] if row.thresholds is None else [";".join(row.labels)]
    if top_k is None:
        return [row.path, *first_cells, *map(_format_share, row.shares.tolist())]
    return [row.path, *first_cells, *(word for name, share in row.top(top_k) for word in (name, _format_share(share)))]


def json_lines(rows: Iterable[Prediction], top_k: int | None = None) -> Iterator[str]:
    """Yield a JSON list, piece by piece: for each image a mapping with the same content as in `csv_lines`."""
    empty = True
    for row in rows:
        names = ("path", "predicted", "confidence") if row.thresholds is None else ("path", "labels")
        answer: dict[str, Any] = {name: getattr(row, name) for name in names}
        answer["probabilities"] = row.probabilities if top_k is None else dict(row.top(top_k))
        entry = textwrap.indent(json.dumps(answer, indent=2, ensure_ascii=False), "  ")
        yield f"{'[' if empty else ','}\n{entry}"
        empty = False
    yield "[]\n" if empty else "\n]\n"


def _format_share(share: float) -> str:
    return f"{share:.6g}"
