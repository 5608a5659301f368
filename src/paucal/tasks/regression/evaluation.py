"""Predicted numbers of a set of images, and the files of an evaluation."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from paucal.data.images import ImageSet
from paucal.evaluation.plots import save_figure
from paucal.evaluation.predictions import predict_in_order
from paucal.metrics.intervals import Score
from paucal.metrics.regression import RegressionReport, regression_report
from paucal.models.trained import TrainedModel
from paucal.runner.images import SplitImages, eval_loader
from paucal.runs import csv_text, write_text
from paucal.settings.groups import JobSettings
from paucal.tasks.regression.model import LEVEL, RegressionCard
from paucal.tasks.regression.plots import predicted_figure
from paucal.wording import counted, percent

Array = NDArray[np.float64]
TITLES = {
    "mae": ("mean absolute error (MAE)", "how far a prediction is off, on average, in the unit of the target"),
    "rmse": ("root mean squared error (RMSE)", "the same, with large errors counting more"),
    "r2": ("R²", "share of the variance that is explained; 0 for always predicting the mean"),
    "coverage": (f"coverage of {LEVEL:.0%} intervals", "share of images whose number lies in its interval"),
}


def evaluate_numbers(
    model: TrainedModel,
    data: SplitImages,
    targets: Array,
    part: NDArray[np.int64],
    settings: JobSettings,
    progress: Any,
) -> tuple[RegressionReport, Array]:
    """Return the scores of a model on some images, and the (N,) predicted numbers."""
    loader = eval_loader(data, part, model.card.preprocessing, settings)
    predicted = predict_in_order(model.module, loader, part, model.device, progress)[:, 0].double().numpy()
    card = card_of(model)
    return regression_report(targets[part], predicted, card.mean, card.half_width, LEVEL, settings.seed), predicted


def card_of(model: TrainedModel) -> RegressionCard:
    """Return the card of a model that predicts numbers."""
    assert isinstance(model.card, RegressionCard)
    return model.card


def write_scores(
    folder: Path,
    plots: Path,
    report: RegressionReport,
    images: ImageSet,
    part: NDArray[np.int64],
    truth: Array,
    predicted: Array,
) -> None:
    """Write `metrics.json`, `predictions.csv` and the plot of predicted against true numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    plots.mkdir(parents=True, exist_ok=True)
    half = report.half_width
    content = {**asdict(report), "kind": "regression", "half_width": half if np.isfinite(half) else None}
    write_text(folder / "metrics.json", json.dumps(content, indent=2) + "\n")
    rows = [
        [images.keys[int(place)], f"{true:.9g}", f"{value:.9g}", f"{value - half:.9g}", f"{value + half:.9g}"]
        for place, true, value in zip(part, truth, predicted, strict=True)
    ]
    write_text(folder / "predictions.csv", csv_text(["key", "target", "predicted", "low", "high"], *rows))
    save_figure(plots / "predicted.png", predicted_figure(truth, predicted, half))


def format_number(score: Score, name: str) -> tuple[str, str]:
    """Return a score and its interval as text."""
    shown = percent if name == "coverage" else "{:.3g}".format
    if score.low is None or score.high is None:
        return shown(score.value), ""
    return shown(score.value), f"{shown(score.low)} to {shown(score.high)}"


def report_table(report: RegressionReport) -> Table:
    """Return the scores as a table for the terminal."""
    table = Table(title=counted(report.images, "image"), title_justify="left")
    for heading in ("score", "value", "95 % interval"):
        table.add_column(heading, justify="left" if heading == "score" else "right")
    table.add_column("meaning", style="dim")
    for name, score in report.scores.items():
        title, meaning = TITLES[name]
        table.add_row(title, *format_number(score, name), meaning)
        if name == "mae":
            table.add_row(
                "always the mean", f"{report.baseline:.3g}", "", f"MAE of always predicting {report.mean:.4g}"
            )
    return table
