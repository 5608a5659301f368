"""A figure of label maps over their images."""

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

MAX_IMAGES, MAX_COLUMNS = 8, 4  # maximum number of images, evenly spaced in the set, and of images side by side
FIGURE_WIDTH = 12.8  # width of the figure in inches
COLOURED_CLASSES = 10  # number of most frequent classes that have a colour; all other classes are grey
MAX_OPACITY = 0.65  # opacity of the overlay at positions whose class has probability 1


def draw_label_maps(images: ImageSet, maps: LabelMaps) -> Figure:
    """Draw some images twice: alone, and overlaid with the label map, with a colour for the most probable class.

    The opacity is proportional to the probability. Regions that a map does not cover are not coloured. If the images
    have classes, these must be among the teacher's classes.
    """
    ordered = images.with_classes(maps.metadata.classes)
    mapped = np.flatnonzero([key in maps for key in ordered.keys])
    positions = mapped[evenly_spaced(len(mapped), MAX_IMAGES)]
    reader = maps.open_reader(ordered, positions)
    label_maps = [reader(int(position)) for position in positions]
    overlays = [most_likely_class(entry["values"], entry["indices"], len(ordered.classes)) for entry in label_maps]
    numbers, counts = np.unique(np.concatenate([classes.ravel() for classes, _ in overlays]), return_counts=True)
    shown_classes = sorted(numbers[np.argsort(-counts, kind="stable")[:COLOURED_CLASSES]].tolist())
    colour_of = {number: colormaps["tab10"](index)[:3] for index, number in enumerate(shown_classes)}
    figure, panel_pairs = _new_panels(ordered, positions)
    for (image_panel, map_panel), position, entry, (classes, probabilities) in zip(
        panel_pairs, positions, label_maps, overlays, strict=True
    ):
        image = np.asarray(ordered.store.read(int(position)))
        label = int(ordered.labels[position])
        title = ordered.classes[label] if label >= 0 else ""
        image_panel.set_title(title, fontsize=9, parse_math=False)  # class names may contain "$"
        for panel in (image_panel, map_panel):
            panel.imshow(image, interpolation="nearest")
        height, width = image.shape[:2]
        # A map is centred in its image; the extent is (left, right, bottom, top) in pixels.
        x_fraction, y_fraction = entry.get("covered", torch.ones(2)).tolist()
        left, top = width * (1 - x_fraction) / 2 - 0.5, height * (1 - y_fraction) / 2 - 0.5
        extent = left, left + width * x_fraction, top + height * y_fraction, top
        rgba = np.full((*classes.shape, 4), 0.5)
        for number, colour in colour_of.items():
            rgba[classes == number, :3] = colour
        rgba[..., 3] = probabilities * MAX_OPACITY
        map_panel.imshow(rgba, extent=extent, interpolation="nearest")
        map_panel.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    patches = [Patch(color=colour, label=ordered.classes[number]) for number, colour in colour_of.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=min(len(patches), 10), fontsize=8, frameon=False)
    return figure


def most_likely_class(values: Tensor, indices: Tensor, classes: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the most probable class at each position of a label map, and its probability, as two (H, W) arrays.

    `values` are the (k, H, W) logits of the classes `indices`; the logits of the other classes are 0.
    """
    logits = values.double()
    # In the softmax, n classes with logit 0 count like a single class with logit ln n. For n = 0, the logit is minus
    # infinity, so the added class has no effect.
    other_logits = torch.full_like(logits[:1], float(max(0, classes - len(logits)))).log()
    probability, rank = torch.cat((logits, other_logits)).softmax(0)[:-1].max(0)
    return indices.gather(0, rank[None])[0].numpy(), probability.numpy()


def _new_panels(images: ImageSet, positions: NDArray[np.int64]) -> tuple[Figure, list[tuple[Axes, Axes]]]:
    """Return a figure and its two panels for each image. The panels have the median aspect ratio of the images."""
    columns = min(MAX_COLUMNS, len(positions))
    rows = -(-len(positions) // columns)
    sizes = [images.store.read(int(position)).size for position in positions]
    aspect = float(np.clip(np.median([height / width for width, height in sizes]), 0.4, 1.6))
    inches = (FIGURE_WIDTH, rows * (FIGURE_WIDTH / (2 * columns) * aspect + 0.3) + 0.5)
    figure = Figure(figsize=inches, layout="constrained")
    panels = figure.subplots(rows, 2 * columns, squeeze=False).ravel()
    for panel in panels:
        panel.set_axis_off()
    return figure, [(panels[2 * number], panels[2 * number + 1]) for number in range(len(positions))]
