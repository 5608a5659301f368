"""What a result means, in sentences for someone who has never read a metric."""

import math
import shlex
from collections.abc import Mapping, Sequence
from statistics import median

from paucal.evaluation.curves import SPEED, best_epoch, validation_score, with_speed
from paucal.evaluation.results import ClassificationReport, MultiLabelReport
from paucal.metrics.intervals import Score
from paucal.report.inputs import RunFiles, Summary
from paucal.report.several_labels import headline_of_several, warnings_of_several
from paucal.wording import counted, percent

WIDE = 0.1
FEW_IMAGES = 10
GAP = 0.05
MAX_NAMES = 5


def headline(files: RunFiles) -> list[str]:
    """Return the result in a few sentences: test accuracy with interval, beside the majority class."""
    report = files.evaluation
    if report is None:
        return [*_validation_sentence(files), "The model has not been evaluated on test images yet."]
    if isinstance(report, MultiLabelReport):
        return [*headline_of_several(report), *_unselected(files)]
    top1 = report.scores["top1"]
    known = "training" if report.majority.from_train else "test"
    rank = report.majority.rank(len(report.per_class))
    return [
        f"The model named the right class for {percent(top1.value)} of {report.images} test images that were "
        "kept away from its training.",
        f"With this many images, the accuracy on further images of the same kind most likely lies between "
        f"{percent(top1.low or 0.0)} and {percent(1.0 if top1.high is None else top1.high)} "
        f"({percent(report.level, 'g')} interval).",
        f"Always answering {report.majority.name!r}, {rank} {known} images, would be "
        f"right for {percent(report.majority.top1)}.",
        *_unselected(files),
    ]


def warnings(files: RunFiles) -> list[str]:
    """Return what a careful reader should know before trusting the result; often empty."""
    report = files.evaluation
    if report is None:
        return []
    if isinstance(report, MultiLabelReport):
        return [*warnings_of_several(report), *_validation_gap(report.scores["map"], files)]
    checks = (_not_above_majority, _wide_interval, _few_images, _never_found)
    found = [sentence for check in checks for sentence in check(report)]
    return [*found, *_validation_gap(report.scores["top1"], files)]


def kept_validation_score(files: RunFiles) -> float | None:
    """Return the validation accuracy, or mAP, of the model that was kept, or None where it is unknown."""
    if files.summary.kept_val_score is not None:
        return files.summary.kept_val_score
    epoch = kept_epoch(files)
    for number, row in enumerate(files.rows, start=1):
        if row.get("epoch", number) == epoch and math.isfinite(validation_score(row)):
            return validation_score(row)
    return None


def kept_epoch(files: RunFiles) -> float | None:
    """Return the epoch whose weights were kept, or None where it is unknown or no epoch's were."""
    if files.summary.kept is not None:
        return None
    return best_epoch(files.rows) if files.summary.best_epoch is None else files.summary.best_epoch


def _unselected(files: RunFiles) -> list[str]:
    if files.summary.selected:
        return []
    return ["No images were kept for validation: the model is that of the last epoch, and nothing was selected."]


def _validation_sentence(files: RunFiles) -> list[str]:
    value = kept_validation_score(files)
    if value is None:
        return []
    if any("val_map" in row for row in files.rows):
        return [
            f"The mean average precision on the validation images is {percent(value)}; they also chose the epoch that "
            "was kept, so the number is a little too good."
        ]
    return [
        f"The model named the right class for {percent(value)} of the validation images; they also chose the "
        "epoch that was kept, so the number is a little too good."
    ]


def _not_above_majority(report: ClassificationReport) -> list[str]:
    low, line = report.scores["top1"].low or 0.0, report.majority
    if low > line.top1:
        return []
    return [
        f"The accuracy is not clearly above that of always answering {line.name!r} ({percent(line.top1)}): "
        "the model may have learned nothing of use. Look at the curves and at the labels."
    ]


def _wide_interval(report: ClassificationReport) -> list[str]:
    top1 = report.scores["top1"]
    width = (1.0 if top1.high is None else top1.high) - (top1.low or 0.0)
    if width <= WIDE:
        return []
    return [
        f"The interval is {100 * width:.0f} points wide because the test has only "
        f"{counted(report.images, 'image')}; "
        "four times as many would halve it. Do not choose between models that differ by less than this."
    ]


def _few_images(report: ClassificationReport) -> list[str]:
    few = [f"{row.name} ({row.images})" for row in report.per_class if row.images < FEW_IMAGES]
    if not few:
        return []
    return [
        f"{_count(few, 'class has', 'classes have')} fewer than {FEW_IMAGES} test images, too few to judge "
        f"by: {_names(few)}."
    ]


def _never_found(report: ClassificationReport) -> list[str]:
    missed = [row.name for row in report.per_class if row.recall is not None and row.recall.value == 0]
    if not missed:
        return []
    return [f"{_count(missed, 'class was', 'classes were')} never recognised: {_names(missed)}."]


def _validation_gap(score: Score, files: RunFiles) -> list[str]:
    validation = kept_validation_score(files)
    if validation is None or score.high is None:
        return []
    if validation - score.value <= GAP or validation <= score.high:
        return []
    return [
        f"The score on validation images ({percent(validation)}) is much higher than on test images "
        f"({percent(score.value)}): the test images may be of another kind, or validation images too similar "
        "to those trained on."
    ]


def _count(items: Sequence[str], one: str, many: str) -> str:
    return f"{len(items)} {one if len(items) == 1 else many}"


def _names(items: Sequence[str]) -> str:
    shown = ", ".join(items[:MAX_NAMES])
    return shown if len(items) <= MAX_NAMES else f"{shown} and {len(items) - MAX_NAMES} more"


def trained(files: RunFiles) -> Mapping[str, str]:
    """Return what was trained as names and texts, without what is unknown."""
    summary, epoch = files.summary, kept_epoch(files)
    known = {
        "model": summary.model,
        "parameters": None if summary.parameters is None else f"{summary.parameters:,}",
        "token grid": summary.grid,
        "method": summary.method,
        "epochs": None if summary.epochs is None else f"{summary.epochs:g}",
        "epoch kept": None if epoch is None else f"{epoch:g}{'' if summary.selected else ', the last'}",
        "kept": summary.kept,
        **cost(files),
    }
    return {name: value for name, value in known.items() if value is not None}


def cost(files: RunFiles) -> dict[str, str | None]:
    """Return what a run took, as names and texts; None for what is unknown."""
    summary = files.summary
    return {
        "training time": None if summary.seconds is None else duration(summary.seconds),
        "speed": _speed(files),
        "peak memory": None if summary.peak_memory is None else f"{summary.peak_memory / 2**30:.2f} GiB",
    }


def training_images(summary: Summary) -> int | None:
    """Return how many images an epoch shows; None where the run does not say."""
    return next((part.images for part in summary.parts if part.name == "train"), None)


def _speed(files: RunFiles) -> str | None:
    """Return the images per second of the middle epoch, its validation among them."""
    images = training_images(files.summary)
    rows = [] if images is None else with_speed(files.rows, images)
    found = [row[SPEED] for row in rows if SPEED in row]
    return f"{median(found):.3g} training images a second, with the validation of each epoch" if found else None


def again(files: RunFiles) -> list[str]:
    """Return the commands that make the run again: with its settings as they were chosen, and as it was begun."""
    found = []
    if files.settings:
        verb, config = shlex.quote(files.verb), shlex.quote(str(files.run.config))
        found.append(f"paucal {verb} --config {config}   # every setting as it was chosen, in a new folder")
    if "command" in files.environment:
        found.append(f"{files.environment['command']}   # as it was begun; what is not given is chosen again")
    return found


def confidence_sentence(files: RunFiles) -> str | None:
    """Return what a temperature has done to the probabilities; None where none was fitted."""
    found = files.summary.confidence
    if found is None or found.temperature == 1.0:
        return None
    return (
        f"Confidence was off by {percent(found.before)} on average before a temperature of {found.temperature:.2f} was "
        f"fitted to {counted(found.images, 'validation image')}, and is by {percent(found.after)} with it; the scores "
        "here are with it. The answers are the same."
    )


def duration(seconds: float) -> str:
    """Return a length of time as a person would say it.

    >>> duration(42), duration(600), duration(5400)
    ('42 seconds', '10 minutes', '1.5 hours')
    """
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
