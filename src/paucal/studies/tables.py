"""The results of a study: tables for the terminal, `results.csv` and the page, and a figure like EsViT's figure 1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from paucal.studies.descriptions import format_published
from paucal.studies.numbers import NOT_RUN, RESULTS_FILE, TableNumber
from paucal.studies.study import FIGURE_AXES, Study
from paucal.verbs.compare.report import format_interval
from paucal.writing import csv_text, write_text

DECIMALS = {  # number of decimals in tables, by metric; other metrics have 1 decimal
    **dict.fromkeys(("params", "gmacs", "gmacs_all", "correspondence_distance", "throughput", "average"), 2),
    **{"wins": 0, "correspondence": 3, "seconds_per_step": 4},
}
FIGURE_FILE = "figure.png"
MAX_CIRCLE_AREA = 900.0  # area of the largest circle in square points (1 point = 1/72 inch)
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:gray")


def shown_rows(lines: Sequence[TableNumber], heading: str = "measured") -> list[dict[str, str]]:
    """Return a row for each number of the page, by column heading; the measured numbers are in column `heading`."""
    rows = []
    for line in lines:
        if line.published is None and line.why == NOT_RUN:
            continue
        measured, digits = line.measured, DECIMALS.get(line.column.metric, 1)
        text, gain, random = f"({line.why})", "-", "-"
        if measured is not None:
            text = f"{measured.value:.{digits}f}"
            if measured.low is not None and measured.high is not None:
                text += f" ({measured.low:.{digits}f} to {measured.high:.{digits}f})"
            elif measured.deviation is not None:
                text += f" ± {measured.deviation:.{digits}f}"
            if measured.gain is not None:
                gain, difference = f"{measured.gain:+.{digits}f}", measured.difference
                if difference is not None and difference.both.low is not None:
                    gain += f" ({format_interval(difference.both)})"
            random = "-" if measured.random is None else f"{measured.random:.{digits}f}"
        row = {"row": line.row.name, "column": line.column.name}
        row |= {"published": format_published(line.published, line.deviation), heading: text}
        row["gain published"] = "-" if line.gain is None else f"{line.gain:+.2f}"
        rows.append({**row, "gain measured": gain, "random weights": random})
    optional = ("gain published", "gain measured", "random weights")
    empty = [name for name in optional if all(row[name] == "-" for row in rows)]
    return [{name: text for name, text in row.items() if name not in empty} for row in rows]


def terminal_table(study: Study, rows: Sequence[Mapping[str, str]]) -> Table:
    """Return the rows of `shown_rows` as a table for the terminal; repeated row names are left blank."""
    title = f"{study.title} ({study.paper}, {study.where})"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for index, heading in enumerate(rows[0]):
        table.add_column(heading, justify="left" if index < 2 else "right")
    previous = ""
    for row in rows:
        first, *other_cells = row.values()
        table.add_row("" if first == previous else first, *other_cells)
        previous = first
    return table


def write_results(folder: Path, lines: Sequence[TableNumber]) -> None:
    """Write `results.csv`, with one row for each number."""
    names = {"measured": "value", "measured_sd": "deviation", "measured_low": "low", "measured_high": "high"}
    names |= {"seeds": "seeds", "measured_gain": "gain"}
    rows = []
    for line in lines:
        measured = line.measured
        interval = None if measured is None or measured.difference is None else measured.difference.both
        row = {"row": line.row.name, "column": line.column.name, "metric": line.column.metric}
        row |= {"published": line.published, "published_sd": line.deviation, "published_gain": line.gain}
        row |= {column: getattr(measured, name, None) for column, name in names.items()}
        row["gain_low"] = None if interval is None or interval.low is None else 100 * interval.low
        row["gain_high"] = None if interval is None or interval.high is None else 100 * interval.high
        rows.append({**row, "random": getattr(measured, "random", None), "why": line.why})
    write_text(folder / RESULTS_FILE, csv_text(rows[0], *(row.values() for row in rows)))


@dataclass(frozen=True)
class Point:
    """A row of the study, which the figure shows as a circle."""

    name: str
    # Accuracy in percent, images per second and millions of parameters, by the names in `FIGURE_AXES`; None if unknown.
    values: Mapping[str, float | None]
    quoted: frozenset[str]  # names of the values that were taken from the paper instead of being measured here


def points_of(study: Study, lines: Sequence[TableNumber]) -> list[Point]:
    """Return a point for each row, with measured values where they exist, and otherwise with published values."""
    lines_by_name = {(line.row.name, line.column.name): line for line in lines}
    points = []
    for row in study.rows:
        line_of = {axis: lines_by_name[row.name, study.draws[axis]] for axis in FIGURE_AXES}
        shown = {axis: (line.measured.value if line.measured else line.published) for axis, line in line_of.items()}
        values = {axis: value if isinstance(value, float) else None for axis, value in shown.items()}
        quoted = frozenset(axis for axis, line in line_of.items() if line.measured is None)
        points.append(Point(row.name, values, quoted))
    return points


def efficiency_figure(points: Sequence[Point]) -> Figure:
    """Draw accuracy against images per second in the left panel, and against parameters in the right panel.

    In the left panel, the area of a circle is proportional to the number of parameters. A circle is filled if the value
    on the x axis was measured here. A star follows a row's name if the accuracy was measured here.
    """
    figure = Figure(figsize=(13, 6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    families = dict.fromkeys(point.name.split()[0] for point in points)
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(families)}
    largest = max(point.values["parameters"] or 0.0 for point in points if point.values["throughput"])
    for point in points:
        colour = colours[point.name.split()[0]]
        relative_size = (point.values["parameters"] or largest) / largest
        _draw_circle(left, point, "throughput", colour, max(30.0, MAX_CIRCLE_AREA * relative_size))
        _draw_circle(right, point, "parameters", colour, 60.0)
    left.set_xlabel("images per second; larger circles have more parameters")
    right.set_xlabel("parameters in millions")
    left.set_ylabel("linear probe on ImageNet-1K, top-1 in %")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.margins(0.12)
        axes.grid(alpha=0.3)
    return figure


def _draw_circle(axes: Axes, point: Point, x_name: str, colour: str, area: float) -> None:
    x, y = point.values[x_name], point.values["accuracy"]
    if x is None or y is None:
        return
    filled = colour if x_name not in point.quoted else "none"
    axes.scatter([x], [y], s=area, facecolors=filled, edgecolors=colour, alpha=0.7, linewidths=1.5)
    star = "" if "accuracy" in point.quoted else "*"
    axes.annotate(point.name + star, (x, y), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=7)


def describe_sources(study: Study, points: Sequence[Point], folders: Mapping[str, str]) -> list[str]:
    """Return sentences that say which numbers of the figure were measured, and which are published numbers.

    `folders` maps the name of each study that measures accuracies to the folder that was searched for its results.
    """
    accuracy_column = next(column for column in study.columns if column.name == study.draws["accuracy"])
    timed = [point.name for point in points if "throughput" not in point.quoted]
    measured_names = [point.name for point in points if "accuracy" not in point.quoted]
    folder = folders[accuracy_column.study]
    published = f"published values of {accuracy_column.study}"
    text = f"All accuracies are {published}, since {folder} has no measured accuracies."
    if measured_names:
        measured = f"Accuracies with a star were measured in {folder}: {', '.join(measured_names)}"
        text = f"{measured}; all other accuracies are {published}."
    times = f"Filled circles on the left were timed here: {', '.join(timed) or 'none'}; all other times are published."
    return [text, times]
