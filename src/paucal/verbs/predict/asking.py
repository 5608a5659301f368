"""Run a model on many pictures, a batch at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import compress

import torch
from PIL import Image
from torch import Tensor

from paucal.data.decode import UnreadableImage
from paucal.models.card import ModelCard
from paucal.models.features import features_of_calls
from paucal.models.trained import TrainedModel
from paucal.runner.console import Console
from paucal.runner.input_images import Pictures
from paucal.verbs.predict.answers import Prediction
from paucal.verbs.predict.settings import PredictSettings


@dataclass(frozen=True, eq=False)
class Block:
    """The outputs of a model for consecutive pictures.

    Attributes:
        names: N paths; None for pictures that were given in memory.
        stamps: N stamps, see `Pictures.stamp`.
        problems: N reasons why a picture could not be read; None for the M that could.
        shares: (M, K) float32 probabilities.
        features: (M, D) float32; None if not requested.
    """

    names: Sequence[str | None]
    stamps: Sequence[str]
    problems: Sequence[str | None]
    shares: Tensor
    features: Tensor | None = None

    def __len__(self) -> int:
        return len(self.names)

    @property
    def readable(self) -> list[bool]:
        """Which of the N pictures could be read."""
        return [problem is None for problem in self.problems]

    def predictions(self, card: ModelCard) -> list[Prediction]:
        """Return the predictions for the pictures that could be read."""
        rows = self.features if self.features is not None else [None] * len(self.shares)
        return [
            Prediction(name, card.classes, shares, card.thresholds, features)
            for name, shares, features in zip(compress(self.names, self.readable), self.shares, rows, strict=True)
        ]


def predict_batches(
    model: TrainedModel,
    pictures: Pictures,
    settings: PredictSettings,
    console: Console,
    *,
    start: int = 0,
    features: bool = False,
) -> Iterator[Block]:
    """Yield the outputs of a model, batch after batch, with a progress bar.

    Batches count only pictures that can be read, from `start` on. A call that resumes after a whole batch thus has the
    same batches, and the same numbers, as a call without interruption.
    """
    with ExitStack() as stack:
        take = stack.enter_context(features_of_calls(model)) if features else None
        advance = stack.enter_context(console.progress("classifying"))
        n_done = start
        for first, batch in _batches(pictures, settings, console, start):
            yield _run_batch(model, pictures, first, batch, take)
            n_done += len(batch)
            advance(n_done, len(pictures))


def _batches(
    pictures: Pictures, settings: PredictSettings, console: Console, start: int
) -> Iterator[tuple[int, list[Image.Image | UnreadableImage]]]:
    """Yield the position of the first picture of a batch, and its pictures, unreadable ones included."""
    first, batch, readable = start, [], 0
    for position in range(start, len(pictures)):
        picture = pictures.read_or_skip(position, settings.on_bad_image, console)
        batch.append(picture)
        readable += not isinstance(picture, UnreadableImage)
        if readable == settings.batch_size:
            yield first, batch
            first, batch, readable = position + 1, [], 0
    if batch:
        yield first, batch


def _run_batch(
    model: TrainedModel,
    pictures: Pictures,
    first: int,
    batch: list[Image.Image | UnreadableImage],
    take: Callable[[], Tensor] | None,
) -> Block:
    positions = range(first, first + len(batch))
    problems = [str(picture) if isinstance(picture, UnreadableImage) else None for picture in batch]
    readable = [picture for picture in batch if not isinstance(picture, UnreadableImage)]
    shares, features = torch.empty(0, len(model.classes)), None
    if readable and model.classes:
        shares = model.probabilities(readable)
    elif readable:  # a backbone without a classifier gives only features
        shares = torch.empty(len(readable), 0)
        with torch.inference_mode():
            model.module(model.prepared(readable))
    if take is not None:
        features = take() if readable else torch.empty(0, 0)
    names, stamps = [pictures.name(index) for index in positions], [pictures.stamp(index) for index in positions]
    return Block(names, stamps, problems, shares, features)
