"""EsViT's figure 1: accuracy against images per second, and accuracy against parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paucal.studies.outcome import TableNumber
from paucal.studies.study import FIGURE_AXES, Study

FIGURE_FILE = "figure.png"
MAX_CIRCLE_AREA = 900.0  # area of the largest circle in square points (1 point = 1/72 inch)
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:gray")


@dataclass(frozen=True)
class Point:
    """A row of the study, which the figure shows as a circle.

    Attributes:
        values: Accuracy in percent, images per second, and parameters in millions, by the names in `FIGURE_AXES`;
            unknown values are None.
        quoted: Names of the values that were taken from the paper instead of being measured here.
    """

    name: str
    values: Mapping[str, float | None]
    quoted: frozenset[str]


def points_of(study: Study, lines: Sequence[TableNumber]) -> list[Point]:
    """Return a point for each row, with measured values where they exist, and otherwise with published values."""
    lines_by_name = {(line.row.name, line.column.name): line for line in lines}
    points = []
    for row in study.rows:
        line_of = {axis: lines_by_name[row.name, study.draws[axis]] for axis in FIGURE_AXES}
        shown = {a: line.published if line.measured is None else line.measured.value for a, line in line_of.items()}
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
