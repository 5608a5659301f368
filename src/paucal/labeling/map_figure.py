"""A figure of label maps over their images."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray
from torch import Tensor

from paucal.data.images import ImageSet, evenly_spaced
from paucal.data.maps.reader import LabelMaps

COLUMNS = 4
WIDTH = 12.8  # inches
NAMED = 10  # classes with a colour of their own; the others are grey
STRONGEST = 0.65  # opacity of a label of probability 1


def map_picture(images: ImageSet, maps: LabelMaps, count: int = 8) -> Figure:
    """Draw each image twice: plain, and with each cell in the colour of its most probable class.

    The opacity is proportional to the probability. Regions that a map does not cover are not coloured.

    Args:
        images: Set of images with maps, or a subset of it; its classes, if any, are among the teacher's.
        maps: Maps of these images.
        count: Number of images to draw, spread over the set.
    """
    ordered = images.with_classes(maps.facts.classes)
    mapped = np.flatnonzero([key in maps for key in ordered.keys])
    positions = mapped[evenly_spaced(len(mapped), count)]
    reader = maps.rows(ordered, positions)
    entries = [reader(int(position)) for position in positions]
    likeliest = [most_likely(entry["values"], entry["indices"], len(ordered.classes)) for entry in entries]
    shown_classes = _frequent_classes([classes for classes, _ in likeliest])
    figure, pairs = _new_panels(ordered, positions)
    for (plain, labelled), position, entry, best_of_cell in zip(pairs, positions, entries, likeliest, strict=True):
        picture = np.asarray(ordered.store.read(int(position)))
        label = int(ordered.labels[position])
        title = ordered.classes[label] if label >= 0 else ""
        plain.set_title(title, fontsize=9, parse_math=False)  # "$" in a name is a "$"
        for panel in (plain, labelled):
            panel.imshow(picture, interpolation="nearest")
        height, width = picture.shape[:2]
        # (left, right, bottom, top), in pixels, of a map centred in its image.
        across, down = entry.get("covered", torch.ones(2)).tolist()
        left, top = width * (1 - across) / 2 - 0.5, height * (1 - down) / 2 - 0.5
        extent = left, left + width * across, top + height * down, top
        labelled.imshow(_map_colours(*best_of_cell, shown_classes), extent=extent, interpolation="nearest")
        labelled.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    names = [ordered.classes[number] for number in shown_classes]
    patches = [Patch(color=_class_colour(index), label=name) for index, name in enumerate(names)]
    figure.legend(handles=patches, loc="outside lower center", ncols=min(len(patches), 10), fontsize=8, frameon=False)
    return figure


def most_likely(values: Tensor, indices: Tensor, classes: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the most probable class of each cell and its probability, both (H, W).

    Args:
        values: (k, H, W) logits of the named classes; the logits of all other classes are 0.
        indices: (k, H, W) numbers of the named classes.
        classes: Number K of classes.
    """
    logits = values.double()
    # All other classes together; the logarithm of 0 is minus infinity, which adds nothing.
    other_logits = torch.full_like(logits[:1], float(max(0, classes - len(logits)))).log()
    best, place = torch.cat((logits, other_logits)).softmax(0)[:-1].max(0)
    return indices.gather(0, place[None])[0].numpy(), best.numpy()


def _new_panels(images: ImageSet, positions: NDArray[np.int64]) -> tuple[Figure, list[tuple[Axes, Axes]]]:
    """Return a figure with two panels for each image; the panels have about the aspect ratio of the images."""
    columns = min(COLUMNS, len(positions))
    rows = -(-len(positions) // columns)
    sizes = [images.store.read(int(position)).size for position in positions]
    shape = float(np.clip(np.median([height / width for width, height in sizes]), 0.4, 1.6))
    inches = (WIDTH, rows * (WIDTH / (2 * columns) * shape + 0.3) + 0.5)
    figure = Figure(figsize=inches, layout="constrained")
    panels = figure.subplots(rows, 2 * columns, squeeze=False).ravel()
    for panel in panels:
        panel.set_axis_off()
    return figure, [(panels[2 * number], panels[2 * number + 1]) for number in range(len(positions))]


def _frequent_classes(maps: Sequence[NDArray[np.int64]]) -> list[int]:
    numbers, counts = np.unique(np.concatenate([label_map.ravel() for label_map in maps]), return_counts=True)
    return sorted(numbers[np.argsort(-counts, kind="stable")[:NAMED]].tolist())


def _map_colours(
    classes: NDArray[np.int64], shares: NDArray[np.float64], shown_classes: list[int]
) -> NDArray[np.float64]:
    painted = np.full((*classes.shape, 4), 0.5)
    for index, number in enumerate(shown_classes):
        painted[classes == number, :3] = _class_colour(index)
    painted[..., 3] = shares * STRONGEST
    return painted


def _class_colour(index: int) -> tuple[float, float, float]:
    return colormaps["tab10"](index)[:3]
