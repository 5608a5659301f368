"""The scores of a segmentation run as tables, for the terminal and as CSV."""

from collections.abc import Sequence

import numpy as np
from rich.table import Table

from paucal.metrics.intervals import Score
from paucal.runs import csv_text
from paucal.tasks.segmentation.scores import SegmentationReport, Tally
from paucal.wording import percent

SHOWN_CLASSES = 30


def report_table(report: SegmentationReport) -> Table:
    """Return the scores of the classes, the weakest first, as a table for the terminal."""
    table = Table(title="test images", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("class", "IoU", "95 % interval", "pixels", "found"):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    for place in ranked_classes(report)[:SHOWN_CLASSES]:
        score, row = report.per_class[place], report.confusion
        recall = row[place, place] / row[place].sum() if row[place].sum() else float("nan")
        table.add_row(
            report.classes[place],
            _percent(score.value),
            interval_text(score),
            f"{int(row[place].sum()):,}",
            _percent(recall),
        )
    return table


def ranked_classes(report: SegmentationReport) -> list[int]:
    """Return the numbers of the classes, the lowest IoU first, those that occur nowhere last."""
    values = [score.value for score in report.per_class]
    return sorted(range(len(values)), key=lambda place: (not np.isfinite(values[place]), values[place]))


def per_class_table(report: SegmentationReport) -> str:
    """Return the scores of the classes as CSV."""
    rows, table = [], report.confusion
    for place, score in enumerate(report.per_class):
        counts = (int(table[place].sum()), int(table[:, place].sum()), int(table[place, place]))
        rows.append([report.classes[place], *map(_cell, (score.value, score.low, score.high)), *counts])
    return csv_text(["class", "iou", "low", "high", "pixels", "answers", "hits"], *rows)


def per_image_table(tallies: Sequence[Tally], keys: Sequence[str]) -> str:
    """Return the scores of the images as CSV, the worst first."""
    rows = []
    for one in sorted(tallies, key=lambda one: (not np.isfinite(one.mean_iou), one.mean_iou)):
        right = float(np.trace(one.confusion)) / one.pixels if one.pixels else float("nan")
        rows.append([keys[one.index], _cell(one.mean_iou), _cell(right), one.pixels])
    return csv_text(["image", "mean_iou", "pixel_accuracy", "pixels"], *rows)


def score_text(score: Score) -> str:
    """Return a score and its interval for people."""
    return f"{_percent(score.value)} [{interval_text(score)}]"


def interval_text(score: Score) -> str:
    """Return the interval of a score, or that there is none."""
    if score.low is None or score.high is None:
        return "no interval"
    return f"{100 * score.low:.1f} to {100 * score.high:.1f}"


def _percent(value: float) -> str:
    return percent(value) if np.isfinite(value) else "none"


def _cell(value: float | None) -> str:
    return "" if value is None or not np.isfinite(value) else f"{value:.6f}"
