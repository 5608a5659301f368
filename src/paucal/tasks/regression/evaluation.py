"""Evaluation of a regression: predicted target values and their scores, as files, a plot and a table."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table

from paucal.data.images import ImageSet
from paucal.evaluation.plots import save_figure
from paucal.evaluation.predictions import predict_in_order
from paucal.evaluation.record import ScoreLine, lines_table
from paucal.metrics.intervals import Score
from paucal.metrics.regression import RegressionReport, regression_report
from paucal.models.regression import INTERVAL_LEVEL, IntervalPredictions, RegressionCard
from paucal.models.trained import TrainedModel
from paucal.wording import images_text, percent
from paucal.writing import csv_text, write_text

Array = NDArray[np.float64]
# Title and explanation of each score.
TITLES = {
    "exact": ("grades exactly right", "fraction of images"),
    "kappa": ("quadratic weighted kappa", "agreement beyond chance, 1 at best; larger errors count more"),
    "mae": ("mean absolute error (MAE)", "how far a prediction is off, on average, in the unit of the target"),
    "rmse": ("root mean squared error (RMSE)", "like the MAE, but large errors count more"),
    "r2": ("R²", "fraction of the variance that is explained; 0 for always predicting the mean"),
    "coverage": (
        f"coverage of {INTERVAL_LEVEL:.0%} intervals",
        "fraction of images with the true value in the interval",
    ),
}


def evaluate_regression(
    model: TrainedModel,
    loader: Any,
    truth: Array,
    indices: NDArray[np.int64],
    seed: int,
    progress: Any,
    groups: NDArray[np.int64] | None = None,
) -> tuple[RegressionReport, IntervalPredictions]:
    """Return the scores of a regression model on the images at `indices`, and the predictions for these images.

    `loader` reads these images in this order, and `truth` are their (N,) target values. `groups` has the group of each
    image of the data set, or is None if images are independent.
    """
    card = model.card
    assert isinstance(card, RegressionCard)
    outputs = predict_in_order(model.module, loader, indices, model.device, progress)
    predictions = card.read(outputs[:, 0].double().numpy())
    has_grades, bounds = card.grades is not None, (predictions.low, predictions.high)
    part_groups = None if groups is None else groups[indices]
    report = regression_report(
        truth, predictions.predicted, bounds, card.mean, INTERVAL_LEVEL, seed, has_grades, part_groups
    )
    return report, predictions


def write_scores(
    folder: Path,
    plots: Path,
    report: RegressionReport,
    images: ImageSet,
    indices: NDArray[np.int64],
    truth: Array,
    predictions: IntervalPredictions,
) -> None:
    """Write `metrics.json`, `predictions.csv` and the plot of predicted against true values of the images `indices`."""
    folder.mkdir(parents=True, exist_ok=True)
    plots.mkdir(parents=True, exist_ok=True)
    half_width = report.half_width
    content = {**asdict(report), "kind": "regression", "half_width": half_width if np.isfinite(half_width) else None}
    for score in content["scores"].values():  # JSON has no NaN
        score["value"] = score["value"] if np.isfinite(score["value"]) else None
    write_text(folder / "metrics.json", json.dumps(content, indent=2) + "\n")
    rows = [
        [images.keys[int(index)], *(f"{value:.9g}" for value in values)]
        for index, *values in zip(indices, truth, *predictions, strict=True)
    ]
    write_text(folder / "predictions.csv", csv_text(["key", "target", "predicted", "low", "high"], *rows))
    # Prediction intervals of grades differ in width, so no band of a constant width is drawn.
    band_half_width = np.inf if "kappa" in report.scores else half_width
    save_figure(plots / "predicted.png", draw_predictions(truth, predictions.predicted, band_half_width))


def draw_predictions(truth: Array, predicted: Array, half_width: float) -> Figure:
    """Draw predicted against true values, and the band of prediction intervals unless `half_width` is infinite."""
    figure = Figure(figsize=(5.5, 5.0), layout="constrained")
    axes = figure.subplots()
    low, high = min(truth.min(), predicted.min()), max(truth.max(), predicted.max())
    margin = 0.05 * (high - low or 1.0)
    limits = np.array([low - margin, high + margin])
    if np.isfinite(half_width):
        axes.fill_between(
            limits, limits - half_width, limits + half_width, color="tab:blue", alpha=0.12, lw=0, label="90 % interval"
        )
    axes.plot(limits, limits, color="grey", lw=1, label="predicted = true")
    # Coinciding points are drawn as a single point, whose area is proportional to their number.
    points, counts = np.unique(np.stack([truth, predicted]), axis=1, return_counts=True)
    axes.scatter(*points, s=14 * counts, alpha=0.7, color="tab:blue", label="test image")
    axes.set(xlabel="true", ylabel="predicted", xlim=limits, ylim=limits)
    axes.legend(loc="upper left", frameon=False)
    return figure


def format_regression_score(score: Score, name: str) -> tuple[str, str]:
    """Return the score called `name` and its interval as texts; the second text is "" if the score has no interval."""
    format_value = percent if name in ("coverage", "exact") else "{:.3g}".format
    if not np.isfinite(score.value):  # R² of images that all have the same target value
        return "undefined", ""
    if score.low is None or score.high is None:
        return format_value(score.value), ""
    return format_value(score.value), f"{format_value(score.low)} to {format_value(score.high)}"


def interval_text(interval: str, report: RegressionReport) -> str:
    """Return the 95 % interval, unless it is empty, and the number of images as text."""
    return (f"95 % interval {interval}, " if interval else "") + images_text(report.images, report.groups)


def report_table(report: RegressionReport) -> Table:
    """Return the scores as a terminal table, with a row for always predicting the mean below the model's MAE."""
    scores = report.scores.items()
    lines = [
        ScoreLine(TITLES[name][0], *format_regression_score(score, name), TITLES[name][1]) for name, score in scores
    ]
    baseline = f"MAE of always predicting {report.mean:.4g}"
    lines.insert(
        list(report.scores).index("mae") + 1, ScoreLine("always the mean", f"{report.baseline:.3g}", "", baseline)
    )
    return lines_table(images_text(report.images, report.groups), 0.95, lines)
