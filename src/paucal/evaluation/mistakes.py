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


@dataclass(frozen=True)
class Disagreement:
    """One class of one image of several labels, of which model and label say different things.

    Attributes:
        id: of the image in its set.
        label: index of the class.
        probability: the model's, of the class.
        labels: indices of the classes that the image has.
    """

    id: int
    label: int
    probability: float
    labels: tuple[int, ...]


def surest_disagreements(predictions: Predictions, n: int) -> list[Disagreement]:
    """Return up to `n` classes of images about which the model contradicts the labels most surely, one for an image.

    A label that was forgotten is found here first.
    """
    distance = (predictions.probabilities - predictions.labels).abs().masked_fill(predictions.labels < 0, 0.0)
    sure, label = distance.max(1)
    order = sure.argsort(descending=True, stable=True)[:n]
    return [
        Disagreement(
            int(predictions.ids[row]),
            int(label[row]),
            float(predictions.probabilities[row, label[row]]),
            tuple((predictions.labels[row] == 1).nonzero()[:, 0].tolist()),
        )
        for row in order.tolist()
        if sure[row] > 0.5
    ]


def disagreements_figure(
    images: Sequence[Image.Image], found: Sequence[Disagreement], classes: Sequence[str]
) -> Figure:
    """Draw one picture per disagreement with what the model says of the class, and the labels."""
    captions = []
    for one in found:
        labels = ", ".join(shorten(classes[place], 12) for place in one.labels) or "none"
        answer = f"model: {shorten(classes[one.label])} {percent(one.probability, '.0f')}"
        captions.append(f"{answer}\nlabels: {labels[:34]}")
    return _captioned(images, captions)


def mistakes_figure(images: Sequence[Image.Image], mistakes: Sequence[Mistake], classes: Sequence[str]) -> Figure:
    """Draw one picture per mistake with its true class, the answer and the confidence.

    Raises:
        ValueError: the numbers of images and mistakes differ, or there are none.
    """
    answers = [
        f"answer: {shorten(classes[one.predicted])}, {percent(one.confidence, '.0f')}\n"
        f"label: {shorten(classes[one.true])}"
        for one in mistakes
    ]
    return _captioned(images, answers)


def _captioned(images: Sequence[Image.Image], captions: Sequence[str]) -> Figure:
    if len(images) != len(captions) or not images:
        raise ValueError(f"expected as many images as mistakes, got {len(images)} and {len(captions)}")
    n_columns = min(COLUMNS, len(images))
    n_rows = -(-len(images) // n_columns)
    figure = Figure(figsize=(2.3 * n_columns, 2.75 * n_rows), layout="constrained")
    grid = list(figure.subplots(n_rows, n_columns, squeeze=False).flat)
    for axes, image, caption in zip(grid, images, captions, strict=False):
        axes.imshow(image.convert("RGB"))
        axes.set_anchor("N")
        axes.set_title(caption, fontsize=8, loc="left")
    for axes in grid:
        axes.axis("off")
    return figure
