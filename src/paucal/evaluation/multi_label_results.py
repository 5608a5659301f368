"""The results on images that have several labels, as plain values that survive a JSON file."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paucal.evaluation.results import stored_count, stored_number, stored_optional, stored_score
from paucal.metrics.intervals import Score
from paucal.types import UserError

KIND = "multi-label"


@dataclass(frozen=True)
class MultiLabelRow:
    """The scores of one class; None where the images leave a score undefined.

    Attributes:
        name: of the class.
        images: how many test images are of it.
        share: these, of the images of which it is known; what an order by chance reaches as average precision.
        ap: average precision with its interval; None if no image is of the class.
        threshold: probability from which on the class is an answer.
        predicted: how many test images were given this class at the threshold.
        precision: share of those that are right; None if there are none.
        recall: share of the class's images found at the threshold; None if it has no image.
        f1: harmonic mean of the two; None if the class occurs in neither.
    """

    name: str
    images: int
    share: float
    ap: Score | None
    threshold: float
    predicted: int
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True)
class MultiLabelReport:
    """Everything about a classifier of several labels on one set of images, as plain values.

    Attributes:
        images: N.
        level: of all intervals.
        scores: "map" (mean average precision), "macro_f1" (at the thresholds) and "loss" (nats for a class and an
            image), in this order.
        per_class: one row per class.
    """

    images: int
    level: float
    scores: Mapping[str, Score]
    per_class: Sequence[MultiLabelRow]

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of the model's answers."""
        return [row.name for row in self.per_class]

    @property
    def values(self) -> dict[str, float]:
        """The scores without their intervals."""
        return {name: score.value for name, score in self.scores.items()}

    @property
    def judged(self) -> list[MultiLabelRow]:
        """The classes that have a test image, over which the mean is taken."""
        return [row for row in self.per_class if row.ap is not None]

    @property
    def chance(self) -> float:
        """The mean average precision that an order by chance reaches: the mean share of images of a class."""
        return sum(row.share for row in self.judged) / max(1, len(self.judged))

    def to_dict(self) -> dict[str, Any]:
        """Return nested dicts and lists that JSON can hold without loss."""
        return {"kind": KIND, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "MultiLabelReport":
        """Rebuild a report from `to_dict`'s value.

        Raises:
            UserError: the value is something else.
        """
        try:
            report = cls(
                stored_count(data["images"]),
                stored_number(data["level"]),
                {str(name): stored_score(score) for name, score in data["scores"].items()},
                [_row(row) for row in data["per_class"]],
            )
            _ = report.scores["map"], report.scores["loss"]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
            raise UserError(f"the stored evaluation is damaged ({problem!r}): run `paucal eval` again.") from problem
        return report


def _row(data: Mapping[str, Any]) -> MultiLabelRow:
    return MultiLabelRow(
        str(data["name"]),
        stored_count(data["images"]),
        stored_number(data["share"]),
        None if data["ap"] is None else stored_score(data["ap"]),
        stored_number(data["threshold"]),
        stored_count(data["predicted"]),
        stored_optional(data["precision"]),
        stored_optional(data["recall"]),
        stored_optional(data["f1"]),
    )
