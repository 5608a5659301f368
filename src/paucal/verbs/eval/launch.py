"""`paucal.evaluate`: evaluate a trained model on labelled images, or a frozen backbone with published protocols."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from paucal.data.arguments import path_text
from paucal.evaluation.protocols.evaluate import PROTOCOLS, Protocol
from paucal.metrics.intervals import Score
from paucal.models.tasks import CLASSIFICATION, DETECTION, REGRESSION, SEGMENTATION, task_of
from paucal.runner.console import Console, RecordingConsole
from paucal.runner.frames import Data, replace_frame_by_path
from paucal.settings.options import check_ranges, flag
from paucal.settings.values import settings_from_keywords, with_settings_signature
from paucal.types import UserError
from paucal.verbs.eval.classification import ClassifiedSet, evaluate_classifier
from paucal.verbs.eval.frozen import FrozenTable, evaluate_frozen
from paucal.verbs.eval.images import MASKS, check_result_folders, table_folder
from paucal.verbs.eval.regression import PLOT, RegressionSet, evaluate_regressor
from paucal.verbs.eval.settings import EvalSettings, FrozenSettings

if TYPE_CHECKING:
    from paucal.verbs.eval.detection import DetectedSet
    from paucal.verbs.eval.segmentation import SegmentedSet

Source = str | os.PathLike[str]


@dataclass(frozen=True)
class Finding:
    """One score of an evaluation.

    Attributes:
        data: Name of the data set.
        protocol: "classification", "knn", "linear", "logistic", "correspondence" or "few-labels"; or "detection",
            "segmentation" or "regression" for runs of these tasks.
        setting: Setting of the protocol, such as "k = 20"; "" if the protocol has no settings.
        score: Name of the score.
        model: Name of the model. The scores of the evaluated model come before those of the models it is compared with.
        value: Value of the score: a fraction from 0 to 1, a distance in pixels (correspondence), a loss in nats, or an
            error in the unit of the target (regression).
        low: Lower end of the interval; None if the score has no interval.
        high: Upper end of the interval; None if the score has no interval.
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
    """The result of an evaluation.

    Attributes:
        model: Evaluated model: a run folder, a weights file, or the name of a timm model.
        classification: Report on each data set; empty if classification was not requested.
        frozen: Scores of frozen features; None if they were not requested.
        detection: Scores of a detector on each data set; empty for other models.
        segmentation: Scores of a segmentation network on each data set; empty for other models.
        regression: Scores of a regression model on each data set; empty for other models.
        said: Lines that the command line prints in addition to its tables: notes, warnings, and folders of the results.
    """

    model: str
    classification: Sequence[ClassifiedSet] = ()
    frozen: FrozenTable | None = None
    said: Sequence[str] = ()
    detection: "Sequence[DetectedSet]" = ()
    segmentation: "Sequence[SegmentedSet]" = ()
    regression: Sequence[RegressionSet] = ()

    @property
    def findings(self) -> list[Finding]:
        """Every score that the command line prints, in the same order; `pandas.DataFrame` accepts this list."""
        findings: list[Finding] = []

        def add(data: str, line: tuple[str, str, str], model: str, score: Score) -> None:
            findings.append(Finding(data, *line, model, score.value, score.low, score.high))

        for evaluated in self.classification:
            for name, score in evaluated.report.scores.items():
                add(evaluated.data, ("classification", "", name), self.model, score)
            if evaluated.real is not None:
                add(evaluated.data, ("classification", "real labels", "top1"), self.model, evaluated.real.top1)
        for row in [row for row in self.frozen.rows if row.line.headline] if self.frozen else []:
            for model, score in row.scores.items():
                add(row.data, (row.line.protocol, row.line.setting, row.line.score), model, score)
        task_sets = {"detection": self.detection, "regression": self.regression, "segmentation": self.segmentation}
        for task, sets in task_sets.items():
            for evaluated in sets:
                for name, score in evaluated.scores.items():
                    add(evaluated.data, (task, "", name), self.model, score)
        return findings

    def score(self, protocol: str = "classification", data: str | None = None) -> Score:
        """Return the model's first printed score for a protocol, with its interval.

        Args:
            protocol: Name of the protocol. For "classification", the score is the accuracy, or the mAP for images with
                several labels; for other protocols, it is the score with the default setting.
            data: Name of the data set; None for the first data set.

        Raises:
            KeyError: The model was not evaluated by this protocol on this data set.
        """
        for finding in self.findings:
            if finding.protocol == protocol and data in (None, finding.data):
                return Score(finding.value, finding.low, finding.high)
        raise KeyError(f"{self.model} was not evaluated by {protocol!r}{f' on {data!r}' if data else ''}")

    @property
    def metrics(self) -> dict[str, float]:
        """Scores on the first data set, by the names that the training command uses; empty for frozen features."""
        for scored in (*self.detection, *self.segmentation, *self.regression):
            return dict(scored.metrics)
        return self.classification[0].report.values if self.classification else {}


@with_settings_signature(EvalSettings)
def evaluate(subject: Source, /, data: Data | Sequence[Source] | None = None, **settings: Any) -> Evaluation:
    """Evaluate a model on images with labels, boxes or masks; the same as `paucal eval`.

    Args:
        subject: A run folder, or for frozen features also a weights file or the name of a timm model.
        data: One or several sources of labelled images, or a DataFrame; by default the run's own test images.
        **settings: Any field of `paucal.verbs.eval.settings.EvalSettings`, such as `protocol`, `device` or
            `output`.

    Returns:
        The scores, which are also written to files.

    Raises:
        UserError: A model or a data set does not exist, or is not supported by a protocol.
        TypeError: A setting does not exist.

    Example:
        >>> found = paucal.evaluate("runs/1", "photos/", protocol=["classification", "knn"])  # doctest: +SKIP
        >>> found.metrics["top1"], found.score("knn")  # doctest: +SKIP
        (0.93, Score(value=0.88, low=0.85, high=0.91))
    """
    locations, settings = replace_frame_by_path(data, settings)
    resolved = settings_from_keywords(EvalSettings, settings, "paucal.evaluate", "eval")
    sources = [] if locations is None else [locations] if isinstance(locations, str | os.PathLike) else locations
    console = RecordingConsole()
    paths = [os.fspath(source) for source in sources]
    return replace(evaluate_model(path_text(subject, "the model"), paths, resolved, console), said=tuple(console.said))


def evaluate_model(model: str, data: Sequence[str], settings: EvalSettings, console: Console) -> Evaluation:
    """Evaluate a model with all requested protocols; print and store the results; see `evaluate`."""
    check_ranges(settings)
    requested = settings.protocols
    if settings.real_labels is not None and (len(data) > 1 or "classification" not in requested):
        raise UserError("--real-labels needs --protocol classification and exactly one DATA.")
    reasons = {
        "part": "is not supported for frozen features, which are always evaluated on the test images",
        "mirror": "averages the predictions of a classifier",
        "precision": "is only for classifiers",
    }
    for name, reason in reasons.items() if "classification" not in requested else ():
        if getattr(settings, name):
            raise UserError(f"--{name} {reason}: give --protocol classification, or remove --{name}.")
    protocols: list[Protocol] = [name for name in PROTOCOLS if name in requested]
    for item in fields(FrozenSettings) if not protocols else ():
        if item.name != "seed" and getattr(settings, item.name) != item.default:  # the seed has other uses
            raise UserError(
                f"{flag(item.name)} is for frozen features: give --protocol with {', '.join(PROTOCOLS[:-1])} or "
                f"{PROTOCOLS[-1]}, or remove {flag(item.name)}."
            )
    task = task_of(model) if "classification" in requested else CLASSIFICATION
    if settings.scales is not None and task != SEGMENTATION:
        raise UserError(f"--scales needs a segmentation model, but {model} is for {task}: remove --scales.")
    if task != CLASSIFICATION:
        return _evaluate_task(model, data, task, settings, console)
    check_result_folders(model, data, settings)
    reports = evaluate_classifier(model, data, settings, console) if "classification" in requested else []
    folder = table_folder(model, settings)
    table = evaluate_frozen(model, data, protocols, settings, folder, console) if protocols else None
    return Evaluation(model, reports, table)


def _evaluate_task(model: str, data: Sequence[str], task: str, settings: EvalSettings, console: Console) -> Evaluation:
    if settings.protocol is not None:
        raise UserError(
            f"--protocol is for classifiers and frozen features, but {model} is for {task}: remove --protocol, or "
            "evaluate only its features with --protocol knn, linear or logistic."
        )
    for name in ("real_labels", "precision") if task == SEGMENTATION else ("mirror", "real_labels", "precision"):
        if getattr(settings, name):
            raise UserError(f"{flag(name)} is for classifiers, but {model} is for {task}: remove {flag(name)}.")
    check_result_folders(model, data, settings, {SEGMENTATION: [MASKS], REGRESSION: [PLOT]}.get(task, []))
    if task == REGRESSION:
        return Evaluation(model, regression=evaluate_regressor(model, data, settings, console))
    # Imported here, since these modules load the libraries that score boxes and masks.
    if task == DETECTION:
        from paucal.verbs.eval.detection import evaluate_detector

        return Evaluation(model, detection=evaluate_detector(model, data, settings, console))
    from paucal.verbs.eval.segmentation import evaluate_segmenter

    return Evaluation(model, segmentation=evaluate_segmenter(model, data, settings, console))
