"""Figures of matched cells of two images, and of predicted offsets between the cells of one image.

A "cell" is one grid position of a feature map, such as a patch.
"""

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
from paucal.explain.figures.pictures import (
    PANEL,
    Picture,
    cell_centre,
    draw_caption,
    draw_cell_heat,
    draw_colour_bar,
    draw_title,
    make_panels,
)

TRUE_COLOUR, PREDICTED_COLOUR = "#00b4d8", "#f77f00"
# Margin around the end of an arrow, and the most by which a panel is extended on each side to show the ends of arrows.
# Both are fractions of the image's side.
MARGIN, MAX_EXTENSION = 0.03, 0.5
YELLOW, BLUE, RED = "#f5d400", "#1f77ff", "#e3342f"
PANEL_SCALE = 1.4  # factor by which panels are larger than in other figures, to make room for the numbers
MIN_FONT_SIZE, MAX_FONT_SIZE = 5.0, 7.0  # font size of the numbers, in points; small cells get small numbers
# Style of the marker of a cell that is most similar to a global feature. The marker is large enough to surround a
# number.
_MARK: dict[str, Any] = {"fillstyle": "none", "markersize": 15, "markeredgewidth": 1.8, "zorder": 4}


@dataclass(frozen=True, eq=False)
class MatchedPair:
    """Two images with matched cells, drawn in one row of a figure."""

    pictures: tuple[Picture, Picture]
    matches: Correspondence
    names: tuple[str, str] = ("first", "second")  # titles of the images
    is_correct: Tensor | None = None  # (n,) bools that say whether each match is correct; None if this is unknown


def matches_figure(pairs: Sequence[MatchedPair], show_cosines: bool = False) -> Figure:
    """Draw pairs of images below each other, with numbered lines between matched cells as in EsViT's figures.

    Lines are yellow; those of wrong matches are red and dashed. In each image, a blue ring marks the cell that is most
    similar to the image's global feature, and a red triangle marks the cell that is most similar to the other image's
    global feature. (In the authors' code, row and column of the right image's markers are swapped.) If `show_cosines`
    is True, the caption contains the three highest similarities of the first pair of images.
    """
    shapes = [picture.shape[:2] for pair in pairs for picture in pair.pictures]
    figure, axes = make_panels(len(pairs), 2, max(shapes, key=max), extra=0.6, scale=PANEL_SCALE)
    for row, pair in zip(axes, pairs, strict=True):
        _draw_pair(figure, row, pair)
    cosines = ", ".join(f"{value:.2f}" for value in pairs[0].matches.similarity.tolist()[:3])
    lines = f"lines: most similar cells (cosine {cosines}, ...)" if show_cosines else "lines: most similar cells"
    lines += "" if pairs[0].is_correct is None else ", dashed and red where wrong"
    marks = "ring: cell nearest to its image's global feature; triangle: nearest to the other image's"
    draw_caption(figure, f"{lines}\n{marks}", 7)
    return figure


def _draw_pair(figure: Figure, axes: Sequence[Axes], pair: MatchedPair) -> None:
    matches = pair.matches
    for side, (panel, picture, name) in enumerate(zip(axes, pair.pictures, pair.names, strict=True)):
        panel.imshow(picture)
        draw_title(panel, name)
        for cells, mark, colour in ((matches.own, "o", BLUE), (matches.other, "^", RED)):
            x, y = cell_centre(_to_cell(cells[side]), matches.grids[side], picture.shape)
            white = [withStroke(linewidth=3.4, foreground="white")]
            ring = Line2D([x], [y], marker=mark, color=colour, transform=panel.transData, path_effects=white, **_MARK)
            figure.add_artist(ring)  # added to the figure, like the lines, so that it is drawn above the lines
        _write_numbers(figure, panel, picture, matches.grids[side], (matches.first, matches.second)[side])
    are_correct = [True] * len(matches.first) if pair.is_correct is None else pair.is_correct.tolist()
    for first, second, is_correct in zip(matches.first, matches.second, are_correct, strict=True):
        start = cell_centre(_to_cell(first), matches.grids[0], pair.pictures[0].shape)
        end = cell_centre(_to_cell(second), matches.grids[1], pair.pictures[1].shape)
        style: dict[str, Any] = {"color": YELLOW} if is_correct else {"color": RED, "linestyle": (0, (3, 2))}
        figure.add_artist(ConnectionPatch(start, end, "data", "data", axesA=axes[0], axesB=axes[1], lw=1.2, **style))


def _write_numbers(figure: Figure, panel: Axes, picture: Picture, grid: tuple[int, int], cells: Tensor) -> None:
    """Write the numbers of the matched pairs at their cells; a cell may belong to several pairs."""
    numbers: dict[tuple[int, int], list[int]] = {}
    for number, cell in enumerate(cells, start=1):
        numbers.setdefault(_to_cell(cell), []).append(number)
    size = min(MAX_FONT_SIZE, max(MIN_FONT_SIZE, 0.45 * 72 * PANEL_SCALE * PANEL / max(grid)))
    box = {"boxstyle": "round,pad=0.2", "color": "black", "alpha": 0.65}
    for cell, pair_numbers in numbers.items():
        runs: list[list[int]] = []
        for number in pair_numbers:
            if runs and runs[-1][-1] == number - 1:
                runs[-1].append(number)
            else:
                runs.append([number])
        # Runs of three or more numbers are written as ranges: 1-3, 5, 9, 10.
        text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
        x, y = cell_centre(cell, grid, picture.shape)
        x_share = x / picture.shape[1]
        alignment = "center" if len(text) < 3 or 0.3 <= x_share <= 0.7 else "left" if x_share < 0.3 else "right"
        position = {"ha": alignment, "va": "center", "transform": panel.transData, "zorder": 5}
        figure.text(x, y, text, color=YELLOW, fontsize=size, bbox=box, **position)


def _to_cell(cell) -> tuple[int, int]:
    row, column = cell.tolist()
    return row, column


@dataclass(frozen=True, eq=False)
class OffsetView:
    """Predicted and true offsets between all pairs of cells of one image, in units of cells."""

    # (N, N, 2) predicted offsets (rows, columns): position of the first cell minus position of the second.
    predicted: Tensor
    true: Tensor  # (N, N, 2) true offsets; absolute values if the head predicts only distances
    grid: tuple[int, int]  # (rows, columns) of the N cells
    signed: bool  # whether the head predicts signed offsets instead of distances

    def error_map(self) -> Tensor:
        """Return the (rows, columns) mean errors, in cells; each is a mean over all pairs with the same first cell."""
        return (self.predicted - self.true).abs().sum(2).mean(1).unflatten(0, self.grid)

    def mean_error(self) -> float:
        """Return the mean error over all pairs, in cells."""
        return float((self.predicted - self.true).abs().sum(2).mean())

    def chance_error(self) -> float:
        """Return the mean error of the best constant prediction, which is the median of the true offsets."""
        flat = self.true.flatten(0, 1)
        return float((flat - flat.median(0).values).abs().sum(1).mean())


def all_pairs(grid: tuple[int, int]) -> Tensor:
    """Return all ordered pairs of the N cells of a grid, (1, N * N, 2, 2), as input for `paucal.losses.drloc_targets`.

    >>> all_pairs((1, 2))[0].tolist()
    [[[0, 0], [0, 0]], [[0, 0], [0, 1]], [[0, 1], [0, 0]], [[0, 1], [0, 1]]]
    """
    cells = torch.cartesian_prod(*map(torch.arange, grid))
    index = torch.arange(len(cells))
    return cells[torch.cartesian_prod(index, index)][None]


def offsets_figure(picture: Picture, view: OffsetView, first: tuple[int, int], second: tuple[int, int]) -> Figure:
    """Draw the true and the predicted offset from the second to the first cell, and the mean error of each cell."""
    figure, axes = make_panels(1, 2, picture.shape[:2], extra=0.55)
    axes[0][0].imshow(picture)
    columns = view.grid[1]
    row_offset, column_offset = view.predicted[first[0] * columns + first[1], second[0] * columns + second[1]].tolist()
    true = (float(first[0] - second[0]), float(first[1] - second[1]))
    if not view.signed:
        row_offset, column_offset = math.copysign(row_offset, true[0]), math.copysign(column_offset, true[1])
    ends = []
    for offset, colour, line_width in (
        (true, TRUE_COLOUR, 3.0),
        ((row_offset, column_offset), PREDICTED_COLOUR, 1.6),
    ):
        x, y = cell_centre(second, view.grid, picture.shape)
        ends.append((x + offset[1] * picture.shape[1] / columns, y + offset[0] * picture.shape[0] / view.grid[0]))
        style = {"color": colour, "lw": line_width, "mutation_scale": 14, "shrinkA": 0, "shrinkB": 0}
        axes[0][0].add_patch(FancyArrowPatch((x, y), ends[-1], arrowstyle="-|>", **style))
    # The panel is extended to include the ends of the arrows.
    limits = []
    for axis, length in ((0, picture.shape[1]), (1, picture.shape[0])):
        margin = MARGIN * length
        low = min(-0.5, *(end[axis] - margin for end in ends))
        high = max(length - 0.5, *(end[axis] + margin for end in ends))
        limits.append((max(low, -MAX_EXTENSION * length), min(high, (1 + MAX_EXTENSION) * length)))
    axes[0][0].set(xlim=limits[0], ylim=limits[1][::-1])
    draw_title(axes[0][0], f"from {second} to {first}\nblue: true, orange: predicted")
    errors = view.error_map()
    max_error = float(errors.max())
    draw_cell_heat(axes[0][1], picture, errors, 0.0, max_error)
    draw_title(axes[0][1], f"mean error {view.mean_error():.2f} cells\n(best constant {view.chance_error():.2f})")
    draw_colour_bar(figure, axes[0], 0.0, max_error, "error in cells")
    note = "" if view.signed else ";\nthe head predicts only distances, so the arrow has the true direction"
    draw_caption(figure, f"error: sum of the errors in rows and columns, mean over all pairs of a cell{note}", 7)
    return figure
