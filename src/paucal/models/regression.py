"""The card of a regression model, which predicts a number or an ordered grade (such as 0 to 4) from its output."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paucal.backbones.spec import BackboneSpec
from paucal.models.card import ModelCard
from paucal.models.preprocessing import is_number
from paucal.models.tasks import REGRESSION
from paucal.types import UserError

INTERVAL_LEVEL = 0.9  # fraction of images whose true value should be in the prediction interval
# `INTERVAL_LEVEL` of a normal distribution is within this many standard deviations of the mean.
NORMAL_QUANTILE = 1.645
MAX_GRADES = 12  # largest number of grades of a target
FloatArray = NDArray[np.float64]


class IntervalPredictions(NamedTuple):
    """The predictions of a model for N images."""

    predicted: FloatArray  # (N,) predicted values
    low: FloatArray  # (N,) lower ends of the 90 % prediction intervals
    high: FloatArray  # (N,) upper ends of the 90 % prediction intervals


@dataclass(frozen=True)
class CumulativeLogitModel:
    """A cumulative logit model (McCullagh, 1980), which gives probabilities of K ordered grades.

    The grades are consecutive whole numbers. For an output z of the network, the probability of the k-th grade or a
    lower grade is sigmoid(slope (cuts[k] - z)). The (K - 1,) `cuts` are ascending.
    """

    lowest: int
    cuts: tuple[float, ...]
    slope: float

    @property
    def values(self) -> tuple[int, ...]:
        """The K grades."""
        return tuple(range(self.lowest, self.lowest + len(self.cuts) + 1))

    def cumulative(self, outputs: FloatArray) -> FloatArray:
        """Return (N, K + 1) cumulative probabilities, whose column k is the probability of the first k grades."""
        logits = self.slope * (np.asarray(self.cuts) - outputs[:, None])
        inner_columns = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
        return np.pad(inner_columns, ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1)))

    def probabilities(self, outputs: FloatArray) -> FloatArray:
        """Return the (N, K) probabilities of the grades for (N,) outputs."""
        return np.diff(self.cumulative(outputs), axis=1)

    def required_margins(self, outputs: FloatArray, truth: FloatArray) -> FloatArray:
        """Return the (N,) smallest margins for which the intervals of `read` contain the (N,) true grades.

        A margin is the probability between the median and either end of the interval; the required margin is 0 if the
        true grade is the median.
        """
        rows, index = np.arange(len(truth)), (truth - self.lowest).astype(np.int64)
        cumulative = self.cumulative(outputs)
        return np.maximum(0.0, np.maximum(0.5 - cumulative[rows, index + 1], cumulative[rows, index] - 0.5))

    def read(self, outputs: FloatArray, margin: float) -> IntervalPredictions:
        """Return the median grades, and the grades at cumulative probabilities of 0.5 - margin and 0.5 + margin."""
        cumulative = self.cumulative(outputs)
        median_and_low = [(cumulative[:, 1:] < 0.5 - distance).sum(1) for distance in (0.0, margin)]
        high = (cumulative[:, :-1] <= 0.5 + margin).sum(1) - 1
        return IntervalPredictions(*(self.lowest + index.astype(np.float64) for index in (*median_and_low, high)))


@dataclass(frozen=True)
class RegressionCard(ModelCard):
    """The card of a network whose only output is a number in the unit of its target.

    `classes` contains only the name of the target.
    """

    task: ClassVar[str] = REGRESSION
    formats: ClassVar[tuple[int, ...]] = (1,)

    # Half the width of the 90 % prediction intervals or, if there are grades, the margin for
    # `CumulativeLogitModel.read`. Infinite if there were too few images for an estimate.
    half_width: float = math.inf
    mean: float = 0.0  # mean of the target over the training images
    deviation: float = 1.0  # standard deviation of the target over the training images
    grades: CumulativeLogitModel | None = None  # converts outputs to grades; None if outputs are the predictions

    def __post_init__(self) -> None:
        super().__post_init__()
        half_width = 0.0 if self.half_width == math.inf else self.half_width
        if not all(map(_is_finite, (self.mean, self.deviation, half_width))) or self.deviation <= 0 or half_width < 0:
            raise UserError(
                "a model card has a mean that is not a finite number, a deviation that is not positive, or a negative "
                "half_width: restore model.json."
            )
        grades = self.grades
        if grades is not None and not (
            all(map(_is_finite, (grades.lowest, grades.slope, *grades.cuts)))
            and type(grades.lowest) is int
            and grades.slope > 0
            and 1 <= len(grades.cuts) < MAX_GRADES
            and list(grades.cuts) == sorted(grades.cuts)
        ):
            raise UserError(
                "a model card has invalid grades, expected ascending cuts and a positive slope: restore model.json."
            )

    @property
    def target(self) -> str:
        """Name of the predicted column."""
        return self.classes[0]

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the (N, 1) outputs of the network unchanged, since they are not logits."""
        return logits.float()

    def read(self, outputs: FloatArray) -> IntervalPredictions:
        """Return the predictions for (N,) outputs of the network."""
        if self.grades is not None:
            return self.grades.read(outputs, self.half_width)
        return IntervalPredictions(outputs, outputs - self.half_width, outputs + self.half_width)

    def describe(self, output: float) -> str:
        """Return the prediction for an output with its interval, as text."""
        prediction = self.read(np.array([output], dtype=np.float64))
        interval = f" ({prediction.low[0]:.3g} to {prediction.high[0]:.3g})" if np.isfinite(prediction.low[0]) else ""
        return f"{self.target} {prediction.predicted[0]:.3g}{interval}"

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `model.json` as plain values."""
        half_width = None if self.half_width == math.inf else self.half_width
        number_values = {"half_width": half_width, "mean": self.mean, "deviation": self.deviation}
        grades = {} if self.grades is None else {"grades": {**vars(self.grades), "cuts": list(self.grades.cuts)}}
        return {**super().to_dict(), "task": self.task, **number_values, **grades}

    @classmethod
    def _read_task_fields(cls, stored: Mapping[str, Any], spec: BackboneSpec) -> tuple[int, dict[str, Any]]:
        half_width, grades = stored["half_width"], stored.get("grades")
        if grades is not None:
            grade_values = {field.name: grades[field.name] for field in fields(CumulativeLogitModel)}
            grades = CumulativeLogitModel(**{**grade_values, "cuts": tuple(grade_values["cuts"])})
        return spec.num_classes, {
            "half_width": math.inf if half_width is None else half_width,
            "mean": stored["mean"],
            # Cards of earlier versions lack the target's standard deviation. Instead, the standard deviation of the
            # errors is used, which is at most as large.
            "deviation": stored.get("deviation", half_width / NORMAL_QUANTILE if half_width else 1.0),
            "reads_stages": stored.get("reads_stages", False) is True,
            "grades": grades,
        }


def _is_finite(value: Any) -> bool:
    """Return whether a value from a file is a number within the range of a float."""
    return is_number(value) and -sys.float_info.max <= value <= sys.float_info.max
