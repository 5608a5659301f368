"""What frozen features are worth, and which cells they match, as pictures beside the table."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from paucal.data.dataset import SampleKey, ViewDataset
from paucal.evaluation.figures import save_figure
from paucal.evaluation.protocols.comparison import Row
from paucal.evaluation.protocols.correspondence import TOP, true_positions
from paucal.evaluation.protocols.figure import MATCHES, SCORES, protocols_figure, shown_rows
from paucal.evaluation.protocols.judge import JudgeOptions
from paucal.evaluation.protocols.judged_data import JudgedData, balanced
from paucal.evaluation.protocols.subjects import Subject
from paucal.evaluation.protocols.views import Change, second_view
from paucal.explain.features import Correspondence, match_images
from paucal.explain.figures.cells import MatchedPair, matches_sheet
from paucal.explain.figures.pictures import seen

IMAGES = 2  # whose matches are drawn, for every kind of second view
TITLES: dict[Change, str] = {"mirror": "mirrored", "crop": "cropped"}


def draw_scores(folder: Path, rows: Sequence[Row], level: float) -> None:
    """Draw the scores beside their table; where none of them is a share, there is no picture."""
    drawn = shown_rows(rows)
    if drawn:
        save_figure(folder / SCORES, protocols_figure(drawn, level))
    else:
        (folder / SCORES).unlink(missing_ok=True)


def draw_matches(
    folder: Path, subject: Subject, data: JudgedData, options: JudgeOptions, say: Callable[[str], None]
) -> None:
    """Draw the surest matches of a few test images with the second views that the scores were taken over.

    A picture that cannot be drawn fails nothing: the scores are worth more than it.

    Args:
        folder: of the picture.
        subject: the backbone.
        data: whose test images are drawn.
        options: of the protocol.
        say: told in a sentence why there is no picture.
    """
    try:
        few = balanced(data.labels, data.parts["test"], IMAGES, options.seed)
        pairs = [_pair(subject, data, int(index), change, options.seed) for index in few for change in options.changes]
        save_figure(folder / MATCHES, matches_sheet(pairs))
    except Exception as problem:  # whatever it is, the model is judged
        reason = str(problem).split("\n")[0].rstrip(".") or type(problem).__name__
        say(f"note: which cells match is not drawn ({reason}).")
        no_matches(folder)


def no_matches(folder: Path) -> None:
    """Remove the picture of an earlier model, which would be taken for this one's."""
    with suppress(OSError):
        (folder / MATCHES).unlink(missing_ok=True)


def _pair(subject: Subject, data: JudgedData, index: int, change: Change, seed: int) -> MatchedPair:
    first, size = subject.preprocessing.transform(), subject.preprocessing.image_size
    views = [(first, 1), (second_view(change, first), 1)]
    sample = ViewDataset(data.images, views, seed, labels=False, geometry=True)[SampleKey(0, index)]
    one, two = (view.to(subject.device) for view in sample.views)
    picture = data.images.store.read(index)
    geometry = sample.geometry or []
    found, right = scored_pairs(match_images(subject.backbone.model, one, two, one[0].numel()), geometry)
    share = f"{int(right.sum())} of {len(right)} right"
    names = (f"test image {index}", f"{TITLES[change]}: {share}")
    return MatchedPair((seen(picture, geometry[0], size), seen(picture, geometry[1], size)), found, names, right)


def scored_pairs(found: Correspondence, geometry: Sequence[Tensor]) -> tuple[Correspondence, Tensor]:
    """Return the pairs that the protocol scores, the surest whose place the second view shows, and which are right.

    Args:
        found: all cells of the first view with the cells they take, the surest first.
        geometry: (2, 3) of both views.
    """
    grid, (rows, columns) = found.grids
    first, second = found.first.cpu(), found.second.cpu()
    positions = true_positions(geometry[0][None], geometry[1][None], grid)[0][first @ torch.tensor([grid[1], 1])]
    true = ((positions.flip(1) + 1) / 2 * torch.tensor([rows, columns])).floor().long()
    shown = ((true >= 0) & (true < torch.tensor([rows, columns]))).all(1).nonzero()[:TOP, 0]
    first, second = first[shown], second[shown]
    kept = replace(found, first=first, second=second, similarity=found.similarity.cpu()[shown])
    return kept, (second == true[shown]).all(1)
