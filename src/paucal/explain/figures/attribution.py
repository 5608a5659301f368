"""Figures of attribution beside the image: for the likeliest classes, on a sheet of many images, and for mistakes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from paucal.explain.figures.pictures import Picture, caption, colour_bar, heat, panels, title

COLUMNS = 4  # pairs of panels in a row of a sheet


@dataclass(frozen=True, eq=False)
class AttributedImage:
    """One image with its attribution for some classes.

    Attributes:
        name: Name of the image, as shown.
        picture: (H, W, 3) as the model sees it.
        maps: (classes, h, w) attribution.
        classes: Names of the classes.
        shares: Probabilities of these classes.
        says: Text of the prediction, shown instead of a class and its probability.
    """

    name: str
    picture: Picture
    maps: Tensor
    classes: tuple[str, ...]
    shares: tuple[float, ...]
    says: str = ""


def attribution_figure(explained: AttributedImage, method: str, is_class_specific: bool = True) -> Figure:
    """Draw an image and its attribution for each class, on one scale so that classes can be compared."""
    maps = explained.maps if is_class_specific else explained.maps[:1]
    figure, axes = panels(1, 1 + len(maps), explained.picture.shape[:2], extra=0.35)
    axes[0][0].imshow(explained.picture)
    title(axes[0][0], explained.name)
    low, high = scale_of(maps)
    for panel, values, name, share in zip(axes[0][1:], maps, explained.classes, explained.shares, strict=False):
        heat(panel, explained.picture, values, low, high)
        prediction = explained.says or f"{name}\nprobability {share:.0%}"
        title(panel, prediction if is_class_specific else "for any class")
    colour_bar(figure, axes[0], low, high, "attribution")
    caption(figure, f"method: {method}")
    return figure


def contact_sheet(explained: Sequence[AttributedImage], method: str, is_class_specific: bool = True) -> Figure:
    """Draw many images, each beside its attribution for its first class, each on its own scale."""
    columns = min(COLUMNS, len(explained))
    rows = -(-len(explained) // columns)
    figure, axes = panels(rows, 2 * columns, explained[0].picture.shape[:2], extra=0.3)
    for index, image in enumerate(explained):
        pair = axes[index // columns][2 * (index % columns) :][:2]
        pair[0].imshow(image.picture)
        title(pair[0], image.name, 8)
        heat(pair[1], image.picture, image.maps[0], *scale_of(image.maps[:1]))
        prediction = image.says or f"{image.classes[0]}, {image.shares[0]:.0%}"
        title(pair[1], prediction if is_class_specific else "for any class", 8)
    caption(figure, f"method: {method}; dark to bright: lowest to highest value of each image", x=0.01)
    return figure


def scale_of(maps: Tensor) -> tuple[float, float]:
    """Return the ends of the colour scale: 0, or the minimum if it is above 0, and the 99.5th percentile.

    Evidence against a class is drawn like 0, since on a photograph it is hard to distinguish from weak evidence for it.
    """
    values = maps.float().flatten().cpu().numpy()
    low = max(0.0, float(values.min()))
    high = float(np.quantile(values, 0.995))
    return (low, high) if high > low else (low, low + 1e-12)


MISTAKES_PER_ROW = 2  # mistakes in a row, each with three panels


def mistakes_attribution_figure(mistakes: Sequence[AttributedImage], method: str) -> Figure:
    """Draw each image with the attribution for the predicted class and for its label, on one scale."""
    if not mistakes:
        raise ValueError("there are no mistakes to draw")
    columns = min(MISTAKES_PER_ROW, len(mistakes))
    figure, axes = panels(-(-len(mistakes) // columns), 3 * columns, mistakes[0].picture.shape[:2], extra=0.3)
    for index, mistake in enumerate(mistakes):
        image, predicted, label = axes[index // columns][3 * (index % columns) :][:3]
        image.imshow(mistake.picture)
        title(image, mistake.name, 8)
        roles = ((predicted, "predicted"), (label, "label"))
        answers = zip(mistake.maps, mistake.classes, mistake.shares, strict=True)
        for (panel, role), (values, name, share) in zip(roles, answers, strict=True):
            heat(panel, mistake.picture, values, *scale_of(mistake.maps))
            title(panel, f"{role}: {name}, {share:.0%}", 8)
    caption(figure, f"bright: evidence for the class; method: {method}", x=0.01)
    return figure
