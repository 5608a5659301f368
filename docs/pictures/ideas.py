"""Draws the idea of each method, when it is run: `python docs/pictures/ideas.py`."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle
from sklearn.datasets import load_digits

mpl.use("Agg")
HERE = Path(__file__).parent
DIGITS = load_digits()
INK, BLUE, RED, GREEN = "#222222", "#1f4e79", "#b3261e", "#2e7d32"


def canvas(width: float = 9.0, height: float = 2.6) -> Axes:
    """Return axes in inches, without a frame."""
    figure = plt.figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    return axes


def save(axes: Axes, name: str) -> None:
    """Write one picture."""
    axes.figure.savefig(HERE / f"idea_{name}.png", dpi=90)
    plt.close(axes.figure)


def digit(axes: Axes, index: int, x: float, y: float, side: float) -> None:
    """Draw a digit with its lower left corner at (x, y)."""
    axes.imshow(
        DIGITS.images[index], cmap="gray_r", extent=(x, x + side, y, y + side), interpolation="nearest", zorder=1
    )


def grid(axes: Axes, x: float, y: float, side: float, cells: int) -> None:
    """Draw the borders of cells."""
    for k in range(cells + 1):
        axes.plot([x + k * side / cells] * 2, [y, y + side], color="#888888", lw=0.7, zorder=2)
        axes.plot([x, x + side], [y + k * side / cells] * 2, color="#888888", lw=0.7, zorder=2)


def cell(axes: Axes, x: float, y: float, size: float, colour: str) -> None:
    """Outline one cell."""
    axes.add_patch(Rectangle((x, y), size, size, fill=False, ec=colour, lw=2.5, zorder=3))


def box(axes: Axes, x: float, y: float, width: float, height: float, text: str, colour: str = BLUE) -> None:
    """Draw a named part of a network."""
    style = "round,pad=0.02,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, fc="white", ec=colour, lw=1.5, zorder=3))
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=10, color=INK, zorder=4)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = INK, style: str = "-|>"
) -> None:
    """Draw an arrow."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": style, "color": colour, "lw": 1.4}, zorder=5)


def word(axes: Axes, x: float, y: float, text: str, colour: str = INK, size: float = 10) -> None:
    """Write something."""
    axes.text(x, y, text, ha="center", va="center", fontsize=size, color=colour, zorder=6)


def drloc() -> None:
    """Draw two cells of a grid, and the network that says how far apart they are."""
    axes = canvas()
    digit(axes, 8, 0.2, 0.3, 2.0)
    grid(axes, 0.2, 0.3, 2.0, 4)
    cell(axes, 0.2, 1.8, 0.5, RED)
    cell(axes, 1.7, 0.8, 0.5, BLUE)
    arrow(axes, (0.45, 2.05), (1.95, 1.05), RED)
    box(axes, 3.0, 1.6, 1.5, 0.6, "what cell A\nlooks like", RED)
    box(axes, 3.0, 0.4, 1.5, 0.6, "what cell B\nlooks like", BLUE)
    arrow(axes, (2.3, 1.9), (2.95, 1.9))
    arrow(axes, (2.3, 0.9), (2.95, 0.7))
    box(axes, 5.2, 1.0, 1.4, 0.6, "small network f")
    arrow(axes, (4.55, 1.8), (5.15, 1.4))
    arrow(axes, (4.55, 0.75), (5.15, 1.2))
    arrow(axes, (6.65, 1.3), (7.2, 1.3))
    word(axes, 8.05, 1.5, "2 of 4 rows: 0.50")
    word(axes, 8.05, 1.1, "3 of 4 columns: 0.75")
    save(axes, "drloc")


def dhvt() -> None:
    """Draw where DHVT has convolutions, and its head tokens."""
    axes = canvas()
    digit(axes, 8, 0.2, 0.6, 1.4)
    box(axes, 2.1, 0.8, 1.3, 1.0, "3x3 convolutions\ninstead of\npatches", GREEN)
    box(axes, 4.1, 0.8, 1.6, 1.0, "attention:\ncells and one\ntoken per head", BLUE)
    box(axes, 6.3, 0.8, 1.5, 1.0, "feed-forward\nwith a 3x3\nconvolution", GREEN)
    for x, end in ((1.65, 2.05), (3.45, 4.05), (5.75, 6.25), (7.85, 8.2)):
        arrow(axes, (x, 1.3), (end, 1.3))
    word(axes, 8.55, 1.3, "class")
    axes.plot([3.85, 3.85, 8.05, 8.05, 3.85], [0.45, 2.15, 2.15, 0.45, 0.45], color="#888888", lw=1, ls="--")
    word(axes, 5.95, 2.35, "every block, 12 times")
    word(axes, 2.4, 0.25, "neighbours belong together", GREEN)
    word(axes, 5.6, 0.25, "heads exchange what they found", BLUE)
    save(axes, "dhvt")


def tokens() -> None:
    """Draw a scene of four digits, and the label that a teacher gives each cell."""
    axes = canvas()
    chosen = (0, 4, 3, 7)
    for k, index in enumerate(chosen):
        digit(axes, index, 0.2 + k % 2, 1.3 - k // 2, 1.0)
    grid(axes, 0.2, 0.3, 2.0, 4)
    box(axes, 3.0, 1.0, 1.4, 0.6, "teacher, once")
    arrow(axes, (2.3, 1.3), (2.95, 1.3))
    arrow(axes, (4.45, 1.3), (4.95, 1.3))
    for row in range(4):
        for column in range(4):
            name = chosen[2 * (row // 2) + column // 2]
            word(
                axes,
                5.25 + column * 0.5,
                2.05 - row * 0.5,
                str(name),
                (BLUE, RED, GREEN, INK)[2 * (row // 2) + column // 2],
            )
    grid(axes, 5.0, 0.3, 2.0, 4)
    box(axes, 7.5, 0.7, 1.3, 1.2, "student:\nevery cell\nlearns its\nown label")
    arrow(axes, (7.05, 1.3), (7.45, 1.3))
    save(axes, "tokens")


def esvit() -> None:
    """Draw student and teacher, and the cells that are matched."""
    axes = canvas(9.0, 3.0)
    digit(axes, 8, 0.2, 1.7, 1.1)
    digit(axes, 8, 0.35, 0.3, 0.9)
    grid(axes, 0.2, 1.7, 1.1, 3)
    grid(axes, 0.35, 0.3, 0.9, 3)
    box(axes, 1.9, 1.95, 1.5, 0.6, "teacher:\nslow average", GREEN)
    box(axes, 1.9, 0.45, 1.5, 0.6, "student", BLUE)
    arrow(axes, (1.4, 2.25), (1.85, 2.25))
    arrow(axes, (1.4, 0.75), (1.85, 0.75))
    arrow(axes, (2.65, 1.1), (2.65, 1.9), GREEN)
    heights = (0.1, 0.75, 0.2, 0.4, 0.1)
    for y, colour, shares in ((1.95, GREEN, heights), (0.45, BLUE, heights[::-1])):
        for k, share in enumerate(shares):
            axes.add_patch(Rectangle((4.0 + 0.2 * k, y), 0.16, share, color=colour))
        arrow(axes, (3.45, y + 0.3), (3.9, y + 0.3))
    arrow(axes, (4.5, 1.85), (4.5, 1.3), RED)
    word(axes, 4.5, 0.2, "views: the same answer for\nboth crops", size=9)
    for x, y, colour in ((6.3, 1.8, GREEN), (6.4, 0.4, BLUE)):
        grid(axes, x, y, 0.9, 3)
        cell(axes, x + (0.3 if colour == GREEN else 0.6), y + 0.3, 0.3, colour)
    arrow(axes, (7.15, 0.85), (6.75, 2.05), RED)
    word(axes, 7.9, 1.5, "regions: and for\nthe cells that look\nmost alike", size=9)
    save(axes, "esvit")


def lejepa() -> None:
    """Draw crops that meet, and embeddings that stay a normal cloud."""
    axes = canvas()
    for k, (y, side) in enumerate(((1.5, 0.9), (0.4, 0.9))):
        digit(axes, 8, 0.2 + 0.1 * k, y, side)
    digit(axes, 8, 1.3, 1.1, 0.55)
    box(axes, 2.4, 1.0, 1.3, 0.6, "one network")
    arrow(axes, (1.9, 1.3), (2.35, 1.3))
    centre = np.array([5.0, 1.3])
    for offset in ((-0.5, 0.55), (0.5, 0.5), (-0.1, -0.65)):
        point = centre + offset
        axes.plot(*point, "o", color=BLUE)
        arrow(axes, tuple(point), tuple(centre + 0.15 * np.array(offset)), BLUE)
    axes.plot(*centre, "*", color=RED, ms=12)
    word(axes, 4.9, 0.25, "prediction: crops of an image meet")
    cloud = np.random.default_rng(0).normal(size=(150, 2)) * 0.3 + (7.8, 1.4)
    axes.plot(*cloud.T, ".", color=GREEN, ms=4)
    word(axes, 7.65, 0.25, "SIGReg: a batch stays round")
    arrow(axes, (3.75, 1.3), (4.3, 1.3))
    save(axes, "lejepa")


if __name__ == "__main__":
    for draw in (drloc, dhvt, tokens, esvit, lejepa):
        draw()
