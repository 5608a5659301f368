"""The results of one evaluation, written into a folder: numbers, tables and pictures."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from paucal.data.images import ImageSet
from paucal.evaluation.classification import classification_report
from paucal.evaluation.mistakes import mistakes_figure, worst_mistakes
from paucal.evaluation.plots import confusion_figure, per_class_figure, reliability_figure
from paucal.evaluation.predictions import Predictions
from paucal.evaluation.results import ClassificationReport
from paucal.evaluation.tables import write_per_class, write_predictions
from paucal.runs import write_atomically, write_text

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
    folder.mkdir(parents=True, exist_ok=True)
    plots.mkdir(parents=True, exist_ok=True)
    write_text(folder / "metrics.json", json.dumps(report.to_dict(), indent=2) + "\n")
    write_per_class(folder / "per_class.csv", report)
    keys = [images.keys[i] for i in predictions.ids.tolist()]
    write_predictions(folder / "predictions.csv", predictions, keys, classes)
    save_figure(plots / "confusion.png", confusion_figure(report.confusion, classes))
    save_figure(plots / "per_class.png", per_class_figure(report))
    save_figure(plots / "reliability.png", reliability_figure(predictions))
    mistakes = worst_mistakes(predictions, MISTAKES_SHOWN)
    if mistakes:
        pictures = [images.store.read(mistake.id) for mistake in mistakes]
        save_figure(plots / "mistakes.png", mistakes_figure(pictures, mistakes, classes))
    else:
        (plots / "mistakes.png").unlink(missing_ok=True)
    return report


def save_figure(path: Path, figure: Figure) -> None:
    """Write a figure as PNG, atomically."""
    with warnings.catch_warnings():
        # Class names in scripts that matplotlib's font lacks show as boxes; the tables have them in full.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")
        write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=110))
