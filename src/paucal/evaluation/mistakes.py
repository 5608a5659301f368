"""The errors a model is surest of: mislabelled images and real blind spots are found here first."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from PIL import Image

from paucal.evaluation.plots import shorten
from paucal.evaluation.predictions import Predictions
from paucal.wording import percent

COLUMNS = 4


@dataclass(frozen=True)
class Mistake:
    """One wrong answer.

    Attributes:
        id: of the image in its set.
        true: index of the class it has.
        predicted: index of the class it was given.
        confidence: the model's probability for its answer.
    """

    id: int
    true: int
    predicted: int
    confidence: float


def worst_mistakes(predictions: Predictions, n: int) -> list[Mistake]:
    """Return up to `n` wrong answers, the most confident first, ties by id."""
    confidence = predictions.probabilities.max(1).values
    wrong = (predictions.predicted != predictions.labels).nonzero()[:, 0]
    order = wrong[confidence[wrong].argsort(descending=True, stable=True)][:n]
    columns = (predictions.ids, predictions.labels, predictions.predicted, confidence)
    return [Mistake(*row) for row in zip(*(column[order].tolist() for column in columns), strict=True)]


def mistakes_figure(images: Sequence[Image.Image], mistakes: Sequence[Mistake], classes: Sequence[str]) -> Figure:
    """Draw one picture per mistake with its true class, the answer and the confidence.

    Raises:
        ValueError: the numbers of images and mistakes differ, or there are none.
    """
    if len(images) != len(mistakes) or not images:
        raise ValueError(f"expected as many images as mistakes, got {len(images)} and {len(mistakes)}")
    n_columns = min(COLUMNS, len(images))
    n_rows = -(-len(images) // n_columns)
    figure = Figure(figsize=(2.3 * n_columns, 2.75 * n_rows), layout="constrained")
    grid = list(figure.subplots(n_rows, n_columns, squeeze=False).flat)
    for axes, image, mistake in zip(grid, images, mistakes, strict=False):
        axes.imshow(image.convert("RGB"))
        axes.set_anchor("N")
        answer = f"answer: {shorten(classes[mistake.predicted])}, {percent(mistake.confidence, '.0f')}"
        axes.set_title(f"{answer}\nlabel: {shorten(classes[mistake.true])}", fontsize=8, loc="left")
    for axes in grid:
        axes.axis("off")
    return figure
