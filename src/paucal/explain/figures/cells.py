"""Figures of cells: matching cells of two images, and predicted offsets between the cells of one image."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import ConnectionPatch, FancyArrowPatch
from matplotlib.patheffects import withStroke
from torch import Tensor

from paucal.explain.features import Correspondence
from paucal.explain.figures.pictures import PANEL, Picture, caption, cell_centre, cell_heat, colour_bar, panels, title

TRUE, PREDICTED = "#00b4d8", "#f77f00"
MARGIN, BEYOND = 0.03, 0.5  # shares of the picture: margin around an arrow's end, and the furthest that an edge moves
YELLOW, BLUE, RED = "#f5d400", "#1f77ff", "#e3342f"
ENLARGED = 1.4  # factor on a panel's side, to make room for the numbers
SMALLEST, LARGEST = 5.0, 7.0  # font sizes in points of the numbers, which shrink with the cells
# A ring around a number.
_MARK: dict[str, Any] = {"fillstyle": "none", "markersize": 15, "markeredgewidth": 1.8, "zorder": 4}


@dataclass(frozen=True, eq=False)
class MatchedPair:
    """Two images whose cells were matched, for one row of a sheet."""

    pictures: tuple[Picture, Picture]
    found: Correspondence
    names: tuple[str, str]
    right: Tensor | None = None


def matches_figure(
    pictures: tuple[Picture, Picture],
    found: Correspondence,
    names: tuple[str, str] = ("first", "second"),
    right: Tensor | None = None,
) -> Figure:
    """Draw two images with numbered lines from cell centre to cell centre, as EsViT's figures do.

    A blue ring marks the cell nearest to the global feature of its own image, a red triangle the cell nearest to that
    of the other. (The authors' code exchanges row and column of the right image's marks.)
    """
    cosines = ", ".join(f"{value:.2f}" for value in found.similarity.tolist()[:3])
    wrong_note = "" if right is None else ", dashed and red where wrong"
    pair = MatchedPair(pictures, found, names, right)
    return _pairs_sheet([pair], f"lines: most similar cells (cosine {cosines}, ...){wrong_note}")


def matches_sheet(pairs: Sequence[MatchedPair]) -> Figure:
    """Draw several pairs of images below each other; correct matches have yellow lines, wrong ones dashed red lines."""
    return _pairs_sheet(pairs, "lines: most similar cells, dashed and red where wrong")


def _pairs_sheet(pairs: Sequence[MatchedPair], lines: str) -> Figure:
    shapes = [picture.shape[:2] for pair in pairs for picture in pair.pictures]
    figure, axes = panels(len(pairs), 2, max(shapes, key=max), extra=0.6, scale=ENLARGED)
    for row, pair in zip(axes, pairs, strict=True):
        _draw_pair(figure, row, pair)
    caption(figure, f"{lines}\nring: nearest to its own image's feature; triangle: to the other's", 7)
    return figure


def _draw_pair(figure: Figure, axes: Sequence[Axes], pair: MatchedPair) -> None:
    matches = pair.found
    for side, (panel, picture, name) in enumerate(zip(axes, pair.pictures, pair.names, strict=True)):
        panel.imshow(picture)
        title(panel, name)
        for cells, mark, colour in ((matches.own, "o", BLUE), (matches.other, "^", RED)):
            x, y = cell_centre(_to_cell(cells[side]), matches.grids[side], picture.shape)
            white = [withStroke(linewidth=3.4, foreground="white")]
            ring = Line2D([x], [y], marker=mark, color=colour, transform=panel.transData, path_effects=white, **_MARK)
            figure.add_artist(ring)  # added to the figure, like the lines, so that it lies above them
        _write_numbers(figure, panel, picture, matches.grids[side], (matches.first, matches.second)[side])
    truths = [True] * len(matches.first) if pair.right is None else pair.right.tolist()
    for first, second, right in zip(matches.first, matches.second, truths, strict=True):
        start = cell_centre(_to_cell(first), matches.grids[0], pair.pictures[0].shape)
        end = cell_centre(_to_cell(second), matches.grids[1], pair.pictures[1].shape)
        style: dict[str, Any] = {"color": YELLOW} if right else {"color": RED, "linestyle": (0, (3, 2))}
        figure.add_artist(ConnectionPatch(start, end, "data", "data", axesA=axes[0], axesB=axes[1], lw=1.2, **style))


def _write_numbers(figure: Figure, panel: Axes, picture: Picture, grid: tuple[int, int], cells: Tensor) -> None:
    """Write the numbers of a cell's pairs at the cell, as one text."""
    numbers: dict[tuple[int, int], list[int]] = {}
    for number, cell in enumerate(cells, start=1):
        numbers.setdefault(_to_cell(cell), []).append(number)
    size = min(LARGEST, max(SMALLEST, 0.45 * 72 * ENLARGED * PANEL / max(grid)))
    box = {"boxstyle": "round,pad=0.2", "color": "black", "alpha": 0.65}
    for cell, pair_numbers in numbers.items():
        x, y = cell_centre(cell, grid, picture.shape)
        text, across = _format_ranges(pair_numbers), x / picture.shape[1]
        side = "center" if len(text) < 3 or 0.3 <= across <= 0.7 else "left" if across < 0.3 else "right"
        place = {"ha": side, "va": "center", "transform": panel.transData, "zorder": 5}
        figure.text(x, y, text, color=YELLOW, fontsize=size, bbox=box, **place)


def _format_ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text, with runs of three or more as ranges.

    >>> _format_ranges([1, 2, 3, 5, 9, 10])
    '1-3, 5, 9, 10'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _to_cell(cell) -> tuple[int, int]:
    row, column = cell.tolist()
    return row, column


@dataclass(frozen=True, eq=False)
class OffsetView:
    """Predicted and true offsets between all pairs of cells of one image, in cells.

    Attributes:
        predicted: (N, N, 2) rows and columns, first cell minus second.
        true: (N, N, 2) true offsets in the same form; absolute values if the head predicts no directions.
        grid: (rows, columns) with N cells.
        signed: Whether the head predicts directions as well.
    """

    predicted: Tensor
    true: Tensor
    grid: tuple[int, int]
    signed: bool

    def error_map(self) -> Tensor:
        """Return a (rows, columns) map: the mean error, in cells, over the pairs in which each cell comes first."""
        return (self.predicted - self.true).abs().sum(2).mean(1).unflatten(0, self.grid)

    def mean_error(self) -> float:
        """Return the mean error over all pairs, in cells."""
        return float((self.predicted - self.true).abs().sum(2).mean())

    def chance_error(self) -> float:
        """Return the mean error of the best constant prediction, the median of the true offsets."""
        flat = self.true.flatten(0, 1)
        return float((flat - flat.median(0).values).abs().sum(1).mean())


def all_pairs(grid: tuple[int, int]) -> Tensor:
    """Return all ordered pairs of cells (1, N * N, 2, 2), as `paucal.losses.drloc_targets` defines them.

    Example:
        >>> all_pairs((1, 2))[0].tolist()
        [[[0, 0], [0, 0]], [[0, 0], [0, 1]], [[0, 1], [0, 0]], [[0, 1], [0, 1]]]
    """
    rows, columns = grid
    index = torch.arange(rows * columns)
    cells = torch.stack((index // columns, index % columns), 1)
    count = len(cells)
    first, second = cells[:, None].expand(count, count, 2), cells[None].expand(count, count, 2)
    return torch.stack((first, second), 2).flatten(0, 1)[None]


def offsets_figure(picture: Picture, view: OffsetView, first: tuple[int, int], second: tuple[int, int]) -> Figure:
    """Draw the predicted position of one cell relative to another, and the mean error for every cell."""
    figure, axes = panels(1, 2, picture.shape[:2], extra=0.55)
    axes[0][0].imshow(picture)
    true, predicted = _true_and_predicted(view, first, second)
    ends = [
        _draw_arrow(axes[0][0], picture, view, second, true, TRUE, 3.0),
        _draw_arrow(axes[0][0], picture, view, second, predicted, PREDICTED, 1.6),
    ]
    _make_room(axes[0][0], picture, ends)
    title(axes[0][0], f"from {second} to {first}\nblue: true, orange: predicted")
    errors = view.error_map()
    worst = float(errors.max())
    cell_heat(axes[0][1], picture, errors, 0.0, worst)
    title(axes[0][1], f"mean error {view.mean_error():.2f} cells\n(best constant {view.chance_error():.2f})")
    colour_bar(figure, axes[0], 0.0, worst, "error in cells")
    note = "" if view.signed else ";\nthe head predicts only distances, so the arrow has the true direction"
    caption(figure, f"error: rows and columns added, mean over a cell's partners{note}", 7)
    return figure


def _true_and_predicted(
    view: OffsetView, first: tuple[int, int], second: tuple[int, int]
) -> tuple[tuple[float, float], tuple[float, float]]:
    columns = view.grid[1]
    place = (first[0] * columns + first[1], second[0] * columns + second[1])
    true = (float(first[0] - second[0]), float(first[1] - second[1]))
    rows, across = view.predicted[place].tolist()
    if not view.signed:
        rows, across = math.copysign(rows, true[0]), math.copysign(across, true[1])
    return true, (rows, across)


def _draw_arrow(
    axes: Axes,
    picture: Picture,
    view: OffsetView,
    start: tuple[int, int],
    offset: tuple[float, float],
    colour: str,
    line_width: float,
) -> tuple[float, float]:
    x, y = cell_centre(start, view.grid, picture.shape)
    across, down = offset[1] * picture.shape[1] / view.grid[1], offset[0] * picture.shape[0] / view.grid[0]
    end = (x + across, y + down)
    style = {"color": colour, "lw": line_width, "mutation_scale": 14, "shrinkA": 0, "shrinkB": 0}
    axes.add_patch(FancyArrowPatch((x, y), end, arrowstyle="-|>", **style))
    return end


def _make_room(axes: Axes, picture: Picture, points: Sequence[tuple[float, float]]) -> None:
    """Widen a panel to the ends of arrows, by at most `BEYOND` of the picture on each side."""
    limits = []
    for axis, length in ((0, picture.shape[1]), (1, picture.shape[0])):
        coordinates = [point[axis] for point in points]
        margin = MARGIN * length
        low, high = min(-0.5, *(p - margin for p in coordinates)), max(length - 0.5, *(p + margin for p in coordinates))
        limits.append((max(low, -BEYOND * length), min(high, (1 + BEYOND) * length)))
    axes.set(xlim=limits[0], ylim=limits[1][::-1])
