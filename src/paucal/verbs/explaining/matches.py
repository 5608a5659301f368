"""Which cells of two images match: `--show matches`."""

from collections.abc import Iterator

from matplotlib.figure import Figure

from paucal.evaluation.deployed import Deployed
from paucal.explain.correspondence.matching import match_images
from paucal.explain.figures.matches import matches_figure
from paucal.verbs.explaining.images import Viewed, stacked, stem


def matches_figures(model: Deployed, pair: list[Viewed]) -> Iterator[tuple[str, Figure]]:
    """Draw the matches of two images, or of one and its mirror image."""
    first = pair[0]
    if len(pair) == 2:
        second = pair[1]
    else:
        second = Viewed(f"{first.name}, mirrored", first.picture[:, ::-1].copy(), first.view.flip(-1))
    one, two = stacked([first, second], model)
    found = match_images(model.module, one, two)
    figure = matches_figure((first.picture, second.picture), found, (first.name, second.name))
    yield f"{stem(first.name)}_matches", figure
