"""What `paucal.evaluate` returns: the numbers that the command line prints."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paucal.metrics.intervals import Score
from paucal.verbs.eval.classification import ClassifiedSet
from paucal.verbs.eval.frozen import FrozenTable

if TYPE_CHECKING:
    from paucal.verbs.eval.detection import DetectedSet
    from paucal.verbs.eval.segmentation import SegmentedSet


@dataclass(frozen=True)
class Finding:
    """One number.

    Attributes:
        data: name of the data set.
        protocol: "classification", "knn", "linear", "logistic", "correspondence" or "few-labels"; "detection" or
            "segmentation" for such runs.
        setting: of the protocol, such as "k = 20"; empty where it has none.
        score: what is measured.
        model: which of the models; the one that was asked about comes first.
        value: a share in [0, 1], a distance in pixels (correspondence), or nats (loss).
        low: lower end of the interval; None where the images allow no statement.
        high: upper end.
    """

    data: str
    protocol: str
    setting: str
    score: str
    model: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Evaluation:
    """What is known of a model after it was judged.

    Attributes:
        model: what was judged: a run folder, a file or the name of a timm model.
        classification: the report on each data set; empty where that was not asked for.
        frozen: the table of frozen features; None where none was asked for.
        detection: the scores of a detector on each data set; empty for other models.
        segmentation: those of a segmentation network.
        said: what the command line prints beside its tables: notes, warnings, where the results lie.
    """

    model: str
    classification: Sequence[ClassifiedSet] = ()
    frozen: FrozenTable | None = None
    said: Sequence[str] = ()
    detection: "Sequence[DetectedSet]" = ()
    segmentation: "Sequence[SegmentedSet]" = ()

    @property
    def findings(self) -> list[Finding]:
        """Every number that the command line prints, in its order; `pandas.DataFrame` takes them as they are."""
        return [*self._of_reports(), *self._of_table(), *self._of_places()]

    def score(self, protocol: str = "classification", data: str | None = None) -> Score:
        """Return the model's first printed score by a protocol, with its interval.

        Args:
            protocol: which; the accuracy (mAP of several labels) for "classification", the usual setting of the
                others.
            data: name of the data set; the first where it is left out.

        Raises:
            KeyError: the model was not judged by that protocol on that set.
        """
        for one in self.findings:
            if one.protocol == protocol and data in (None, one.data):
                return Score(one.value, one.low, one.high)
        raise KeyError(f"{self.model} was not judged by {protocol!r}{f' on {data!r}' if data else ''}")

    @property
    def metrics(self) -> dict[str, float]:
        """The scores on the first data set, as the verb that trained gives them; empty for frozen features."""
        if self.detection:
            return dict(self.detection[0].metrics)
        if self.segmentation:
            return self.segmentation[0].metrics
        return self.classification[0].report.values if self.classification else {}

    def _of_reports(self) -> Iterator[Finding]:
        for one in self.classification:
            for name, score in one.report.scores.items():
                yield _finding(one.data, ("classification", "", name), self.model, score)
            if one.real is not None:
                yield _finding(one.data, ("classification", "real labels", "top1"), self.model, one.real.top1)

    def _of_places(self) -> Iterator[Finding]:
        for one in self.detection:
            for name, score in one.scores.items():
                yield _finding(one.data, ("detection", "", name), self.model, score)
        for one in self.segmentation:
            for name, score in (("mean_iou", one.report.mean_iou), ("pixel_accuracy", one.report.accuracy)):
                yield _finding(one.data, ("segmentation", "", name), self.model, score)

    def _of_table(self) -> Iterator[Finding]:
        for row in self.frozen.rows if self.frozen else ():
            if row.line.headline:
                about = (row.line.protocol, row.line.setting, row.line.score)
                for model, score in row.scores.items():
                    yield _finding(row.data, about, model, score)


def _finding(data: str, about: tuple[str, str, str], model: str, score: Score) -> Finding:
    return Finding(data, *about, model, score.value, score.low, score.high)
