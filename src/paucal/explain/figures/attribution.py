"""Figures of attribution maps for the most probable classes of an image, for many images, and for mistakes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from paucal.explain.figures.pictures import Picture, draw_caption, draw_colour_bar, draw_heat, draw_title, make_panels

MAX_PAIRS = 4  # largest number of pairs of image and map in a row of `contact_sheet`


@dataclass(frozen=True, eq=False)
class AttributedImage:
    """One image with its attribution maps for some classes."""

    name: str  # name of the image for display
    picture: Picture  # (H, W, 3) region of the image that the model sees
    maps: Tensor  # (classes, h, w) attribution maps
    classes: tuple[str, ...]  # names of the classes
    probabilities: tuple[float, ...]  # probabilities of these classes
    prediction: str = ""  # text that is shown instead of class and probability; "" to show class and probability


def attribution_figure(image: AttributedImage, method: str, is_class_specific: bool = True) -> Figure:
    """Draw an image and its attribution map for each class; all maps have the same colour scale."""
    maps = image.maps if is_class_specific else image.maps[:1]
    figure, axes = make_panels(1, 1 + len(maps), image.picture.shape[:2], extra=0.35)
    axes[0][0].imshow(image.picture)
    draw_title(axes[0][0], image.name)
    low, high = colour_limits(maps)
    columns = zip(axes[0][1:], maps, image.classes, image.probabilities, strict=False)
    for panel, values, name, probability in columns:
        draw_heat(panel, image.picture, values, low, high)
        prediction = image.prediction or f"{name}\nprobability {probability:.0%}"
        draw_title(panel, prediction if is_class_specific else "for any class")
    draw_colour_bar(figure, axes[0], low, high, "attribution")
    draw_caption(figure, f"method: {method}")
    return figure


def contact_sheet(images: Sequence[AttributedImage], method: str, is_class_specific: bool = True) -> Figure:
    """Draw many images, and beside each image the map for its first class. Each map has its own colour scale."""
    columns = min(MAX_PAIRS, len(images))
    rows = -(-len(images) // columns)
    figure, axes = make_panels(rows, 2 * columns, images[0].picture.shape[:2], extra=0.3)
    for index, image in enumerate(images):
        pair = axes[index // columns][2 * (index % columns) :][:2]
        pair[0].imshow(image.picture)
        draw_title(pair[0], image.name, 8)
        draw_heat(pair[1], image.picture, image.maps[0], *colour_limits(image.maps[:1]))
        prediction = image.prediction or f"{image.classes[0]}, {image.probabilities[0]:.0%}"
        draw_title(pair[1], prediction if is_class_specific else "for any class", 8)
    draw_caption(figure, f"method: {method}; dark to bright: lowest to highest value of each image", x=0.01)
    return figure


def colour_limits(maps: Tensor) -> tuple[float, float]:
    """Return the lower and upper end of the colour scale: the minimum (but at least 0) and the 99.5th percentile.

    Evidence against a class (below 0) is drawn like 0, since over a photograph it would be hard to distinguish from
    weak evidence for the class.
    """
    values = maps.float().flatten().cpu().numpy()
    low = max(0.0, float(values.min()))
    high = float(np.quantile(values, 0.995))
    return (low, high) if high > low else (low, low + 1e-12)


MISTAKES_PER_ROW = 2  # largest number of mistakes in a row, each with three panels


def mistakes_attribution_figure(mistakes: Sequence[AttributedImage], method: str) -> Figure:
    """Draw each image with its maps for the predicted class and for the label; both maps have the same colour scale."""
    if not mistakes:
        raise ValueError("there are no mistakes to draw")
    columns = min(MISTAKES_PER_ROW, len(mistakes))
    figure, axes = make_panels(-(-len(mistakes) // columns), 3 * columns, mistakes[0].picture.shape[:2], extra=0.3)
    for index, mistake in enumerate(mistakes):
        image_panel, predicted_panel, label_panel = axes[index // columns][3 * (index % columns) :][:3]
        image_panel.imshow(mistake.picture)
        draw_title(image_panel, mistake.name, 8)
        roles = ((predicted_panel, "predicted"), (label_panel, "label"))
        class_maps = zip(mistake.maps, mistake.classes, mistake.probabilities, strict=True)
        for (panel, role), (values, name, probability) in zip(roles, class_maps, strict=True):
            draw_heat(panel, mistake.picture, values, *colour_limits(mistake.maps))
            draw_title(panel, f"{role}: {name}, {probability:.0%}", 8)
    draw_caption(figure, f"bright: evidence for the class; method: {method}", x=0.01)
    return figure
