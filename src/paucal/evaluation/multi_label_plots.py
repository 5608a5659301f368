"""Pictures of an evaluation on images that have several labels."""

import numpy as np
from matplotlib.figure import Figure
from torchmetrics.functional.classification import binary_precision_recall_curve

from paucal.evaluation.plots import BLUE, GREY, MAX_ROWS, ORANGE, shorten
from paucal.evaluation.predictions import Predictions
from paucal.evaluation.results import MultiLabelReport
from paucal.wording import percent

MOST_CURVES, COLUMNS = 12, 4


def class_precision_figure(report: MultiLabelReport) -> Figure:
    """Draw the average precision of each class with its interval, lowest first, beside what chance reaches.

    Of more than 100 classes the 100 lowest are drawn; classes without test images are left out.
    """
    judged = sorted(
        ((row, row.ap) for row in report.per_class if row.ap), key=lambda pair: (pair[1].value, pair[0].name)
    )
    hidden, judged = len(judged) - MAX_ROWS, judged[:MAX_ROWS]
    figure = Figure(figsize=(6.4, 1.4 + 0.2 * max(len(judged), 4)), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(judged))
    values = np.array([ap.value for _, ap in judged])
    ends = np.array([ap.ends for _, ap in judged]).reshape(-1, 2).T
    axes.errorbar(values, places, xerr=np.abs(ends - values), fmt="o", color=BLUE, ecolor=GREY, ms=4, lw=1.2)
    axes.plot([row.share for row, _ in judged], places, "|", color="black", ms=9, label="by chance")
    mean = report.scores["map"].value
    axes.axvline(mean, ls="--", color=ORANGE, lw=1.2, label=f"mean: {percent(mean)}")
    axes.set_yticks(places, [f"{shorten(row.name)} ({row.images})" for row, _ in judged], fontsize=8)
    axes.set(xlim=(-0.02, 1.02), ylim=(len(judged) - 0.4, -0.6), ylabel="class (its test images)")
    axes.set_xlabel(f"average precision, {percent(report.level, 'g')} interval")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper right", fontsize=8, frameon=False, ncols=2)
    if hidden > 0:
        axes.set_title(f"the {MAX_ROWS} lowest of {MAX_ROWS + hidden} classes", fontsize=9, loc="left")
    return figure


def precision_recall_figure(predictions: Predictions, report: MultiLabelReport) -> Figure:
    """Draw precision against recall of each class, and where its threshold lies; of many classes the twelve largest."""
    ranked = sorted(range(len(report.per_class)), key=lambda place: -report.per_class[place].images)
    shown = sorted(place for place in ranked[:MOST_CURVES] if report.per_class[place].ap)
    columns = max(1, min(COLUMNS, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    figure = Figure(figsize=(2.3 * columns + 0.4, 2.3 * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes, place in zip(grid.flat, shown, strict=False):
        row, labels = report.per_class[place], predictions.labels[:, place]
        known = labels >= 0
        precision, recall, _ = binary_precision_recall_curve(
            predictions.logits[known, place].double().sigmoid(), labels[known]
        )
        axes.step(recall.numpy(), precision.numpy(), where="post", color=BLUE, lw=1.4)
        axes.axhline(row.share, color=GREY, ls="--", lw=1)
        if row.precision is not None and row.recall is not None:
            axes.plot([row.recall], [row.precision], "o", color=ORANGE, ms=5)
        axes.set_title(f"{shorten(row.name)}: {percent(row.ap.value if row.ap else 0.0)}", fontsize=8, loc="left")
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.05))
        axes.tick_params(labelsize=7)
    for axes in grid.flat[len(shown) :]:
        axes.remove()
    figure.supxlabel("recall: share of the class's images found", fontsize=9)
    figure.supylabel("precision: share of answers that are right", fontsize=9)
    return figure
