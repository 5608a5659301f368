"""DrLoc's view: what the extra head believes about the offset between two cells, beside the truth.

The figure has some predicted offsets as arrows beside the true ones, and the mean error over the grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from torch import Tensor

from paucal.explain.figures.pictures import Picture, cell_centre, cell_heat, colour_bar, panels, title


@dataclass(frozen=True, eq=False)
class OffsetView:
    """Predicted and true offsets between all pairs of cells of one image, in cells.

    Attributes:
        predicted: (N, N, 2) rows and columns, first cell minus second.
        true: (N, N, 2) likewise; sizes where the head predicts sizes.
        grid: (rows, columns), N of them.
        signed: Whether the head predicts directions as well.
    """

    predicted: Tensor
    true: Tensor
    grid: tuple[int, int]
    signed: bool

    def error_map(self) -> Tensor:
        """Return the mean error in cells of the pairs with each cell as the first, (rows, columns)."""
        return (self.predicted - self.true).abs().sum(2).mean(1).unflatten(0, self.grid)

    def mean_error(self) -> float:
        """Return the mean error over all pairs, in cells."""
        return float((self.predicted - self.true).abs().sum(2).mean())

    def chance_error(self) -> float:
        """Return the mean error of the best constant answer, the median of the true offsets: what no image gives."""
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


TRUE, PREDICTED = "#00b4d8", "#f77f00"
MARGIN, BEYOND = 0.03, 0.5  # shares of the picture: around an arrow's end, and beyond an edge at most


def offsets_figure(picture: Picture, view: OffsetView, first: tuple[int, int], second: tuple[int, int]) -> Figure:
    """Draw where the head believes one cell to be, seen from another, and how far it is off from every cell.

    Args:
        picture: (H, W, 3).
        view: All pairs of the image.
        first: The cell (row, column) whose place is guessed.
        second: The cell it is guessed from.
    """
    figure, axes = panels(1, 2, picture.shape[:2], extra=0.55)
    axes[0][0].imshow(picture)
    true, predicted = _pair(view, first, second)
    ends = [
        _arrow(axes[0][0], picture, view, second, true, TRUE, 3.0),
        _arrow(axes[0][0], picture, view, second, predicted, PREDICTED, 1.6),
    ]
    _make_room(axes[0][0], picture, ends)
    title(axes[0][0], f"from {second} to {first}\nblue: true, orange: predicted")
    errors = view.error_map()
    worst = float(errors.max())
    cell_heat(axes[0][1], picture, errors, 0.0, worst)
    title(axes[0][1], f"mean error {view.mean_error():.2f} cells\n(best constant {view.chance_error():.2f})")
    colour_bar(figure, axes[0], 0.0, worst, "error in cells")
    note = "" if view.signed else ";\nthe head guesses sizes only, so the arrow takes the true direction"
    figure.supxlabel(f"error: rows and columns added, mean over a cell's partners{note}", fontsize=7, x=0.02, ha="left")
    return figure


def _pair(
    view: OffsetView, first: tuple[int, int], second: tuple[int, int]
) -> tuple[tuple[float, float], tuple[float, float]]:
    columns = view.grid[1]
    place = (first[0] * columns + first[1], second[0] * columns + second[1])
    true = (float(first[0] - second[0]), float(first[1] - second[1]))
    found = view.predicted[place]
    rows, across = float(found[0]), float(found[1])
    if not view.signed:
        rows, across = (abs(rows) * (1 if true[0] >= 0 else -1), abs(across) * (1 if true[1] >= 0 else -1))
    return true, (rows, across)


def _arrow(
    axes: Axes,
    picture: Picture,
    view: OffsetView,
    start: tuple[int, int],
    offset: tuple[float, float],
    colour: str,
    wide: float,
) -> tuple[float, float]:
    x, y = cell_centre(start, view.grid, picture.shape)
    across, down = offset[1] * picture.shape[1] / view.grid[1], offset[0] * picture.shape[0] / view.grid[0]
    end = (x + across, y + down)
    style = {"color": colour, "lw": wide, "mutation_scale": 14, "shrinkA": 0, "shrinkB": 0}
    axes.add_patch(FancyArrowPatch((x, y), end, arrowstyle="-|>", **style))
    return end


def _make_room(axes: Axes, picture: Picture, points: Sequence[tuple[float, float]]) -> None:
    """Widen a panel to where arrows end, up to a share of the picture beyond each edge; the rest is cut off there."""
    limits = []
    for axis, length in ((0, picture.shape[1]), (1, picture.shape[0])):
        places = [point[axis] for point in points]
        margin = MARGIN * length
        low, high = min(-0.5, *(place - margin for place in places)), max(length - 0.5, *(p + margin for p in places))
        limits.append((max(low, -BEYOND * length), min(high, (1 + BEYOND) * length)))
    axes.set(xlim=limits[0], ylim=limits[1][::-1])
