"""Two images with lines between the cells that match."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch
from torch import Tensor

from paucal.explain.correspondence.matching import Correspondence
from paucal.explain.figures.pictures import Picture, cell_centre, panels, title

YELLOW, BLUE, RED = "#f5d400", "#1f77ff", "#e3342f"


@dataclass(frozen=True, eq=False)
class MatchedPair:
    """Two images whose cells were matched, for one row of a sheet.

    Attributes:
        pictures: as `figures.pictures.seen` returns them.
        found: the pairs of cells.
        names: titles.
        right: (n,) whether each pair is the true one, where that is known.
    """

    pictures: tuple[Picture, Picture]
    found: Correspondence
    names: tuple[str, str]
    right: Tensor | None = None


def matches_figure(
    pictures: tuple[Picture, Picture], found: Correspondence, names: tuple[str, str] = ("first", "second")
) -> Figure:
    """Draw two images with numbered lines from cell centre to cell centre, as EsViT's figures do.

    A blue dot marks the cell nearest to the global feature of its own image, a red triangle the one nearest to that of
    the other. (The published program exchanges row and column of the right image's marks.)
    """
    similar = ", ".join(f"{value:.2f}" for value in found.similarity.tolist()[:3])
    return _sheet([MatchedPair(pictures, found, names)], f"lines: most similar cells (cosine {similar}, ...)")


def matches_sheet(pairs: Sequence[MatchedPair]) -> Figure:
    """Draw several pairs below each other, true ones with yellow lines and wrong ones with broken red lines."""
    return _sheet(pairs, "lines: most similar cells, broken and red where wrong")


def _sheet(pairs: Sequence[MatchedPair], lines: str) -> Figure:
    shapes = [picture.shape[:2] for pair in pairs for picture in pair.pictures]
    figure, axes = panels(len(pairs), 2, max(shapes, key=max), extra=0.6)
    for row, pair in zip(axes, pairs, strict=True):
        _draw(figure, row, pair)
    figure.supxlabel(
        f"{lines}\ndot: nearest to its own image's feature; triangle: to the other's",
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
            panel.plot(x, y, mark, color=colour, markeredgecolor="white", markersize=9, zorder=4)
    truths = [True] * len(found.first) if pair.right is None else pair.right.tolist()
    for number, (one, two, right) in enumerate(zip(found.first, found.second, truths, strict=True), start=1):
        start = cell_centre(_pair(one), found.grids[0], pair.pictures[0].shape)
        end = cell_centre(_pair(two), found.grids[1], pair.pictures[1].shape)
        look: dict[str, Any] = {"color": YELLOW} if right else {"color": RED, "linestyle": (0, (3, 2))}
        figure.add_artist(ConnectionPatch(start, end, "data", "data", axesA=axes[0], axesB=axes[1], lw=1.2, **look))
        for panel, place in zip(axes, (start, end), strict=True):
            box = {"boxstyle": "circle,pad=0.15", "color": "black", "alpha": 0.65}
            panel.text(*place, str(number), color=YELLOW, fontsize=7, ha="center", va="center", bbox=box, zorder=5)


def _pair(cell) -> tuple[int, int]:
    row, column = cell.tolist()
    return row, column
