"""The results of one evaluation, written into a folder: numbers, tables and pictures."""

import json
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from paucal.data.images import ImageSet
from paucal.evaluation.classification import classification_report
from paucal.evaluation.figures import save_figure
from paucal.evaluation.mistakes import disagreements_figure, mistakes_figure, surest_disagreements, worst_mistakes
from paucal.evaluation.multi_label import multi_label_report
from paucal.evaluation.plots import (
    class_precision_figure,
    confusion_figure,
    per_class_figure,
    precision_recall_figure,
    reliability_figure,
)
from paucal.evaluation.predictions import Predictions
from paucal.evaluation.results import ClassificationReport, MultiLabelReport, Report
from paucal.evaluation.tables import (
    write_per_class,
    write_per_class_of_several,
    write_predictions,
    write_predictions_of_several,
)
from paucal.evaluation.thresholds import USUAL
from paucal.models.card import ModelCard
from paucal.runs import write_text

MISTAKES_SHOWN = 16


def record_classification(
    folder: Path,
    plots: Path,
    predictions: Predictions,
    images: ImageSet,
    classes: Sequence[str],
    train_labels: Tensor | None = None,
) -> ClassificationReport:
    """Score predictions and write `metrics.json`, `per_class.csv`, `predictions.csv` and the pictures.

    Args:
        folder: where the numbers go; made where it is missing.
        plots: where the pictures go; made where it is missing.
        predictions: of images of the set; their ids are positions in it.
        images: the set, for names and for pictures of mistakes.
        classes: names in the order of the logits.
        train_labels: labels of the training images, for the majority line.

    Raises:
        UserError: the predictions cannot be scored.
    """
    report = classification_report(predictions, classes, train_labels)
    keys = _write_report(folder, plots, report, predictions, images)
    write_per_class(folder / "per_class.csv", report)
    write_predictions(folder / "predictions.csv", predictions, keys, classes)
    save_figure(plots / "confusion.png", confusion_figure(report.confusion, classes))
    save_figure(plots / "per_class.png", per_class_figure(report))
    save_figure(plots / "reliability.png", reliability_figure(predictions))
    if mistakes := worst_mistakes(predictions, MISTAKES_SHOWN):
        pictures = [images.store.read(mistake.id) for mistake in mistakes]
        save_figure(plots / "mistakes.png", mistakes_figure(pictures, mistakes, classes))
    return report


def record_multi_label(
    folder: Path, plots: Path, predictions: Predictions, images: ImageSet, card: ModelCard
) -> MultiLabelReport:
    """Score predictions on images with several labels, and write the files that `record_classification` names.

    Args:
        folder: where the numbers go; made where it is missing.
        plots: where the pictures go; made where it is missing.
        predictions: of images of the set, with (N, K) labels; their ids are positions in it.
        images: the set, for names and for pictures of what the model contradicts.
        card: of the model, with its classes and thresholds.

    Raises:
        UserError: the predictions cannot be scored.
    """
    classes, thresholds = card.classes, card.thresholds or (USUAL,) * len(card.classes)
    report = multi_label_report(predictions, classes, thresholds)
    keys = _write_report(folder, plots, report, predictions, images)
    write_per_class_of_several(folder / "per_class.csv", report)
    write_predictions_of_several(folder / "predictions.csv", predictions, keys, classes, thresholds)
    save_figure(plots / "per_class.png", class_precision_figure(report))
    save_figure(plots / "precision_recall.png", precision_recall_figure(predictions, report))
    if found := surest_disagreements(predictions, MISTAKES_SHOWN):
        pictures = [images.store.read(one.id) for one in found]
        save_figure(plots / "mistakes.png", disagreements_figure(pictures, found, classes))
    return report


def _write_report(folder: Path, plots: Path, report: Report, predictions: Predictions, images: ImageSet) -> list[str]:
    """Make the folders, write the numbers, remove an earlier picture of mistakes; return the keys of the images."""
    folder.mkdir(parents=True, exist_ok=True)
    plots.mkdir(parents=True, exist_ok=True)
    write_text(folder / "metrics.json", json.dumps(report.to_dict(), indent=2) + "\n")
    (plots / "mistakes.png").unlink(missing_ok=True)
    return [images.keys[int(i)] for i in predictions.ids]
