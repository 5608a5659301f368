"""Figures of attention (maps, single heads, entropies of heads, averaged attention) and of patch features."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from paucal.backbones.attention_layout import Token, Tokens
from paucal.explain.attention.heads import MASS, HeadView
from paucal.explain.figures.pictures import (
    Picture,
    cell_centre,
    choose_columns,
    draw_caption,
    draw_cell_heat,
    draw_cells,
    draw_colour_bar,
    draw_heat,
    draw_title,
    make_panels,
    readable_name,
)
from paucal.wording import counted

# Colours of classes: matplotlib's tab10 with yellow instead of grey, which would be invisible on a greyscale image. If
# there are more classes than colours, the remaining classes are grey.
CLASS_COLOURS = [*colormaps["tab10"].colors[:7], "#fff35c", *colormaps["tab10"].colors[8:]]  # type: ignore[attr-defined]
MIN_OPACITY, MAX_OPACITY = 0.3, 0.8  # opacity of a class's colour at probability 0 and at probability 1


def maps_figure(
    picture: Picture, maps: Sequence[Tensor], titles: Sequence[str], caption: str, smooth: bool = False
) -> Figure:
    """Draw an image; then draw each (h, w) map over a copy of the image. Each map has its own colour scale.

    If `smooth` is True, maps are interpolated, and each colour scale begins at the map's minimum. Otherwise, patches
    are drawn as squares, and colour scales begin at 0.
    """
    columns = choose_columns(len(maps) + 1)
    figure, axes = make_panels(-(-(len(maps) + 1) // columns), columns, picture.shape[:2], extra=0.35)
    flat = [panel for row in axes for panel in row]
    flat[0].imshow(picture)
    draw_title(flat[0], "image")
    for panel, values, text in zip(flat[1:], maps, titles, strict=False):
        draw_map, top = draw_heat if smooth else draw_cell_heat, max(float(values.max()), 1e-12)
        low = float(values.min()) if smooth else 0.0
        draw_map(panel, picture, values, low, top)
        draw_title(panel, text)
        draw_colour_bar(figure, panel, low, top)
    draw_caption(figure, caption)
    return figure


def matrices_figure(matrices: Sequence[Tensor], tokens: Tokens, titles: Sequence[str]) -> Figure:
    """Draw the averaged attention between all tokens for each layer.

    Lines separate class token, patches and head tokens. As in DHVT's Figures 3 (a) and 7, rows are queries and columns
    are keys.
    """
    is_large = len(tokens) > MAX_TOKENS_IN_SMALL_PANEL
    columns = min(choose_columns(len(matrices), 4), 2 if is_large else 4)
    scale = LARGE_SCALE if is_large else 1.0
    figure, axes = make_panels(-(-len(matrices) // columns), columns, (1, 1), extra=0.5, scale=scale)
    flat = [panel for row in axes for panel in row]
    for panel, values, text in zip(flat, matrices, titles, strict=False):
        # A few tokens get most of the attention, so the colour scale ends at the 99th percentile to show other tokens.
        top = float(np.quantile(values.numpy(), 0.99))
        image = panel.imshow(values.numpy(), cmap=HEAT_OF_MATRICES, vmin=0, vmax=top)
        for edge in (len(tokens.prefix), len(tokens.prefix) + tokens.cells):
            if 0 < edge < len(tokens):
                panel.axvline(edge - 0.5, color="white", lw=0.6)
                panel.axhline(edge - 0.5, color="white", lw=0.6)
        draw_title(panel, text)
        figure.colorbar(image, ax=panel, shrink=0.8, extend="max").ax.tick_params(labelsize=6)
    kinds = [*(["class"] if tokens.prefix else []), "cells", *(["head tokens"] if tokens.suffix else [])]
    draw_caption(figure, f"rows attend to columns: {', '.join(kinds)}; mean over heads")
    return figure


HEAT_OF_MATRICES = "viridis"  # matplotlib colour map for attention matrices
MAX_TOKENS_IN_SMALL_PANEL, LARGE_SCALE = 100, 1.9  # with more tokens, panels are larger by the factor LARGE_SCALE


def features_figure(picture: Picture, colours: Tensor) -> Figure:
    """Draw an image, and beside the image the features of its patches as (h, w, 3) colours."""
    figure, axes = make_panels(1, 2, picture.shape[:2], extra=0.3)
    axes[0][0].imshow(picture)
    draw_cells(axes[0][1], picture, colours.numpy())
    draw_title(axes[0][0], "image")
    draw_title(axes[0][1], "features as colours")
    draw_caption(figure, "similar colours: similar features (three principal components)")
    return figure


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
SMALL_SCALE = 0.6  # scale of panels if all heads are in one row


def heads_figure(picture: Picture, view: HeadView, token: Token, layer: str) -> Figure:
    """Draw all heads of a layer for one query, in descending order of entropy, with their masks as outlines."""
    count = len(view.heads)
    columns = choose_columns(count + 1)
    figure, axes = make_panels(-(-(count + 1) // columns), columns, picture.shape[:2], extra=0.4)
    flat = [panel for row in axes for panel in row]
    flat[0].imshow(picture)
    draw_title(flat[0], f"query: {_describe_token(token)}")
    top = float(view.maps.max())
    for index, panel in enumerate(flat[1 : count + 1]):
        _draw_head(panel, picture, view, index, top)
    _mark_token(flat[: count + 1], token, view, picture)
    draw_colour_bar(figure, flat, 0.0, top, "attention", 0.6)
    draw_caption(figure, f"{layer}; outlined: the cells that get {MASS:.0%} of a head's attention")
    return figure


def queries_figure(picture: Picture, views: Sequence[HeadView], tokens: Sequence[Token], layer: str) -> Figure:
    """Draw all heads of a layer for several queries, with a row for each query and a column for each head.

    Heads are sorted by the mean entropy over the queries, so a column shows the same head in all rows. (Each of EsViT's
    Figures 10 to 12 shows one query.)
    """
    bits = torch.stack([view.entropy[view.heads.argsort()] for view in views])  # (queries, heads)
    order = bits.mean(0).argsort(descending=True, stable=True).tolist()
    figure, axes = make_panels(len(views), 1 + len(order), picture.shape[:2], extra=0.4, scale=SMALL_SCALE)
    top = max(float(view.maps.max()) for view in views)
    for row, view, token in zip(axes, views, tokens, strict=True):
        row[0].imshow(picture)
        draw_title(row[0], _describe_token(token), 7)
        indices = view.heads.argsort().tolist()
        for panel, head in zip(row[1:], order, strict=True):
            _draw_head(panel, picture, view, indices[head], top, 7)
        _mark_token(row, token, view, picture)
    draw_colour_bar(figure, [panel for row in axes for panel in row], 0.0, top, "attention", 0.6)
    draw_caption(figure, f"{layer}; a row per query; heads by mean entropy; outlined: the cells that get {MASS:.0%}")
    return figure


def _draw_head(panel: Axes, picture: Picture, view: HeadView, index: int, top: float, title_size: float = 9) -> None:
    """Draw an attention head, given by its position in the view, with the outline of its mask."""
    draw_cell_heat(panel, picture, view.maps[index], 0.0, top)
    mask = view.masks[index]
    cell_height, cell_width = picture.shape[0] / mask.shape[0], picture.shape[1] / mask.shape[1]
    filled = np.pad(mask.numpy(), 1)
    for row, column in zip(*np.nonzero(filled), strict=True):
        top_edge, left_edge = (row - 1) * cell_height - 0.5, (column - 1) * cell_width - 0.5
        bottom_edge, right_edge = top_edge + cell_height, left_edge + cell_width
        for is_filled, xs, ys in (
            (filled[row - 1, column], (left_edge, right_edge), (top_edge, top_edge)),
            (filled[row + 1, column], (left_edge, right_edge), (bottom_edge, bottom_edge)),
            (filled[row, column - 1], (left_edge, left_edge), (top_edge, bottom_edge)),
            (filled[row, column + 1], (right_edge, right_edge), (top_edge, bottom_edge)),
        ):
            if not is_filled:
                panel.plot(xs, ys, color="white", lw=1)
    draw_title(panel, f"head {int(view.heads[index]) + 1}, {float(view.entropy[index]):.1f} bits", title_size)


def entropy_figure(entropies: Mapping[str, Tensor], uniform: Mapping[str, float], images: int) -> Figure:
    """Draw the mean entropy of each head of each layer over a set of images, and the entropy of uniform attention."""
    figure = Figure(figsize=(max(5.0, 0.45 * len(entropies) + 2.5), 3.6), layout="constrained")
    axes = figure.subplots()
    low = min(float(bits.min()) for bits in entropies.values())
    for index, bits in enumerate(entropies.values()):
        axes.plot([index] * len(bits), bits.tolist(), "o", color="#0072b2", alpha=0.6, ms=5)
    axes.plot(range(len(uniform)), list(uniform.values()), "_", color="#d55e00", ms=16, label="uniform attention")
    axes.plot([], [], "o", color="#0072b2", label="a head")
    axes.set_xticks(range(len(entropies)), [str(index + 1) for index in range(len(entropies))], fontsize=8)
    axes.set(xlabel="attention layer, first to last", ylabel="entropy in bits")
    axes.set_ylim(0.9 * low, 1.05 * max(uniform.values()))
    axes.set_title(f"spread of the heads' attention, mean over {counted(images, 'image')}", fontsize=9, loc="left")
    axes.legend(fontsize=8, frameon=False)
    return figure


def ranked_entropy_figure(models: Mapping[str, Tensor], uniform: Mapping[str, float], images: int) -> Figure:
    """Draw the entropies of the last layer's heads for several models, one line per model, in descending order.

    As in EsViT's appendix, a steeper line means that the heads of a model differ more from each other.
    """
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for index, (name, bits) in enumerate(models.items()):
        colour = COLOURS[index % len(COLOURS)]
        ranked = bits.sort(descending=True).values.tolist()
        label = f"{name}: {bits.mean():.2f} bits, from {bits.min():.2f} to {bits.max():.2f}"
        axes.plot(range(1, len(ranked) + 1), ranked, "o-", color=colour, ms=4, lw=1.2, label=label.replace("$", r"\$"))
        axes.axhline(uniform[name], color=colour, lw=0.8, ls=":")
    axes.set(xlabel="heads of the last layer, by descending entropy", ylabel="entropy in bits")
    axes.set_title(f"mean over {counted(images, 'image')}; dotted: uniform attention", fontsize=9, loc="left")
    axes.legend(fontsize=7, frameon=False)
    axes.set_xlim(left=0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _mark_token(row: Sequence[Axes], token: Token, view: HeadView, picture: Picture) -> None:
    if isinstance(token, str):
        return
    x, y = cell_centre(token, (view.maps.shape[1], view.maps.shape[2]), picture.shape)
    for panel in row:
        panel.plot(x, y, "o", color="#00b4d8", markeredgecolor="white", markersize=6)


def _describe_token(token: Token) -> str:
    return f"{token} token" if isinstance(token, str) else f"row {token[0]}, column {token[1]}"


def tokens_figure(picture: Picture, maps: Sequence[tuple[str, Tensor]], classes: Sequence[str]) -> Figure:
    """Draw an image and greyscale copies with the patches' likeliest classes as colours.

    The opacity of a patch's colour shows the probability of the class. `maps` has the title and the (K, h, w) class
    probabilities of each copy, for K `classes`.
    """
    figure, axes = make_panels(1, 1 + len(maps), picture.shape[:2], extra=0.7)
    axes[0][0].imshow(picture)
    draw_title(axes[0][0], "image")
    height, width = picture.shape[:2]
    likeliest_classes = np.concatenate([probabilities.argmax(0).numpy().ravel() for _, probabilities in maps])
    indices, counts = np.unique(likeliest_classes, return_counts=True)
    shown_classes = sorted(indices[np.argsort(-counts, kind="stable")[: len(CLASS_COLOURS)]].tolist())
    for panel, (name, probabilities) in zip(axes[0][1:], maps, strict=True):
        best, likeliest = probabilities.max(0)
        rgba = np.full((*best.shape, 4), 0.5)
        for colour, class_index in enumerate(shown_classes):
            rgba[likeliest.numpy() == class_index, :3] = to_rgb(CLASS_COLOURS[colour])
        rgba[..., 3] = MIN_OPACITY + best.numpy() * (MAX_OPACITY - MIN_OPACITY)
        panel.imshow(np.repeat(picture.mean(2, keepdims=True), 3, 2))
        draw_cells(panel, picture, rgba)
        panel.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
        draw_title(panel, f"{name}\nprobability {float(best.min()):.0%} to {float(best.max()):.0%}")
    # matplotlib reads "$" as the start of a formula, and excludes labels that begin with "_" from a legend.
    labels = [readable_name(classes[index])[:20].replace("$", r"\$").lstrip("_") for index in shown_classes]
    patches = [Patch(color=colour, label=label) for colour, label in zip(CLASS_COLOURS, labels, strict=False)]
    figure.legend(handles=patches, loc="outside lower center", ncols=min(5, len(patches)), fontsize=7, frameon=False)
    return figure
