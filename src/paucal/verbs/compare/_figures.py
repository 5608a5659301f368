"""Figures of a comparison: differences with confidence intervals, scores of all runs, and validation curves."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from paucal.evaluation.curves import COLOURS
from paucal.evaluation.plots import GREY, plot_label
from paucal.metrics.intervals import Score
from paucal.verbs.compare.findings import GridResults

WIDTH = 5.8  # width of a figure in inches; legible on a phone
_MAX_NAME = 44  # largest number of characters of an arm's name; longer names are shortened


def differences_figure(findings: GridResults) -> Figure | None:
    """Draw each arm's gain over its baseline, with a dot per seed and three intervals; None if no arm has a gain."""
    gains = [(arm, arm.gain) for arm in findings.arms if arm.gain is not None]
    if not gains:
        return None
    figure = Figure(figsize=(WIDTH, 1.5 + 0.85 * len(gains)), layout="constrained")
    axes = figure.subplots()
    for index, (_, gain) in enumerate(gains):
        bars = (
            (-0.24, gain.by_seed.score, COLOURS[4], 2.0, "other seeds"),
            (-0.12, gain.over_images, COLOURS[5], 2.0, "other images"),
            (0.0, gain.both, COLOURS[0], 3.2, "both"),
        )
        for shift, score, colour, width, label in bars:
            _draw_bar(axes, index + shift, score, colour, width, label)
        axes.plot([100 * gain.value], [index], "D", color=COLOURS[0], ms=6)
        values = 100 * np.array(gain.by_seed.values)
        axes.plot(values, np.full(len(values), index + 0.2), "o", color=GREY, ms=4, label="a seed")
    axes.axvline(0, color="black", lw=1)
    names = [f"{plot_label(arm.name, _MAX_NAME)}\nagainst {plot_label(arm.baseline, _MAX_NAME)}" for arm, _ in gains]
    axes.set_yticks(range(len(gains)), names, fontsize=9)
    axes.set(ylim=(len(gains) - 0.4, -0.6), xlabel="difference in test accuracy, percentage points")
    axes.grid(axis="x", alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    entries = dict(zip(labels, handles, strict=True))  # drops repeated labels
    figure.legend(entries.values(), entries.keys(), loc="outside upper right", ncols=2, fontsize=9, frameon=False)
    return figure


def scores_figure(findings: GridResults) -> Figure | None:
    """Draw the test accuracy of all runs, and each arm's mean with its t-interval; None if no run is finished."""
    arms = [arm for arm in findings.arms if arm.outcomes]
    if not arms:
        return None
    figure = Figure(figsize=(WIDTH, 1.2 + 0.5 * len(arms)), layout="constrained")
    axes = figure.subplots()
    for index, arm in enumerate(arms):
        colour = COLOURS[index % len(COLOURS)]
        values = 100 * np.array([run.scores["top1"] for run in arm.outcomes.values()])
        axes.plot(values, np.full(len(values), index), "o", color=colour, alpha=0.45, ms=6, mew=0)
        if arm.top1 is not None:
            score = arm.top1.score
            if score.low is not None and score.high is not None:  # a t-interval may exceed [0, 1]
                score = Score(score.value, max(0.0, score.low), min(1.0, score.high))
            _draw_bar(axes, index, score, colour, 2.2, None)
            axes.plot([100 * score.value], [index], "|", color=colour, ms=16, mew=2.4)
    axes.set_yticks(range(len(arms)), [plot_label(arm.name, _MAX_NAME) for arm in arms], fontsize=9)
    axes.set(ylim=(len(arms) - 0.4, -0.6), xlabel="test accuracy in percent: runs, mean, 95 % interval over seeds")
    axes.grid(axis="x", alpha=0.3)
    return figure


def curves_figure(findings: GridResults) -> Figure | None:
    """Draw validation accuracy over epochs, or over time if runs differ in epochs; None if no run has these scores."""
    arms = [
        (arm, runs)
        for arm in findings.arms
        if (runs := [run for run in arm.outcomes.values() if run.rows and all("val_top1" in row for row in run.rows)])
    ]
    if not arms:
        return None
    epoch_counts = {len(run.rows) for arm, _ in arms for run in arm.outcomes.values()}
    x_column = "epoch" if len(epoch_counts) == 1 else "seconds"
    figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
    axes = figure.subplots()
    for number, (arm, runs) in enumerate(arms):
        colour, points = COLOURS[number % len(COLOURS)], []
        for run in runs:
            x = [row.get(x_column, index) for index, row in enumerate(run.rows, start=1)]
            y = [100 * row["val_top1"] for row in run.rows]
            points.append((x, y))
            marker = "o" if len(x) == 1 else ""  # a single point would be invisible without a marker
            axes.plot(x, y, color=colour, lw=1, alpha=0.35, marker=marker)
        # Curves are averaged over the range that all curves of the arm cover.
        low, high = max(x[0] for x, _ in points), min(x[-1] for x, _ in points)
        mean_x = np.linspace(low, high, max(2, max(len(x) for x, _ in points)))
        mean_y = np.mean([np.interp(mean_x, x, y) for x, y in points], axis=0)
        marker, label = "o" if low == high else "", plot_label(arm.name, _MAX_NAME)
        axes.plot(mean_x, mean_y, color=colour, lw=2.4, label=label, marker=marker)
    axes.set_xlabel("epoch" if x_column == "epoch" else "seconds of training")
    axes.set_ylabel("validation accuracy in percent")
    if x_column == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)
    return figure


def _draw_bar(axes: Axes, y: float, score: Score, colour: str, width: float, label: str | None) -> None:
    if score.low is not None and score.high is not None:
        axes.plot([100 * score.low, 100 * score.high], [y, y], color=colour, lw=width, label=label)
