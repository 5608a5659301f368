"""Wrong answers beside their attribution: what spoke for the answer, and what for the label."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from paucal.explain.figures.attribution import Explained, scale_of
from paucal.explain.figures.pictures import heat, panels, title

COLUMNS = 2  # mistakes side by side, three panels each


def mistakes_attribution_figure(mistakes: Sequence[Explained], method: str) -> Figure:
    """Draw each image with the attribution for the answer it was given and for the label it has, on one scale.

    Args:
        mistakes: each with two classes, the answer first.
        method: title of the method.

    Raises:
        ValueError: there are none.
    """
    if not mistakes:
        raise ValueError("there are no mistakes to draw")
    columns = min(COLUMNS, len(mistakes))
    figure, axes = panels(-(-len(mistakes) // columns), 3 * columns, mistakes[0].picture.shape[:2], extra=0.3)
    for index, one in enumerate(mistakes):
        image, answer, label = axes[index // columns][3 * (index % columns) :][:3]
        image.imshow(one.picture)
        title(image, one.name, 8)
        for panel, values, word, name, share in zip(
            (answer, label), one.maps, ("answer", "label"), one.classes, one.shares, strict=True
        ):
            heat(panel, one.picture, values, *scale_of(one.maps))
            title(panel, f"{word}: {name}, {share:.0%}", 8)
    figure.supxlabel(f"bright: what speaks for the class; method: {method}", fontsize=8, x=0.01, ha="left")
    return figure
