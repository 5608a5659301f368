"""Figures of an evaluation, created without matplotlib's global state. The caller saves the figures."""

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torchmetrics.functional.classification import binary_precision_recall_curve

from paucal.evaluation.predictions import Predictions
from paucal.evaluation.results import ClassificationReport, ClassRow, MultiLabelReport, MultiLabelRow
from paucal.metrics.intervals import Score, wilson
from paucal.metrics.measures import CALIBRATION_BINS, calibration_bin
from paucal.wording import percent
from paucal.writing import write_atomically

# From the colour-blind safe palette of Okabe and Ito.
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#8a8a8a"
MAX_CLASSES = 100  # largest number of classes in a figure
MAX_COLUMNS = 4  # largest number of panels side by side
Row = TypeVar("Row", ClassRow, MultiLabelRow)


def plot_label(name: str, length: int = 20) -> str:
    r"""Return a class name as a label for matplotlib: one line of at most `length` characters, with escaped "$".

    >>> plot_label("a very long name of a class"), plot_label("5$ or 6$")
    ('a very long name of…', '5\\$ or 6\\$')
    """
    name = " ".join(name.encode(errors="replace").decode().split())  # folder names on Linux may be any bytes
    if len(name) > length:
        name = name[: length - 1].rstrip() + "…"
    return name.replace("$", r"\$")


def confusion_figure(confusion: Sequence[Sequence[int]] | np.ndarray, classes: Sequence[str]) -> Figure:
    """Draw a confusion matrix (K, K) of counts: rows are true classes, columns are predicted classes.

    The colour of a cell shows the fraction of the true class's images that are predicted as the cell's column. If there
    are at most 20 classes, counts are written into the cells. The row of a class without images stays blank.
    """
    counts = np.asarray(confusion)
    size = len(classes)
    if counts.shape != (size, size):
        raise ValueError(f"expected ({size}, {size}) counts for {size} classes, got {counts.shape}")
    side = float(np.clip(2.8 + 0.42 * size, 4.2, 11))
    figure = Figure(figsize=(side + 0.9, side), layout="constrained")
    axes = figure.subplots()
    totals = counts.sum(1, keepdims=True)
    fractions = np.ma.masked_array(counts / np.maximum(totals, 1), np.broadcast_to(totals == 0, counts.shape))
    image = axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    figure.colorbar(image, ax=axes, label="fraction of the true class's images", shrink=0.8)
    # At most `MAX_CLASSES` names are shown, in a font no higher than a cell (an inch has 72 points).
    indices = range(0, size, -(-size // MAX_CLASSES))
    names = [plot_label(classes[index]) for index in indices]
    font_size = float(np.clip(0.7 * side * 72 / len(names) * 0.9, 4, 9))
    axes.set_xticks(indices, names, rotation=90, fontsize=font_size)
    axes.set_yticks(indices, names, fontsize=font_size)
    axes.set(xlabel="predicted class", ylabel="true class")
    if size <= 20:
        for row, column in zip(*np.nonzero(counts), strict=True):
            colour = "white" if fractions[row, column] > 0.5 else "black"
            axes.text(column, row, str(counts[row, column]), ha="center", va="center", color=colour, fontsize=8)
    return figure


def reliability_figure(predictions: Predictions) -> Figure:
    """Draw accuracy against confidence in 15 bins with 95 % intervals, and the number of images per bin."""
    confidence = predictions.probabilities.max(1).values.numpy()
    correct = (predictions.predicted == predictions.labels).numpy()
    # Confidences of exactly 1 have a bin of their own, which is drawn as part of the last bin.
    bins = np.minimum(calibration_bin(confidence), CALIBRATION_BINS - 1)
    images = np.bincount(bins, minlength=CALIBRATION_BINS)
    n_correct = np.bincount(bins, correct, CALIBRATION_BINS).astype(int)
    left_edges = np.arange(CALIBRATION_BINS) / CALIBRATION_BINS
    figure = Figure(figsize=(4.6, 5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    width = 1 / CALIBRATION_BINS
    filled = np.flatnonzero(images)
    scores = [wilson(int(n_correct[k]), int(images[k])) for k in filled]
    accuracy = np.array([score.value for score in scores])
    upper.bar(left_edges[filled], accuracy, width, align="edge", color=BLUE, edgecolor="white", label="model")
    error_bars = np.abs(np.array([score.ends for score in scores]).T - accuracy)
    centres = left_edges[filled] + width / 2
    upper.errorbar(centres, accuracy, yerr=error_bars, fmt="none", ecolor="black", lw=1, capsize=2)
    upper.plot([0, 1], [0, 1], "--", color=ORANGE, label="confidence = accuracy")
    upper.set(ylabel="fraction of correct predictions", xlim=(0, 1), ylim=(0, 1.02))
    figure.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    lower.bar(left_edges, images, width, align="edge", color=GREY, edgecolor="white")
    lower.set(xlabel="confidence of the prediction", ylabel="images")
    return figure


def per_class_figure(report: ClassificationReport) -> Figure:
    """Draw the recall of each class with a confidence interval, lowest first; a line shows the accuracy on all images.

    Only the 100 classes with the lowest recall are drawn; classes without test images are left out.
    """
    figure, axes, _ = _ranked_classes([(row.recall, row) for row in report.per_class if row.recall])
    top1 = report.scores["top1"].value
    axes.axvline(top1, ls="--", color=ORANGE, lw=1.2, label=f"all images: {percent(top1)}")
    axes.set(ylabel="class (test images)")
    axes.set_xlabel(f"recall: fraction of the class's images found, {percent(report.level, 'g')} interval")
    figure.legend(loc="outside upper right", fontsize=8, frameon=False)
    return figure


def class_precision_figure(report: MultiLabelReport) -> Figure:
    """Draw each class's average precision with a confidence interval, lowest first, and mark the chance level.

    Only the 100 classes with the lowest average precision are drawn; classes without test images are left out.
    """
    figure, axes, rows = _ranked_classes([(row.ap, row) for row in report.per_class if row.ap])
    axes.plot([row.share for row in rows], range(len(rows)), "|", color="black", ms=9, label="by chance")
    mean = report.scores["map"].value
    axes.axvline(mean, ls="--", color=ORANGE, lw=1.2, label=f"mean: {percent(mean)}")
    axes.set(ylabel="class (its test images)")
    axes.set_xlabel(f"average precision, {percent(report.level, 'g')} interval")
    figure.legend(loc="outside upper right", fontsize=8, frameon=False, ncols=2)
    return figure


def precision_recall_figure(predictions: Predictions, report: MultiLabelReport) -> Figure:
    """Draw the precision-recall curves of the twelve largest classes, with a dot at each class's threshold."""
    ranked = sorted(range(len(report.per_class)), key=lambda index: -report.per_class[index].images)
    shown_classes = sorted(index for index in ranked[:12] if report.per_class[index].ap)
    figure, panels = panel_grid(len(shown_classes), MAX_COLUMNS, (2.3, 2.3), (0.4, 0.5), sharex=True, sharey=True)
    for axes, index in zip(panels, shown_classes, strict=True):
        row, labels = report.per_class[index], predictions.labels[:, index]
        is_known = labels >= 0
        precision, recall, _ = binary_precision_recall_curve(
            predictions.logits[is_known, index].double().sigmoid(), labels[is_known]
        )
        axes.step(recall.numpy(), precision.numpy(), where="post", color=BLUE, lw=1.4)
        axes.axhline(row.share, color=GREY, ls="--", lw=1)
        if row.precision is not None and row.recall is not None:
            axes.plot([row.recall], [row.precision], "o", color=ORANGE, ms=5)
        axes.set_title(f"{plot_label(row.name)}: {percent(row.ap.value if row.ap else 0.0)}", fontsize=8, loc="left")
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.05))
        axes.tick_params(labelsize=7)
    figure.supxlabel("recall: fraction of the class's images found", fontsize=9)
    figure.supylabel("precision: fraction of predictions that are correct", fontsize=9)
    return figure


def panel_grid(
    count: int, max_columns: int, size: tuple[float, float], margin: tuple[float, float], **options: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure and the axes of `count` panels in rows; `size` of a panel and `margin` are (width, height)."""
    columns = max(1, min(max_columns, count))
    rows = max(1, -(-count // columns))
    inches = (size[0] * columns + margin[0], size[1] * rows + margin[1])
    figure = Figure(figsize=inches, layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for axes in grid[count:]:
        axes.remove()
    return figure, grid[:count]


def _ranked_classes(scored: Sequence[tuple[Score, Row]]) -> tuple[Figure, Axes, list[Row]]:
    """Draw a score of each class with a confidence interval, lowest first; return figure, axes and the drawn rows."""
    ranked = sorted(scored, key=lambda pair: (pair[0].value, pair[1].name))
    hidden, ranked = len(ranked) - MAX_CLASSES, ranked[:MAX_CLASSES]
    figure = Figure(figsize=(6.4, 1.4 + 0.2 * max(len(ranked), 4)), layout="constrained")
    axes, indices = figure.subplots(), np.arange(len(ranked))
    values = np.array([score.value for score, _ in ranked])
    ends = np.array([score.ends for score, _ in ranked]).reshape(-1, 2).T
    axes.errorbar(values, indices, xerr=np.abs(ends - values), fmt="o", color=BLUE, ecolor=GREY, ms=4, lw=1.2)
    axes.set_yticks(indices, [f"{plot_label(row.name)} ({row.images})" for _, row in ranked], fontsize=8)
    axes.set(xlim=(-0.02, 1.02), ylim=(len(ranked) - 0.4, -0.6))
    axes.grid(axis="x", alpha=0.3)
    if hidden > 0:
        axes.set_title(f"the {MAX_CLASSES} lowest of {MAX_CLASSES + hidden} classes", fontsize=9, loc="left")
    return figure, axes, [row for _, row in ranked]


DOTS_PER_INCH = 110


def render_png(figure: Figure) -> bytes:
    """Return a figure as PNG. The layout of the figure is computed once and cannot change afterwards.

    If a figure has a layout engine, matplotlib draws the figure twice, and most of the time is spent on the layout. If
    the layout is computed beforehand, drawing the figure once gives the same pixels.
    """
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Characters that matplotlib's font lacks are drawn as boxes; the tables of the report show them correctly.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")
        figure.set_dpi(DOTS_PER_INCH)
        if (engine := figure.get_layout_engine()) is not None:
            engine.execute(figure)
            # `set_layout_engine(None)` selects the layout engine of the user's settings, which are overridden here.
            with rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
                figure.set_layout_engine(None)
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    return buffer.getvalue()


def save_figure(path: Path, figure: Figure) -> None:
    """Write a figure as PNG, atomically."""
    data = render_png(figure)
    write_atomically(path, lambda file: file.write(data))


@dataclass(frozen=True)
class Mistake:
    """One wrong prediction."""

    id: int  # index of the image in its set
    true: int
    predicted: int
    confidence: float  # probability of the predicted class


def worst_mistakes(predictions: Predictions, n: int) -> list[Mistake]:
    """Return up to `n` wrong predictions in descending order of confidence; ties are in ascending order of id."""
    confidence = predictions.probabilities.max(1).values
    wrong_rows = (predictions.predicted != predictions.labels).nonzero()[:, 0]
    order = wrong_rows[confidence[wrong_rows].argsort(descending=True, stable=True)][:n]
    columns = (predictions.ids, predictions.labels, predictions.predicted, confidence)
    return [Mistake(*row) for row in zip(*(column[order].tolist() for column in columns), strict=True)]


@dataclass(frozen=True)
class Disagreement:
    """A class for which the model contradicts the labels of an image with several labels."""

    id: int  # index of the image in its set
    label: int  # index of the class
    probability: float  # model's probability of the class
    labels: tuple[int, ...]  # all classes that the image is labelled with


def most_confident_disagreements(predictions: Predictions, n: int) -> list[Disagreement]:
    """Return up to `n` disagreements, at most one per image, in descending order of the model's confidence."""
    distance = (predictions.probabilities - predictions.labels).abs().masked_fill(predictions.labels < 0, 0.0)
    confidence, label = distance.max(1)
    order = confidence.argsort(descending=True, stable=True)[:n]
    disagreements = []
    for row in order[confidence[order] > 0.5].tolist():
        labels = tuple((predictions.labels[row] == 1).nonzero()[:, 0].tolist())
        probability = float(predictions.probabilities[row, label[row]])
        disagreements.append(Disagreement(int(predictions.ids[row]), int(label[row]), probability, labels))
    return disagreements


def mistakes_figure(
    images: Sequence[Image.Image], mistakes: Sequence[Mistake | Disagreement], classes: Sequence[str]
) -> Figure:
    """Draw the image of each mistake, with the labels, the model's class and its probability as a caption."""
    if len(images) != len(mistakes) or not images:
        raise ValueError(f"expected as many images as mistakes, got {len(images)} and {len(mistakes)}")
    figure, grid = panel_grid(len(images), MAX_COLUMNS, (2.3, 2.75), (0.0, 0.0))
    for axes, image, mistake in zip(grid, images, mistakes, strict=True):
        if isinstance(mistake, Mistake):
            first_line = f"predicted: {plot_label(classes[mistake.predicted])}, {percent(mistake.confidence, '.0f')}"
            second_line = f"label: {plot_label(classes[mistake.true])}"
        else:
            first_line = f"model: {plot_label(classes[mistake.label])} {percent(mistake.probability, '.0f')}"
            labels = ", ".join(plot_label(classes[index], 12) for index in mistake.labels) or "none"
            second_line = f"labels: {labels[:34]}"
        axes.imshow(image.convert("RGB"))
        axes.set_anchor("N")
        axes.set_title(f"{first_line}\n{second_line}", fontsize=8, loc="left")
        axes.axis("off")
    return figure
