"""Pictures of attention: maps side by side, DHVT's averaged attention, features."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from paucal.explain.attention.maps import Tokens
from paucal.explain.figures.pictures import (
    Picture,
    cell_heat,
    colour_bar,
    columns_for,
    heat,
    panels,
    title,
)


def maps_figure(
    picture: Picture, maps: Sequence[Tensor], titles: Sequence[str], label: str, smooth: bool = False
) -> Figure:
    """Draw a picture and some maps (h, w) over it, each on its own scale, from 0 or, `smooth`, from its least."""
    columns = columns_for(len(maps) + 1)
    figure, axes = panels(-(-(len(maps) + 1) // columns), columns, picture.shape[:2], extra=0.35)
    flat = [one for row in axes for one in row]
    flat[0].imshow(picture)
    title(flat[0], "image")
    for panel, values, text in zip(flat[1:], maps, titles, strict=False):
        lay, top = heat if smooth else cell_heat, max(float(values.max()), 1e-12)
        low = float(values.min()) if smooth else 0.0
        lay(panel, picture, values, low, top)
        title(panel, text)
        colour_bar(figure, panel, low, top)
    figure.supxlabel(label, fontsize=8, x=0.02, ha="left")
    return figure


def matrices_figure(matrices: Sequence[Tensor], tokens: Tokens, titles: Sequence[str]) -> Figure:
    """Draw averaged attention between all tokens, layer by layer, with lines where the kinds of tokens meet.

    DHVT's Figures 3 (a) and 7: rows attend to columns; class token, cells, head tokens.
    """
    large = len(tokens) > MOST_SMALL
    columns = min(columns_for(len(matrices), 4), 2 if large else 4)
    figure, axes = panels(-(-len(matrices) // columns), columns, (1, 1), extra=0.5, scale=ENLARGED if large else 1.0)
    flat = [one for row in axes for one in row]
    for panel, values, text in zip(flat, matrices, titles, strict=False):
        # A few tokens hold most: the colours go by the 99th percentile, else all others would be black.
        top = float(np.quantile(values.numpy(), 0.99))
        shown = panel.imshow(values.numpy(), cmap=HEAT_OF_MATRICES, vmin=0, vmax=top)
        for edge in (len(tokens.prefix), len(tokens.prefix) + tokens.cells):
            if 0 < edge < len(tokens):
                panel.axvline(edge - 0.5, color="white", lw=0.6)
                panel.axhline(edge - 0.5, color="white", lw=0.6)
        title(panel, text)
        figure.colorbar(shown, ax=panel, shrink=0.8, extend="max").ax.tick_params(labelsize=6)
    kinds = [*(["class"] if tokens.prefix else []), "cells", *(["head tokens"] if tokens.suffix else [])]
    figure.supxlabel(f"rows attend to columns: {', '.join(kinds)}; mean over heads", fontsize=8, x=0.02, ha="left")
    return figure


HEAT_OF_MATRICES = "viridis"
MOST_SMALL, ENLARGED = 100, 1.9  # tokens of a small panel; the scale of a larger one, where a few columns can be seen


def features_figure(picture: Picture, colours: Tensor) -> Figure:
    """Draw a picture beside its cells' features as colours (h, w, 3)."""
    figure, axes = panels(1, 2, picture.shape[:2], extra=0.3)
    axes[0][0].imshow(picture)
    height, width = picture.shape[:2]
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    axes[0][1].imshow(colours.numpy(), interpolation="nearest", extent=extent)
    title(axes[0][0], "image")
    title(axes[0][1], "features as colours")
    figure.supxlabel("alike colours: alike features (three main components)", fontsize=8, x=0.02, ha="left")
    return figure
