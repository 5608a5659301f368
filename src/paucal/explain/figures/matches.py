"""Two images with lines between the cells that match."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import ConnectionPatch
from matplotlib.patheffects import withStroke
from torch import Tensor

from paucal.explain.features import Correspondence
from paucal.explain.figures.pictures import PANEL, Picture, cell_centre, panels, title

YELLOW, BLUE, RED = "#f5d400", "#1f77ff", "#e3342f"
ENLARGED = 1.4  # factor on a panel's side, to make room for the numbers
SMALLEST, LARGEST = 5.0, 7.0  # points of the numbers, which shrink with the cells
_MARK: dict[str, Any] = {
    "fillstyle": "none",
    "markersize": 15,
    "markeredgewidth": 1.8,
    "zorder": 4,
}  # circle around a number


@dataclass(frozen=True, eq=False)
class MatchedPair:
    """Two images whose cells were matched, for one row of a sheet.

    Attributes:
        pictures: Pictures as `figures.pictures.seen` returns them.
        found: The pairs of cells.
        names: Titles.
        right: (n,) whether each pair is the true one, where that is known.
    """

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

    A blue ring marks the cell nearest to the global feature of its own image, a red triangle the one nearest to that of
    the other. (The published program exchanges row and column of the right image's marks.)
    """
    similar = ", ".join(f"{value:.2f}" for value in found.similarity.tolist()[:3])
    wrong = "" if right is None else ", broken and red where wrong"
    pair = MatchedPair(pictures, found, names, right)
    return _sheet([pair], f"lines: most similar cells (cosine {similar}, ...){wrong}")


def matches_sheet(pairs: Sequence[MatchedPair]) -> Figure:
    """Draw several pairs below each other, true ones with yellow lines and wrong ones with broken red lines."""
    return _sheet(pairs, "lines: most similar cells, broken and red where wrong")


def _sheet(pairs: Sequence[MatchedPair], lines: str) -> Figure:
    shapes = [picture.shape[:2] for pair in pairs for picture in pair.pictures]
    figure, axes = panels(len(pairs), 2, max(shapes, key=max), extra=0.6, scale=ENLARGED)
    for row, pair in zip(axes, pairs, strict=True):
        _draw(figure, row, pair)
    figure.supxlabel(
        f"{lines}\nring: nearest to its own image's feature; triangle: to the other's",
        fontsize=7,
        x=0.02,
        ha="left",
    )
    return figure


def _draw(figure: Figure, axes: Sequence[Axes], pair: MatchedPair) -> None:
    found = pair.found
    for side, (panel, picture, name) in enumerate(zip(axes, pair.pictures, pair.names, strict=True)):
        panel.imshow(picture)
        title(panel, name)
        for cells, mark, colour in ((found.own, "o", BLUE), (found.other, "^", RED)):
            x, y = cell_centre(_pair(cells[side]), found.grids[side], picture.shape)
            white = [withStroke(linewidth=3.4, foreground="white")]
            ring = Line2D([x], [y], marker=mark, color=colour, transform=panel.transData, path_effects=white, **_MARK)
            figure.add_artist(ring)  # of the figure, as the lines are, to lie above them
        _number(figure, panel, picture, found.grids[side], (found.first, found.second)[side])
    truths = [True] * len(found.first) if pair.right is None else pair.right.tolist()
    for one, two, right in zip(found.first, found.second, truths, strict=True):
        start = cell_centre(_pair(one), found.grids[0], pair.pictures[0].shape)
        end = cell_centre(_pair(two), found.grids[1], pair.pictures[1].shape)
        look: dict[str, Any] = {"color": YELLOW} if right else {"color": RED, "linestyle": (0, (3, 2))}
        figure.add_artist(ConnectionPatch(start, end, "data", "data", axesA=axes[0], axesB=axes[1], lw=1.2, **look))


def _number(figure: Figure, panel: Axes, picture: Picture, grid: tuple[int, int], cells: Tensor) -> None:
    """Write at each cell the numbers of the pairs that it belongs to, once."""
    numbers: dict[tuple[int, int], list[int]] = {}
    for number, cell in enumerate(cells, start=1):
        numbers.setdefault(_pair(cell), []).append(number)
    size = min(LARGEST, max(SMALLEST, 0.45 * 72 * ENLARGED * PANEL / max(grid)))
    box = {"boxstyle": "round,pad=0.2", "color": "black", "alpha": 0.65}
    for cell, several in numbers.items():
        x, y = cell_centre(cell, grid, picture.shape)
        text, across = _ranges(several), x / picture.shape[1]
        side = "center" if len(text) < 3 or 0.3 <= across <= 0.7 else "left" if across < 0.3 else "right"
        place = {"ha": side, "va": "center", "transform": panel.transData, "zorder": 5}
        figure.text(x, y, text, color=YELLOW, fontsize=size, bbox=box, **place)


def _ranges(numbers: Sequence[int]) -> str:
    """Return rising numbers as text.

    >>> _ranges([1, 2, 3, 5, 9, 10])
    '1-3, 5, 9, 10'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _pair(cell) -> tuple[int, int]:
    row, column = cell.tolist()
    return row, column
