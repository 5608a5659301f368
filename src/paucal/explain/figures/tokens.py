"""Token labels over an image: each cell in the colour of its likeliest class, for several models side by side."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from paucal.explain.figures.pictures import Picture, panels, spoken, title

# Of classes, as in matplotlib's tab10, where its grey would not be seen on a grey picture; other classes are grey.
COLOURS = [*colormaps["tab10"].colors[:7], "#fff35c", *colormaps["tab10"].colors[8:]]  # type: ignore[attr-defined]
WEAKEST, STRONGEST = 0.3, 0.8  # of a colour, at a probability of 0 and of 1


def tokens_figure(picture: Picture, maps: Sequence[tuple[str, Tensor]], classes: Sequence[str]) -> Figure:
    """Draw an image beside itself in grey with what each cell is taken for; the surer, the stronger the colour.

    Args:
        picture: (H, W, 3).
        maps: (title, probabilities (K, h, w)) of each model.
        classes: K names.
    """
    figure, axes = panels(1, 1 + len(maps), picture.shape[:2], extra=0.7)
    axes[0][0].imshow(picture)
    title(axes[0][0], "image")
    height, width = picture.shape[:2]
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    shown = _frequent([shares.argmax(0).numpy() for _, shares in maps])
    for panel, (name, shares) in zip(axes[0][1:], maps, strict=True):
        best, place = shares.max(0)
        painted = np.full((*best.shape, 4), 0.5)
        for colour, number in enumerate(shown):
            painted[place.numpy() == number, :3] = to_rgb(COLOURS[colour])
        painted[..., 3] = WEAKEST + best.numpy() * (STRONGEST - WEAKEST)
        panel.imshow(np.repeat(picture.mean(2, keepdims=True), 3, 2))
        panel.imshow(painted, extent=extent, interpolation="nearest")
        panel.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
        title(panel, f"{name}\nprobability {float(best.min()):.0%} to {float(best.max()):.0%}")
    patches = [Patch(color=COLOURS[c], label=_plain(spoken(classes[n]))) for c, n in enumerate(shown)]
    figure.legend(handles=patches, loc="outside lower center", ncols=min(5, len(patches)), fontsize=7, frameon=False)
    return figure


def _plain(name: str) -> str:
    return name[:20].replace("$", r"\$").lstrip("_")  # "$" would begin a formula, and "_" would hide an entry


def _frequent(maps: Sequence[np.ndarray]) -> list[int]:
    numbers, counts = np.unique(np.concatenate([one.ravel() for one in maps]), return_counts=True)
    return sorted(numbers[np.argsort(-counts, kind="stable")[: len(COLOURS)]].tolist())
