"""Two images with lines between the cells that match."""

from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch

from paucal.explain.correspondence.matching import Correspondence
from paucal.explain.figures.pictures import Picture, cell_centre, panels, title

YELLOW, BLUE, RED = "#f5d400", "#1f77ff", "#e3342f"


def matches_figure(
    pictures: tuple[Picture, Picture], found: Correspondence, names: tuple[str, str] = ("first", "second")
) -> Figure:
    """Draw two images with numbered lines from cell centre to cell centre, as EsViT's figures do.

    A blue dot marks the cell nearest to the global feature of its own image, a red triangle the one nearest to that of
    the other. (The published program exchanges row and column of the right image's marks.)
    """
    shapes = [picture.shape[:2] for picture in pictures]
    figure, axes = panels(1, 2, max(shapes, key=max), extra=0.6)
    for side, (panel, picture, name) in enumerate(zip(axes[0], pictures, names, strict=True)):
        panel.imshow(picture)
        title(panel, name)
        for cells, mark, colour in ((found.own, "o", BLUE), (found.other, "^", RED)):
            x, y = cell_centre(_pair(cells[side]), found.grids[side], picture.shape)
            panel.plot(x, y, mark, color=colour, markeredgecolor="white", markersize=9, zorder=4)
    for number, (one, two) in enumerate(zip(found.first, found.second, strict=True), start=1):
        start = cell_centre(_pair(one), found.grids[0], pictures[0].shape)
        end = cell_centre(_pair(two), found.grids[1], pictures[1].shape)
        line = ConnectionPatch(start, end, "data", "data", axesA=axes[0][0], axesB=axes[0][1], color=YELLOW, lw=1.2)
        figure.add_artist(line)
        for panel, place in zip(axes[0], (start, end), strict=True):
            box = {"boxstyle": "circle,pad=0.15", "color": "black", "alpha": 0.65}
            panel.text(*place, str(number), color=YELLOW, fontsize=7, ha="center", va="center", bbox=box, zorder=5)
    similar = ", ".join(f"{value:.2f}" for value in found.similarity.tolist()[:3])
    figure.supxlabel(
        f"lines: most similar cells (cosine {similar}, ...); dot: nearest to its own image's feature; triangle: to the "
        "other's",
        fontsize=7,
        x=0.02,
        ha="left",
    )
    return figure


def _pair(cell) -> tuple[int, int]:
    row, column = cell.tolist()
    return row, column
