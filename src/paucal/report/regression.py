"""The report of a regression: errors, the error of predicting the mean, and a plot of predicted against true values."""

from pathlib import Path
from typing import Any

from paucal.evaluation.results import stored_groups
from paucal.report.explanations import cost_rows, model_rows
from paucal.report.inputs import read_run, read_stored
from paucal.report.page import write_run_page
from paucal.wording import images_text, percent

METRICS_FILE = "evaluation/test/metrics.json"
CAPTIONS = {"predicted": "Predicted against true value of each test image; larger points stand for several images."}
SCORE_TITLES = {
    **{"exact": "grades exactly right", "kappa": "quadratic weighted kappa", "mae": "mean absolute error"},
    **{"rmse": "root mean squared error", "r2": "R²", "coverage": "inside the prediction interval"},
}


def write_regression_report(run: Path) -> Path:
    """Write `report.html` into the run folder of a regression, and return the path of the page."""
    files = read_run(run)
    rows, sentences = read_stored(
        files.run, METRICS_FILE, lambda content: (score_rows(content["scores"]), headline_sentences(content))
    )
    summary = files.summary
    return write_run_page(
        files,
        "regression.html",
        trained={**model_rows(summary), **cost_rows(files), "images": summary.images_text},
        rows=rows,
        figures=[(row["value"], row["score"]) for row in (rows[0], rows[-1])],
        headline=sentences,
        warnings=[],
        captions=CAPTIONS,
    )


def score_rows(scores: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of the table of scores, by heading."""
    rows = []
    for name, title in SCORE_TITLES.items():
        if name not in scores:
            continue
        score, format_value = scores[name], percent if name in ("coverage", "exact") else _format_number
        value, interval = "undefined", ""
        if score["value"] is not None:
            value = format_value(score["value"])
            interval = "" if score["low"] is None else f"{format_value(score['low'])} to {format_value(score['high'])}"
        rows.append({"score": title, "value": value, "95 % interval": interval})
    return rows


def headline_sentences(content: dict[str, Any]) -> list[str]:
    """Return the result in a few sentences."""
    mae, gain = content["scores"]["mae"], content["gain"]
    interval = "unknown"
    if mae["low"] is not None:
        interval = f"{_format_number(mae['low'])} to {_format_number(mae['high'])}"
    tested = images_text(int(content["images"]), stored_groups(content), "test image")
    sentences = [
        f"On {tested} that were not used in training, a prediction is off by "
        f"{_format_number(mae['value'])} on average (95 % interval {interval}). Always predicting the mean "
        f"of the training images, {_format_number(content['mean'])}, would be off by "
        f"{_format_number(content['baseline'])}."
    ]
    if gain["low"] is None or gain["low"] <= 0:
        sentences.append("These images do not show that the model is better than always predicting the mean.")
    if content["half_width"] is None:
        sentences.append("There are too few training images for prediction intervals.")
    else:
        coverage = content["scores"]["coverage"]
        sentences.append(
            f"On average, the 90 % prediction interval is the prediction ± {_format_number(content['half_width'])}. "
            f"The interval contained the true value for {percent(coverage['value'])} of the test images."
        )
    return sentences


def _format_number(value: float) -> str:
    return f"{float(value):.3g}"
