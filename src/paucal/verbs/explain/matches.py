"""Which cells of two images match: `--show matches`."""

from collections.abc import Iterator

import torch
from matplotlib.figure import Figure
from torch import Tensor

from paucal.explain.features import Correspondence, match_images
from paucal.explain.figures.matches import matches_figure
from paucal.models.trained import TrainedModel
from paucal.verbs.explain.inputs import Viewed, stacked, stem


def mirror_hits(found: Correspondence) -> Tensor:
    """Return which pairs of an image and its mirror image show the same place, (n,) bool."""
    truth = torch.stack((found.first[:, 0], found.grids[0][1] - 1 - found.first[:, 1]), 1)
    return (found.second == truth).all(1)


def matches_figures(model: TrainedModel, pair: list[Viewed]) -> Iterator[tuple[str, Figure]]:
    """Draw the matches of two images, or of one and its mirror image."""
    first = pair[0]
    if len(pair) == 2:
        second = pair[1]
    else:
        second = Viewed(f"{first.name}, mirrored", first.picture[:, ::-1].copy(), first.view.flip(-1))
    one, two = stacked([first, second], model)
    found = match_images(model.module, one, two)
    right = mirror_hits(found) if len(pair) == 1 else None
    share = "" if right is None else f": {int(right.sum())} of {len(right)} right"
    figure = matches_figure((first.picture, second.picture), found, (first.name, f"{second.name}{share}"), right)
    yield f"{stem(first.name)}_matches", figure
