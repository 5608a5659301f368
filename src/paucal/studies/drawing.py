"""EsViT's figure 1: accuracy against images per second, and against parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paucal.studies.outcome import Line
from paucal.studies.study import FIGURE_AXES, Study

PICTURE = "figure.png"
LARGEST = 900.0  # area of a circle in square points
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:gray")


@dataclass(frozen=True)
class Point:
    """A row of the figure.

    Attributes:
        name: Name of the row.
        values: Accuracy in percent, images per second and parameters in millions, by the names in `FIGURE_AXES`; None
            if unknown.
        quoted: Names of the values that are published, not measured here.
    """

    name: str
    values: Mapping[str, float | None]
    quoted: frozenset[str]


def points_of(study: Study, lines: Sequence[Line]) -> list[Point]:
    """Return the point of each row, with the measured number if there is one, else the published one."""
    lines_by_name = {(line.row.name, line.column.name): line for line in lines}
    points = []
    for row in study.rows:
        part_lines = {part: lines_by_name[row.name, study.draws[part]] for part in FIGURE_AXES}
        shown = {p: line.published if line.measured is None else line.measured.value for p, line in part_lines.items()}
        values = {part: value if isinstance(value, float) else None for part, value in shown.items()}
        quoted = frozenset(part for part, line in part_lines.items() if line.measured is None)
        points.append(Point(row.name, values, quoted))
    return points


def efficiency_figure(points: Sequence[Point]) -> Figure:
    """Draw accuracy against images per second, with circles as large as the parameters, and against parameters.

    Filled circles have a throughput measured here; stars mark accuracies measured here.
    """
    figure = Figure(figsize=(13, 6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    families = dict.fromkeys(point.name.split()[0] for point in points)
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(families)}
    largest = max(point.values["parameters"] or 0.0 for point in points if point.values["throughput"])
    for point in points:
        colour = colours[point.name.split()[0]]
        share = (point.values["parameters"] or largest) / largest
        _draw_circle(left, point, "throughput", colour, max(30.0, LARGEST * share))
        _draw_circle(right, point, "parameters", colour, 60.0)
    left.set_xlabel("images per second; larger circles have more parameters")
    right.set_xlabel("parameters in millions")
    left.set_ylabel("linear probe on ImageNet-1K, top-1 in %")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.margins(0.12)
        axes.grid(alpha=0.3)
    return figure


def _draw_circle(axes: Axes, point: Point, across: str, colour: str, area: float) -> None:
    x, y = point.values[across], point.values["accuracy"]
    if x is None or y is None:
        return
    filled = colour if across not in point.quoted else "none"
    axes.scatter([x], [y], s=area, facecolors=filled, edgecolors=colour, alpha=0.7, linewidths=1.5)
    star = "" if "accuracy" in point.quoted else "*"
    axes.annotate(point.name + star, (x, y), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=7)


def describe_sources(study: Study, points: Sequence[Point], places: Mapping[str, str]) -> list[str]:
    """Return sentences on the sources of the figure's numbers.

    `places` are the folders searched for measured accuracies, by the name of the study that measures them.
    """
    accuracy = next(column for column in study.columns if column.name == study.draws["accuracy"])
    timed = [point.name for point in points if "throughput" not in point.quoted]
    measured_names = [point.name for point in points if "accuracy" not in point.quoted]
    place = places[accuracy.study]
    quoted = f"the accuracies of {accuracy.study} are the published ones"
    if measured_names:
        text = f"Measured accuracies (with a star) are those of {place}: {', '.join(measured_names)}; else {quoted}."
    else:
        text = f"{quoted[0].upper()}{quoted[1:]}: {place} has no measured ones."
    times = f"Filled circles on the left were timed here: {', '.join(timed) or 'none'}; the others are as published."
    return [text, times]
