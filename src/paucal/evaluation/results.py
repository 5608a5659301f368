"""Results of classifiers (single-label or multi-label), as plain values that can be stored as JSON."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, ClassVar, Self, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from paucal.metrics.intervals import Score, cross_validated
from paucal.types import UserError
from paucal.wording import percent

R = TypeVar("R")
MULTI_LABEL_KIND = "multi-label"  # value of the entry "kind" in stored reports on images with several labels


@dataclass(frozen=True)
class Majority:
    """The score of always predicting the most frequent class; if classes are tied, the one with most test images."""

    name: str
    top1: float  # fraction of the test images that belong to this class
    # True if the class is the most frequent of the training images; False if of the test images, because the labels of
    # the training images are unknown.
    from_train: bool
    tied: int = 1  # number of classes that are equally frequent, including this class

    def rank(self, n_classes: int) -> str:
        """Return a phrase such as "the most frequent class of the"; the caller appends the name of the images."""
        if self.tied == 1:
            return "the most frequent class of the"
        if self.tied == n_classes:
            return f"one of {n_classes} classes that are equally frequent in the"
        return f"one of the {self.tied} most frequent classes of the"


@dataclass(frozen=True)
class ClassRow:
    """The scores of one class of a single-label classifier; undefined scores are None."""

    name: str
    images: int  # number of test images of the class
    predicted: int  # number of test images predicted as this class
    precision: float | None  # fraction of these predictions that are correct; None if the class is never predicted
    recall: Score | None  # fraction of the class's images that are predicted as this class; None without test images
    f1: float | None  # harmonic mean of precision and recall; None if no label or prediction is this class


class StoredReport:
    """Base class of single-label and multi-label reports."""

    REQUIRED: ClassVar[tuple[str, ...]]  # scores that every stored report has, unless it is damaged
    scores: Mapping[str, Score]
    per_class: Sequence[Any]

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of the model's outputs."""
        return [row.name for row in self.per_class]

    @property
    def values(self) -> dict[str, float]:
        """The scores without their intervals."""
        return {name: score.value for name, score in self.scores.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a report from the result of `to_dict`."""
        try:
            report = _read_fields(cls, data)
            _ = [report.scores[name] for name in cls.REQUIRED]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
            raise UserError(f"the stored evaluation is damaged ({problem!r}): run `paucal eval` again.") from problem
        return report


@dataclass(frozen=True)
class ClassificationReport(StoredReport):
    """All scores of a classifier on one set of images, as plain values.

    Attributes:
        images: Number of images N.
        level: Confidence level of all intervals, such as 0.95.
        scores: "top1", "top5" (only if there are more than five classes), "balanced_accuracy", "roc_auc" (only if there
            are two classes), "macro_f1", "calibration_error" and "loss" (nats), in this order.
        majority: Score of always predicting the majority class, as a baseline.
        per_class: Scores of each class.
        confusion: (K, K) counts; rows are true classes, columns predicted classes.
        repeats: Number of repeats of the cross-validation; 0 if the scores are on test images.
        folds: Number of folds of the cross-validation; 0 if the scores are on test images.
        groups: Number of groups of similar images (the bootstrap resamples whole groups); None if images are
            independent.
    """

    REQUIRED = ("top1", "balanced_accuracy")
    images: int
    level: float
    scores: Mapping[str, Score]
    majority: Majority
    per_class: Sequence[ClassRow]
    confusion: Sequence[Sequence[int]]
    repeats: int = 0
    folds: int = 0
    groups: int | None = None

    def cross_validated(self, hits: NDArray[np.bool_], folds: int) -> "ClassificationReport":
        """Convert this report on the first repeat of a cross-validation to a report on all repeats.

        The accuracy becomes the mean over all repeats. Only the accuracy keeps an interval, since intervals of the
        other scores would assume independent images. `hits` are (R, N) booleans that say for each repeat whether the
        prediction for each image is correct.
        """
        scores = {name: Score(score.value) for name, score in self.scores.items()}
        scores["top1"] = cross_validated(hits, self.level, folds)
        return replace(self, scores=scores, repeats=len(hits), folds=folds)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as nested dicts and lists that can be stored as JSON without loss."""
        return {**asdict(self), "confusion": [list(row) for row in self.confusion]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a report from the result of `to_dict`, and check that the confusion matrix is K x K."""
        report = super().from_dict(data)
        if any(len(row) != len(report.per_class) for row in [report.confusion, *report.confusion]):
            raise UserError("the stored evaluation is damaged (confusion is not K x K): run `paucal eval` again.")
        return report


@dataclass(frozen=True)
class MultiLabelRow:
    """The scores of one class of a multi-label classifier; undefined scores are None, as in `ClassRow`."""

    name: str
    images: int
    share: float  # fraction of positives among the images with a known label; the average precision of a random ranking
    ap: Score | None  # average precision; None if the class has no test images
    threshold: float  # lowest probability at which the class is predicted
    predicted: int  # number of test images predicted as this class at the threshold
    # Scores at the threshold.
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True)
class MultiLabelReport(StoredReport):
    """All scores of a multi-label classifier on one set of images; see `ClassificationReport` for equal fields."""

    REQUIRED = ("map", "loss")
    images: int
    level: float
    # "map" (mean average precision), "macro_f1" (at the thresholds) and "loss" (nats per class and image).
    scores: Mapping[str, Score]
    per_class: Sequence[MultiLabelRow]
    groups: int | None = None

    @property
    def scored(self) -> list[MultiLabelRow]:
        """The classes that have a test image; mean scores are means over these classes."""
        return [row for row in self.per_class if row.ap is not None]

    @property
    def chance(self) -> float:
        """The mean average precision of a random ranking: the mean over classes of the fraction of positives."""
        return sum(row.share for row in self.scored) / max(1, len(self.scored))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as nested dicts and lists that can be stored as JSON without loss."""
        return {"kind": MULTI_LABEL_KIND, **asdict(self)}


Report = ClassificationReport | MultiLabelReport


def scored_part(report: Report) -> str:
    """Return an adjective for the scored images: "test", or "cross-validated" if the training images were scored."""
    return "cross-validated" if isinstance(report, ClassificationReport) and report.repeats else "test"


def read_report(data: Mapping[str, Any]) -> Report:
    """Rebuild a report from the result of `to_dict`."""
    is_multi_label = isinstance(data, Mapping) and data.get("kind") == MULTI_LABEL_KIND
    return MultiLabelReport.from_dict(data) if is_multi_label else ClassificationReport.from_dict(data)


def stored_number(value: Any) -> float:
    """Convert a value read from a file to a finite number; raise ValueError, TypeError or OverflowError if invalid."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number, got {number}")
    return number


def stored_count(value: Any) -> int:
    """Convert a value read from a file to an integer >= 0; raise ValueError, TypeError or OverflowError if invalid."""
    number = int(value)
    if number < 0:
        raise ValueError(f"expected a count, got {number}")
    return number


def stored_groups(data: Mapping[str, Any]) -> int | None:
    """Return the number of groups of images in a stored report; None if the images have no groups."""
    groups = data.get("groups")  # missing from older reports
    return None if groups is None else stored_count(groups)


def stored_optional(value: Any) -> float | None:
    """Convert a value read from a file to a finite number; None stays None."""
    return None if value is None else stored_number(value)


def stored_score(data: Mapping[str, Any]) -> Score:
    """Convert a dict read from a file to a score."""
    return Score(stored_number(data["value"]), stored_optional(data["low"]), stored_optional(data["high"]))


_READERS: Mapping[Any, Callable[[Any], Any]] = {
    str: str,
    bool: bool,
    int: stored_count,
    int | None: lambda value: None if value is None else stored_count(value),
    float: stored_number,
    float | None: stored_optional,
    Score | None: lambda data: None if data is None else stored_score(data),
    Mapping[str, Score]: lambda data: {str(name): stored_score(score) for name, score in data.items()},
    Majority: lambda data: _read_fields(Majority, data),
    Sequence[ClassRow]: lambda rows: [_read_fields(ClassRow, row) for row in rows],
    Sequence[MultiLabelRow]: lambda rows: [_read_fields(MultiLabelRow, row) for row in rows],
    Sequence[Sequence[int]]: lambda rows: [[stored_count(count) for count in row] for row in rows],
}


def _read_fields(kind: type[R], data: Mapping[str, Any]) -> R:
    """Build a dataclass from stored values, converted to the fields' types; fields with a default may be missing."""
    hints = get_type_hints(kind)
    present = [field.name for field in fields(kind) if field.name in data or field.default is MISSING]  # type: ignore[arg-type]
    return kind(**{name: _READERS[hints[name]](data[name]) for name in present})


@dataclass(frozen=True)
class PrimaryMetric:
    """The score by which models are selected."""

    score: str  # key of the score in reports
    title: str  # name of the score in messages
    short: str = ""  # abbreviation before a value; "" for accuracy, which is written as a percentage of images

    @property
    def column(self) -> str:
        """The name of the score's column in `metrics.csv`."""
        return f"val_{self.score}"

    def format_score(self, value: float, images: str = "") -> str:
        """Return a value of the score as text, followed by the name of the scored `images` unless this is "".

        Example:
            >>> ACCURACY.format_score(0.5, "validation images"), MEAN_PRECISION.format_score(0.5, "validation images")
            ('50.0 % of the validation images', 'mAP 50.0 % on the validation images')
        """
        number = f"{self.short} {percent(value)}".strip()
        return f"{number} {'on' if self.short else 'of'} the {images}" if images else number


ACCURACY = PrimaryMetric("top1", "accuracy")
MEAN_PRECISION = PrimaryMetric("map", "mean average precision", "mAP")


def primary_metric(several_labels: bool) -> PrimaryMetric:
    """Return mean average precision if images have several labels, otherwise accuracy."""
    return MEAN_PRECISION if several_labels else ACCURACY
