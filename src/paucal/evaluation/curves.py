"""Figures of training curves, from the rows of `metrics.csv`."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from paucal.evaluation.collapse import Verdict
from paucal.evaluation.plots import BLUE, GREY, ORANGE, panel_grid, save_figure
from paucal.runs import RunFolder

Row = Mapping[str, float]  # metrics of one epoch by column
PANELS_PER_ROW = 3
MAX_MARKERS = 30  # a line with at most this number of points has a marker at each point
COLOURS = (BLUE, ORANGE, "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
SPEED_COLUMN = "images_per_second"
PROGRESS_COLUMNS = ("epoch", "step", "seconds", "skipped_steps")  # columns that are not drawn


def best_epoch(rows: Sequence[Row]) -> float | None:
    """Return the epoch with the highest `val_top1` or `val_map`; None if no epoch has a score.

    If several epochs have the same score, the epoch with the lowest `val_loss` is returned.
    """
    scored = [row for row in _number_epochs(rows) if math.isfinite(validation_score(row))]
    if not scored:
        return None
    return max(scored, key=lambda row: (validation_score(row), -row.get("val_loss", math.inf)))["epoch"]


def validation_score(row: Row) -> float:
    """Return the validation score that selects the best epoch; NaN if the row has none."""
    return row.get("val_top1", row.get("val_map", math.nan))


def drawn_columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns that `curves_figure` draws, in the order in which they first appear in the rows."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if name not in PROGRESS_COLUMNS and not name.startswith("weight_")]


def with_speed(rows: Sequence[Row], images: int) -> list[Row]:
    """Add `images_per_second` to each row, from the time since the previous row, if both rows have `seconds`."""
    rows_with_speed: list[Row] = []
    previous: Row = {"epoch": 0.0, "seconds": 0.0}
    for row in _number_epochs(rows):
        elapsed = row.get("seconds", math.nan) - previous.get("seconds", math.nan)
        epochs = row["epoch"] - previous["epoch"]
        # When a run is resumed, `seconds` may start from 0 again.
        rows_with_speed.append({**row, SPEED_COLUMN: images * epochs / elapsed} if elapsed > 0 and epochs > 0 else row)
        previous = row
    return rows_with_speed


def save_curves(run: RunFolder, rows: Sequence[Row], images: int, **marks: Any) -> None:
    """Draw `plots/curves.png` of a run, if it has any epochs; `marks` are passed to `curves_figure`."""
    if rows:
        save_figure(run.plots / "curves.png", curves_figure(with_speed(rows, images), **marks))


def curves_figure(
    rows: Sequence[Row],
    *,
    chance: Mapping[str, float] | None = None,
    best: float | None = None,
    columns: int = PANELS_PER_ROW,
) -> Figure:
    """Draw the columns of `metrics.csv` over epochs, in small panels.

    All validation scores share a panel, except for the fraction of missed objects. This fraction, the validation loss,
    each unweighted training loss (`train_*`), the learning rate and every other column (such as the gradient norm) have
    a panel each. `weight_*` columns are not drawn.

    `chance` has scores at chance level, by column, which are drawn as dashed lines. `best` is the epoch of the model
    that was kept; if None, the result of `best_epoch`. `columns` is the largest number of panels side by side.
    """
    rows = _number_epochs(rows)
    panels: dict[str, list[str]] = {}  # columns by title, in the order in which the panels are drawn
    for name in sorted(drawn_columns(rows), key=lambda name: _panel_of(name)[0]):
        panels.setdefault(_panel_of(name)[1], []).append(name)
    if not panels:
        raise ValueError(f"expected rows with numbers to draw, got {len(rows)} rows without numbers")
    best = best_epoch(rows) if best is None else best
    figure, grid = panel_grid(len(panels), columns, (3.7, 2.7), (0.0, 0.2))
    for axes, (title, names) in zip(grid, panels.items(), strict=True):
        for name, colour in zip(names, COLOURS * (1 + len(names) // len(COLOURS)), strict=False):
            label = name.removeprefix("val_").removeprefix("train_").replace("_", " ").replace("top1", "top-1")
            label = {"map": "mean average precision", "mean iou": "mean IoU"}.get(label, label)
            _draw_line(axes, [(row["epoch"], row[name]) for row in rows if name in row], color=colour, label=label)
            if chance and name in chance:
                axes.axhline(chance[name], ls="--", lw=1, color=colour, label=f"{label}, by chance")
        _label_axes(axes, title, _panel_of(names[0])[2], [row["epoch"] for row in rows])
        if best is not None:
            axes.axvline(best, ls=":", color=GREY, lw=1.3, label=f"best epoch ({best:g})")
        if len(axes.lines) > 1 and (len(names) > 1 or title == VALIDATION_SCORES or len(axes.lines) > 2):
            axes.legend(fontsize=7, framealpha=0.85)
    return figure


def _number_epochs(rows: Sequence[Row]) -> list[Row]:
    return [{"epoch": float(number), **row} for number, row in enumerate(rows, start=1)]


VALIDATION_SCORES = "validation scores"  # title of the panel of all validation scores
# Panels of columns with fixed names, as `_panel_of` returns them.
_PANELS = {
    **dict.fromkeys(("val_mean_iou", "val_pixel_accuracy"), (0, VALIDATION_SCORES, "fraction of pixels")),
    **dict.fromkeys(("val_map", "val_ap", "val_ap50", "val_mask_ap"), (0, VALIDATION_SCORES, "average precision")),
    "val_missed": (1, "missed objects", "fraction of objects"),
    "val_loss": (1, "validation loss", "loss"),
    "train_loss": (2, "training loss, weighted sum", "loss"),
    "lr": (4, "learning rate", "per step"),
    SPEED_COLUMN: (5, "images per second", "images/s"),
}


def _panel_of(name: str) -> tuple[int, str, str]:
    """Return the panel that shows a column: its position among all panels, its title, and the unit of its axis."""
    if name in _PANELS:
        return _PANELS[name]
    if name.startswith(("val_", "monitor_")) and not name.endswith("loss"):
        return 0, VALIDATION_SCORES, "fraction of images"
    if name.startswith("train_"):
        return 3, f"training: {name.removeprefix('train_')}", "loss"
    return 5, name.replace("_", " "), "value"


def _draw_line(axes: Axes, points: Sequence[tuple[float, float]], **style: Any) -> None:
    # A line with a single point would be invisible, and few points are easier to see with markers.
    marker = "o" if len(points) <= MAX_MARKERS else ""
    axes.plot(*zip(*points, strict=True), marker=marker, ms=3, lw=1.5, **style)


def _label_axes(axes: Axes, title: str, unit: str, epochs: Sequence[float]) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("epoch", fontsize=9)
    axes.set_ylabel(unit, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.grid(alpha=0.3)
    if len(epochs) == 1:  # by default, matplotlib would draw fractional epochs
        axes.set_xlim(epochs[0] - 1, epochs[0] + 1)


TITLE_WIDTH = 110  # characters per line of the title of a figure with `PANELS_PER_ROW` columns


def health_figure(rows: Sequence[Row], out_dim: int | None, dim: int, verdict: Verdict | None) -> Figure:
    """Draw the metrics that reveal a collapse, as curves over the epochs, with the verdict as the title.

    The panels show the entropies of the outputs, the spread and the rank of the features, the norm of the centre, the
    agreement of teacher and student, and the k-NN accuracy. Columns of the region head (`region_...`) are drawn as
    dashed lines; panels without values are left out.

    `out_dim` is the number of prototypes K, whose ln K is the entropy of a uniform output, or None without prototypes.
    `dim` is the number of channels D of the features, and `verdict` the failure of the run, or None if it is healthy.
    """
    rows = _number_epochs(rows)
    uniform = None if out_dim is None else (math.log(out_dim), f"uniform: ln {out_dim} = {math.log(out_dim):.2f}")
    # For each panel: title, unit of the vertical axis, columns, and (value, label) of a dotted line or None.
    panels = [
        ("entropy of the outputs", "nats", ("teacher_entropy", "student_entropy", "batch_entropy"), uniform),
        ("spread of the features", "1: all directions, 0: equal", ("feature_spread",), None),
        (f"effective rank of {dim} channels", "directions", ("effective_rank",), (1.0, "a line")),
        ("centre", "length", ("centre_norm",), None),
        ("teacher and student agree", "fraction of images", ("agreement",), None),
        ("nearest neighbours", "fraction of images found", ("val_knn",), None),
    ]
    drawn = []
    for title, unit, names, reference in panels:
        points = {
            name: [(row["epoch"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))]
            for name in (*names, *(f"region_{name}" for name in names))
        }
        if any(points.values()):
            drawn.append((title, unit, names, {name: column for name, column in points.items() if column}, reference))
    if not drawn:
        raise ValueError(f"expected rows with metrics of collapse, got {len(rows)} rows without such metrics")
    columns = min(PANELS_PER_ROW, len(drawn))
    figure, grid = panel_grid(len(drawn), columns, (3.7, 2.8), (max(0.0, 7.4 - 3.7 * columns), 0.7))
    for axes, panel in zip(grid, drawn, strict=True):
        _draw_health_panel(axes, *panel)
    text, colour = ("no sign of collapse", "black") if verdict is None else (verdict.sentence, ORANGE)
    figure.suptitle(textwrap.fill(text, TITLE_WIDTH * columns // PANELS_PER_ROW), fontsize=10, color=colour)
    return figure


def _draw_health_panel(
    axes: Axes,
    title: str,
    unit: str,
    names: Sequence[str],
    points_by_name: Mapping[str, Sequence[tuple[float, float]]],
    reference: tuple[float, str] | None,
) -> None:
    for name, points in points_by_name.items():
        view_name = name.removeprefix("region_")
        label = view_name.removesuffix("_entropy") + (" (regions)" if view_name != name else "")
        colour = COLOURS[names.index(view_name)]
        _draw_line(axes, points, ls="-" if view_name == name else "--", color=colour, label=label)
    if reference is not None:
        axes.axhline(reference[0], color=GREY, lw=1.2, ls=":", label=reference[1])
    _label_axes(axes, title, unit, [epoch for epoch, _ in max(points_by_name.values(), key=len)])
    if "val_knn" not in names:
        top = axes.get_ylim()[1]
        axes.set_ylim(0.0, top + 0.05 * top)  # otherwise a flat line could coincide with the frame
    if len(axes.lines) > 1:
        axes.legend(fontsize=7, framealpha=0.85)
