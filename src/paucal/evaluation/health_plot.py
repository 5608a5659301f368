"""A picture of how self-distillation is doing, from the rows of `metrics.csv`."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from paucal.evaluation.collapse import Verdict
from paucal.evaluation.curves import COLOURS
from paucal.evaluation.plots import GREY, ORANGE

Row = Mapping[str, float]
COLUMNS = 3
FEW_POINTS = 30  # up to which each is marked
LINE_LENGTH = 110  # letters of the title


@dataclass(frozen=True)
class _Panel:
    """One small picture: its columns, and where the numbers lie when all is lost or as good as possible."""

    title: str
    unit: str
    names: Sequence[str]
    level: tuple[float, str] | None = None
    low: float | None = 0.0


def health_figure(rows: Sequence[Row], out_dim: int | None, dim: int, verdict: Verdict | None) -> Figure:
    """Draw entropies, features, centres, agreement and nearest neighbours over the epochs, with the verdict above.

    Columns of the region head (`region_...`) are drawn dashed; a panel without numbers is left out.

    Args:
        rows: one per epoch; "epoch" is the row's number from 1 where it is missing.
        out_dim: K, whose ln K is the entropy of an answer that means nothing; None where there are no prototypes.
        dim: D, channels of the features.
        verdict: what is wrong; None where nothing is.

    Raises:
        ValueError: no row has a number to draw.
    """
    numbered = [{"epoch": float(number), **row} for number, row in enumerate(rows, start=1)]
    panels = [(panel, drawn) for panel in _panels(out_dim, dim) if (drawn := _drawn(numbered, panel.names))]
    if not panels:
        raise ValueError(f"expected rows with numbers on the networks' health, got {len(rows)} rows without")
    columns = min(COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(max(3.7 * columns, 7.4), 2.8 * lines + 0.7), layout="constrained")
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes, (panel, drawn) in zip(grid, panels, strict=False):
        _draw(axes, panel, drawn)
    for axes in grid[len(panels) :]:
        axes.remove()
    text = "no sign of collapse" if verdict is None else verdict.sentence
    colour = "black" if verdict is None else ORANGE
    figure.suptitle(textwrap.fill(text, LINE_LENGTH * columns // COLUMNS), fontsize=10, color=colour)
    return figure


def _panels(out_dim: int | None, dim: int) -> list[_Panel]:
    entropies, level = ("teacher_entropy", "student_entropy", "batch_entropy"), None
    if out_dim is not None:
        level = math.log(out_dim), f"all alike: ln {out_dim} = {math.log(out_dim):.2f}"
    return [
        _Panel("entropy of the answers", "nats", entropies, level),
        _Panel("spread of the features", "1: all directions alike, 0: equal", ("feature_spread",)),
        _Panel(f"effective rank of {dim} channels", "directions", ("effective_rank",), (1.0, "a line")),
        _Panel("centre", "length", ("centre_norm",)),
        _Panel("teacher and student agree", "share of images", ("agreement",)),
        _Panel("nearest neighbours", "share of images found", ("val_knn",), low=None),
    ]


def _drawn(rows: Sequence[Row], names: Sequence[str]) -> dict[str, list[tuple[float, float]]]:
    """Return the points of each column, of both heads, that has any."""
    both = [*names, *(f"region_{name}" for name in names)]
    points = {
        name: [(row["epoch"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))] for name in both
    }
    return {name: found for name, found in points.items() if found}


def _draw(axes: Axes, panel: _Panel, drawn: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    for name, points in drawn.items():
        plain = name.removeprefix("region_")
        colour = COLOURS[panel.names.index(plain)]
        label = plain.removesuffix("_entropy") + (" (regions)" if plain != name else "")
        marker, style = ("o" if len(points) <= FEW_POINTS else ""), ("-" if plain == name else "--")
        axes.plot(*zip(*points, strict=True), marker=marker, ms=3, lw=1.5, ls=style, color=colour, label=label)
    if panel.level is not None:
        axes.axhline(panel.level[0], color=GREY, lw=1.2, ls=":", label=panel.level[1])
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel("epoch", fontsize=9)
    axes.set_ylabel(panel.unit, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.grid(alpha=0.3)
    if panel.low is not None:
        top = axes.get_ylim()[1]
        axes.set_ylim(panel.low, top + 0.05 * (top - panel.low))  # else a level line lies on the frame
    if max(len(points) for points in drawn.values()) == 1:  # else the axis cuts the only epoch into fractions
        only = next(iter(drawn.values()))[0][0]
        axes.set_xlim(only - 1, only + 1)
    if len(axes.lines) > 1:
        axes.legend(fontsize=7, framealpha=0.85)
