"""The card of a model that predicts a number, and how its output is read: as a number, or as one of a few grades."""

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

LEVEL = 0.9  # share of images whose number an interval should contain
HALF_WIDTH = 1.645  # standard deviations on either side of the mean that contain this share of a normal distribution
MAX_GRADES = 12  # grades of a scale
Values = NDArray[np.float64]


class Numbers(NamedTuple):
    """The predictions of a model for N images.

    Attributes:
        predicted: (N,) numbers.
        low: (N,) lower ends of 90 % intervals.
        high: (N,) upper ends.
    """

    predicted: Values
    low: Values
    high: Values


@dataclass(frozen=True)
class Grades:
    """Whole numbers in order, as a cumulative logit model of the network's output z (McCullagh, 1980).

    The probability of the k-th grade or a lower one is sigmoid(slope (cuts[k] - z)).

    Attributes:
        lowest: First grade.
        cuts: (K - 1,) ascending.
        slope: Above 0.

    Example:
        >>> Grades(1, (1.5, 2.5), 2.0).shares(np.array([2.0])).round(2).tolist()
        [[0.27, 0.46, 0.27]]
    """

    lowest: int
    cuts: tuple[float, ...]
    slope: float

    @property
    def names(self) -> tuple[int, ...]:
        """The K grades."""
        return tuple(range(self.lowest, self.lowest + len(self.cuts) + 1))

    def cumulative(self, outputs: Values) -> Values:
        """Return (N, K + 1) probabilities: of less than the first grade (0), up to the first, ..., up to the last."""
        logits = self.slope * (np.asarray(self.cuts) - outputs[:, None])
        inner = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
        return np.pad(inner, ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1)))

    def shares(self, outputs: Values) -> Values:
        """Return (N, K) probabilities of the grades."""
        return np.diff(self.cumulative(outputs), axis=1)

    def misses(self, outputs: Values, truth: Values) -> Values:
        """Return (N,) shares of probability on either side of the median up to the true grades, 0 for the median."""
        rows, index = np.arange(len(truth)), (truth - self.lowest).astype(np.int64)
        up_to = self.cumulative(outputs)
        return np.maximum(0.0, np.maximum(0.5 - up_to[rows, index + 1], up_to[rows, index] - 0.5))

    def read(self, outputs: Values, margin: float) -> Numbers:
        """Return the medians, and the grades that reach `margin` of the probability to either side of them."""
        up_to = self.cumulative(outputs)
        ends = [(up_to[:, 1:] < 0.5 - share).sum(1) for share in (0.0, margin)]
        high = (up_to[:, :-1] <= 0.5 + margin).sum(1) - 1
        return Numbers(*(self.lowest + place.astype(np.float64) for place in (*ends, high)))


@dataclass(frozen=True)
class RegressionCard(ModelCard):
    """The `model.json` of a network whose only output is a number in the unit of its target.

    `classes` has the name of the target alone.

    Attributes:
        half_width: Half the width of 90 % prediction intervals, of grades as a share of probability; infinite if there
            were too few images for one.
        mean: Mean of the target over the training images.
        deviation: Standard deviation of the target over the training images.
        grades: Grades that the number stands for; None if it is the prediction itself.
    """

    task: ClassVar[str] = REGRESSION
    formats: ClassVar[tuple[int, ...]] = (1,)

    half_width: float = math.inf
    mean: float = 0.0
    deviation: float = 1.0
    grades: Grades | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        half_width = 0.0 if self.half_width == math.inf else self.half_width
        if not all(map(_is_finite, (self.mean, self.deviation, half_width))) or self.deviation <= 0 or half_width < 0:
            raise UserError(
                "a model card has a mean that is not a number, a deviation that is not above 0, or a half_width below "
                "0: restore it."
            )
        if self.grades is not None and not _are_valid(self.grades):
            raise UserError("a model card has grades without ascending cuts and a slope above 0: restore it.")

    @property
    def target(self) -> str:
        """Name of the column that is predicted."""
        return self.classes[0]

    def shares(self, logits: Tensor) -> Tensor:
        """Return the (N, 1) outputs of the network as they are."""
        return logits.float()

    def read(self, outputs: Values) -> Numbers:
        """Return the predictions that (N,) outputs of the network stand for."""
        if self.grades is not None:
            return self.grades.read(outputs, self.half_width)
        return Numbers(outputs, outputs - self.half_width, outputs + self.half_width)

    def describe(self, output: float) -> str:
        """Return the prediction of one output, as text.

        Example:
            >>> card.describe(19.38)  # doctest: +SKIP
            'cells 19.4 (12.2 to 26.5)'
        """
        prediction = self.read(np.array([output], dtype=np.float64))
        between = f" ({prediction.low[0]:.3g} to {prediction.high[0]:.3g})" if np.isfinite(prediction.low[0]) else ""
        return f"{self.target} {prediction.predicted[0]:.3g}{between}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        half_width = None if self.half_width == math.inf else self.half_width
        number_values = {"half_width": half_width, "mean": self.mean, "deviation": self.deviation}
        grades = {} if self.grades is None else {"grades": {**vars(self.grades), "cuts": list(self.grades.cuts)}}
        return {**super().to_dict(), "task": self.task, **number_values, **grades}

    @classmethod
    def _read_task_fields(cls, stored: Mapping[str, Any], spec: BackboneSpec) -> tuple[int, dict[str, Any]]:
        half_width, grades = stored["half_width"], stored.get("grades")
        if grades is not None:
            grade_values = {field.name: grades[field.name] for field in fields(Grades)}
            grades = Grades(**{**grade_values, "cuts": tuple(grade_values["cuts"])})
        return spec.num_classes, {
            "half_width": math.inf if half_width is None else half_width,
            "mean": stored["mean"],
            # Cards of earlier versions have none: the deviation of the errors is in the same unit, and no larger.
            "deviation": stored.get("deviation", half_width / HALF_WIDTH if half_width else 1.0),
            "reads_stages": stored.get("reads_stages", False) is True,
            "grades": grades,
        }


def _is_finite(value: Any) -> bool:
    """Return whether a value of a file is a number that a float can hold."""
    return is_number(value) and -sys.float_info.max <= value <= sys.float_info.max


def _are_valid(grades: Grades) -> bool:
    values = (grades.lowest, grades.slope, *grades.cuts)
    return (
        all(map(_is_finite, values))
        and type(grades.lowest) is int
        and grades.slope > 0
        and 1 <= len(grades.cuts) < MAX_GRADES
        and list(grades.cuts) == sorted(grades.cuts)
    )
