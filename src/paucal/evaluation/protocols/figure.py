"""The table of frozen features as a picture, and the names of the pictures that lie beside it."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from paucal.evaluation.curves import COLOURS
from paucal.evaluation.plots import GREY, shorten
from paucal.evaluation.protocols.comparison import Row
from paucal.evaluation.protocols.subjects import FLOOR
from paucal.wording import percent

SCORES, MATCHES = "frozen_features.png", "correspondence.png"
MARKERS = "osD^v"  # of the models whose colours come again
MOST_LINES = 60


def shown_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the lines that the picture can show: printed ones that are shares, the first 60."""
    return [row for row in rows if row.line.headline and row.line.unit == "%"][:MOST_LINES]


def protocols_figure(rows: Sequence[Row], level: float) -> Figure:
    """Draw the share of each printed line for all models with its interval, the first model's below none.

    Args:
        rows: of `shown_rows`, at least one.
        level: of the intervals.
    """
    names = list(rows[0].scores)
    room = max(0.42, 0.14 * len(names))  # inches of a line
    figure = Figure(figsize=(5.4, 1.5 + room * max(len(rows), 2)), layout="constrained")
    axes = figure.subplots()
    sets = len({row.data for row in rows})
    most = 0.2 if len(names) < 4 else 0.34
    apart = np.linspace(-most, most, len(names)) if len(names) > 1 else np.zeros(1)
    for name, offset, (colour, marker) in zip(names, apart, _looks(names), strict=True):
        drawn = [(place, row.scores[name]) for place, row in enumerate(rows) if name in row.scores]
        places = np.array([place for place, _ in drawn]) + offset
        values = np.array([100 * score.value for _, score in drawn])
        reach = np.abs(100 * np.array([score.ends for _, score in drawn]).reshape(-1, 2).T - values)
        label = shorten(name, 34)
        axes.errorbar(values, places, xerr=reach, fmt=marker, color=colour, ms=4.5, lw=1.3, capsize=2, label=label)
    axes.set_yticks(range(len(rows)), [_title(row, sets > 1) for row in rows], fontsize=9)
    axes.set(xlim=(-2, 102), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xlabel(f"% of the test images, {percent(level, 'g')} interval")
    axes.grid(axis="x", alpha=0.3)
    axes.hlines(np.arange(1, len(rows)) - 0.5, -2, 102, color=GREY, lw=0.3)
    figure.legend(loc="outside upper center", fontsize=9, frameon=False, ncols=min(len(names), 2))
    return figure


def _looks(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return colour and marker of each model, no two alike: the judged one stands out, the random one steps back."""
    return [
        (GREY if name == FLOOR else COLOURS[place % len(COLOURS)], MARKERS[place // len(COLOURS)])
        for place, name in enumerate(names)
    ]


def _title(row: Row, named: bool) -> str:
    line = row.line
    words = " ".join(word for word in (line.protocol, line.setting, line.score) if word)
    return f"{shorten(row.data)}: {words}" if named else words
