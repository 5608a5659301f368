"""Storage of the results of an evaluation in a folder: scores, tables and figures."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from paucal.data.images import ImageSet
from paucal.evaluation.calibration import DEFAULT_THRESHOLD, reach_thresholds
from paucal.evaluation.classification import classification_report, multi_label_report
from paucal.evaluation.plots import (
    Disagreement,
    Mistake,
    class_precision_figure,
    confusion_figure,
    mistakes_figure,
    most_confident_disagreements,
    per_class_figure,
    precision_recall_figure,
    reliability_figure,
    save_figure,
    worst_mistakes,
)
from paucal.evaluation.predictions import UNLABELLED, Predictions
from paucal.evaluation.protocols.data import metric_of
from paucal.evaluation.results import ClassificationReport, MultiLabelReport, Report
from paucal.metrics.intervals import Score
from paucal.metrics.measures import METRIC_TITLES
from paucal.models.card import ModelCard
from paucal.wording import counted, images_text, percent
from paucal.writing import csv_text, write_text

MAX_MISTAKES_SHOWN = 16


def record_classification(
    folder: Path,
    plots: Path,
    predictions: Predictions,
    images: ImageSet,
    classes: Sequence[str],
    train_labels: Tensor | None = None,
    repeated: tuple[NDArray[np.bool_], int] | None = None,
) -> ClassificationReport:
    """Score predictions and write `metrics.json`, `per_class.csv`, `predictions.csv` and the figures.

    The tables are written to `folder`, and the figures to `plots`; missing folders are created. The ids of the
    predictions are positions in `images`. `train_labels` determine the majority class, whose score is the baseline.

    For images that were cross-validated, `repeated` is a tuple of (R, N) booleans, which say whether each image was
    classified correctly in each of R repeats, and the number of folds. `predictions` are then from the first repeat.
    For test images, `repeated` is None.
    """
    report = classification_report(predictions, classes, train_labels)
    if repeated is not None:
        report = report.cross_validated(*repeated)
    keys = _write_report(folder, plots, report, predictions, images)
    write_predictions(folder / "predictions.csv", predictions, keys, classes)
    save_figure(plots / "confusion.png", confusion_figure(report.confusion, classes))
    save_figure(plots / "per_class.png", per_class_figure(report))
    save_figure(plots / "reliability.png", reliability_figure(predictions))
    _save_mistakes(plots, worst_mistakes(predictions, MAX_MISTAKES_SHOWN), images, classes)
    return report


def record_multi_label(
    folder: Path, plots: Path, predictions: Predictions, images: ImageSet, card: ModelCard
) -> MultiLabelReport:
    """Score predictions for images with several labels; write `metrics.json`, two CSV tables and the figures."""
    classes, thresholds = card.classes, card.thresholds or (DEFAULT_THRESHOLD,) * len(card.classes)
    report = multi_label_report(predictions, classes, thresholds)
    keys = _write_report(folder, plots, report, predictions, images)
    write_predictions(folder / "predictions.csv", predictions, keys, classes, thresholds)
    save_figure(plots / "per_class.png", class_precision_figure(report))
    save_figure(plots / "precision_recall.png", precision_recall_figure(predictions, report))
    _save_mistakes(plots, most_confident_disagreements(predictions, MAX_MISTAKES_SHOWN), images, classes)
    return report


def _write_report(folder: Path, plots: Path, report: Report, predictions: Predictions, images: ImageSet) -> list[str]:
    """Create the folders, write `metrics.json` and `per_class.csv`; return the keys of the images."""
    folder.mkdir(parents=True, exist_ok=True)
    plots.mkdir(parents=True, exist_ok=True)
    write_text(folder / "metrics.json", json.dumps(report.to_dict(), indent=2) + "\n")
    write_per_class(folder / "per_class.csv", report)
    return [images.keys[int(i)] for i in predictions.ids]


def _save_mistakes(
    plots: Path, mistakes: Sequence[Mistake | Disagreement], images: ImageSet, classes: Sequence[str]
) -> None:
    (plots / "mistakes.png").unlink(missing_ok=True)  # it may be left over from an earlier evaluation
    if mistakes:
        mistake_images = [images.store.read(mistake.id) for mistake in mistakes]
        save_figure(plots / "mistakes.png", mistakes_figure(mistake_images, mistakes, classes))


TITLES = {
    "top1": ("accuracy (top-1)", "fraction of images whose predicted class is correct"),
    "top5": ("top-5 accuracy", "fraction of images whose class is among the five likeliest"),
    "balanced_accuracy": ("balanced accuracy", "mean recall over classes; rare classes count equally"),
    "roc_auc": ("ROC-AUC", "probability that an image of the second class gets a higher score than one of the first"),
    "macro_f1": ("macro-F1", "mean F1 over classes; false positives count too"),
    "calibration_error": ("calibration error", "mean difference of confidence and accuracy"),
    "loss": ("loss (nats)", "mean negative log-likelihood of the true class"),
}
MULTI_LABEL_TITLES = {
    "map": ("mean average precision (mAP)", "how well images of a class rank above other images, mean over classes"),
    "macro_f1": ("macro-F1", "mean F1 over classes, at thresholds chosen on validation images"),
    "loss": ("loss (nats)", "mean binary cross-entropy of an image and a class"),
}
NO_INTERVAL = "-"  # text for an interval or a score that does not exist


@dataclass(frozen=True)
class ScoreLine:
    """One row of the printed table of scores."""

    title: str
    value: str
    interval: str
    meaning: str


def score_lines(report: Report) -> list[ScoreLine]:
    """Return the scores of a report as text, with the score of a trivial classifier below the accuracy or mAP."""
    if isinstance(report, MultiLabelReport):
        score_rows = [_score_line(name, score, MULTI_LABEL_TITLES) for name, score in report.scores.items()]
        meaning = "mAP of a random order, which is the mean fraction of images of a class"
        return [score_rows[0], ScoreLine("by chance", percent(report.chance), "", meaning), *score_rows[1:]]
    lines = [_score_line(name, score) for name, score in report.scores.items()]
    source = "training images" if report.majority.from_train else "test images (training labels unknown)"
    meaning = f"always predicting {report.majority.name!r}, {report.majority.rank(len(report.per_class))} {source}"
    return [lines[0], ScoreLine("majority class", percent(report.majority.top1), "", meaning), *lines[1:]]


def usual_metric_line(report: Report, data: str) -> str | None:
    """Return the score in the usual metric of a published data set as text; None if the usual metric is accuracy."""
    metric = metric_of(data)
    name = {"mean_per_class": "balanced_accuracy", "roc_auc": "roc_auc"}.get(metric)
    if name is None or name not in report.scores:
        return None
    line = _score_line(name, report.scores[name])
    return f"{METRIC_TITLES[metric]}, the usual metric of {data}: {line.value} ({line.interval})"


def report_table(report: Report) -> Table:
    """Return a report's scores as a table for the terminal."""
    size = f"{images_text(report.images, report.groups)}, {counted(len(report.per_class), 'class', 'classes')}"
    return lines_table(size, report.level, score_lines(report))


def lines_table(title: str, level: float, lines: Iterable[ScoreLine]) -> Table:
    """Return scores as a table for the terminal; `level` is the confidence level of their intervals."""
    table = Table(title=title, title_justify="left")
    table.add_column("score")
    table.add_column("value", justify="right")
    table.add_column(f"{percent(level, 'g')} interval", justify="right")
    table.add_column("meaning", style="dim")
    for line in lines:
        table.add_row(line.title, line.value, line.interval, escape(line.meaning))
    return table


def write_per_class(path: Path, report: Report) -> None:
    """Write one CSV row per class, with a column per field; undefined scores stay empty."""
    scored = "ap" if isinstance(report, MultiLabelReport) else "recall"  # the score with an interval, in three columns
    rows = []
    for row in report.per_class:
        cells: dict[str, Any] = {"class": row.name}
        for name, value in vars(row).items():
            if name == scored:
                score_cells = (value.value, value.low, value.high) if value else (None,) * 3
                cells |= zip((name, f"{name}_low", f"{name}_high"), score_cells, strict=True)
            elif name != "name":
                cells[name] = value
        rows.append(cells)
    write_text(path, csv_text([*rows[0]], *(cells.values() for cells in rows)))


def write_predictions(
    path: Path,
    predictions: Predictions,
    keys: Sequence[str],
    classes: Sequence[str],
    thresholds: Sequence[float] | None = None,
) -> None:
    """Write one CSV row per image: key, label (empty if unknown), predicted class, confidence, probabilities.

    For images with several labels, `thresholds` has the threshold of each class, and there is no confidence.
    """
    if len(keys) != len(predictions) or len(classes) != predictions.logits.shape[1]:
        raise ValueError(f"expected {tuple(predictions.logits.shape)} keys, classes; got {len(keys)}, {len(classes)}")
    probabilities = predictions.probabilities
    if thresholds is not None:
        label_names, predicted_names = (
            [";".join(compress(classes, row)) for row in is_true.tolist()]
            for is_true in (predictions.labels == 1, reach_thresholds(probabilities, thresholds))
        )
        columns = {"key": keys, "labels": label_names, "predicted": predicted_names}
    else:
        confidence = probabilities.gather(1, predictions.predicted[:, None])[:, 0]
        columns = {
            "key": keys,
            "label": ["" if label == UNLABELLED else classes[label] for label in predictions.labels.tolist()],
            "predicted": [classes[label] for label in predictions.predicted.tolist()],
            "confidence": [f"{probability:.6g}" for probability in confidence.tolist()],
        }
    probability_texts = ([f"{probability:.6g}" for probability in row] for row in probabilities.tolist())
    rows = [[*cells, *numbers] for *cells, numbers in zip(*columns.values(), probability_texts, strict=True)]
    write_text(path, csv_text([*columns, *(f"p_{name}" for name in classes)], *rows))


def _score_line(name: str, score: Score, titles: Mapping[str, tuple[str, str]] = TITLES) -> ScoreLine:
    format_value = percent if name != "loss" else "{:.3f}".format
    (title, meaning), interval = titles.get(name, (name, "")), NO_INTERVAL
    if score.low is not None and score.high is not None:
        interval = f"{format_value(score.low)} to {format_value(score.high)}"
    return ScoreLine(title, format_value(score.value), interval, meaning)
