"""Predictions of a classifier, computed in batches, as Python objects, CSV and JSON."""

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor

from paucal.data.decode import UnreadableImage
from paucal.evaluation.calibration import reach_thresholds
from paucal.models.card import ModelCard
from paucal.models.features import record_features
from paucal.models.trained import TrainedModel
from paucal.runner.console import Console
from paucal.runner.frames import to_pandas
from paucal.runner.input_images import InputImages
from paucal.verbs.predict.settings import PredictSettings

if TYPE_CHECKING:
    from pandas import DataFrame

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Prediction:
    """The prediction of a classifier for one image.

    Attributes:
        path: Path of the image; None for a PIL image or array.
        classes: Names of the K classes.
        shares: (K,) float32 probabilities of the classes, on the CPU. The probabilities sum to 1, unless the model
            predicts several labels per image, with an independent probability for each class.
        thresholds: (K,) lowest probabilities at which a multi-label model predicts each class; None for a
            single-label model.
        features: (D,) float32 input of the final linear classifier; None if not requested.
    """

    path: str | None
    classes: tuple[str, ...]
    shares: Tensor
    thresholds: tuple[float, ...] | None = None
    features: Tensor | None = None

    @cached_property
    def predicted(self) -> str:
        """The name of the class with the highest probability."""
        return self.classes[int(self.shares.argmax())]

    @cached_property
    def confidence(self) -> float:
        """The highest probability."""
        return float(self.shares.max())

    @cached_property
    def labels(self) -> list[str]:
        """The names of the predicted classes: the most probable class, or all classes that reach their thresholds."""
        if self.thresholds is None:
            return [self.predicted]
        return list(compress(self.classes, reach_thresholds(self.shares, self.thresholds).tolist()))

    @property
    def probabilities(self) -> Mapping[str, float]:
        """The probability of each class, by class name."""
        return dict(zip(self.classes, self.shares.tolist(), strict=True))

    def top(self, count: int) -> list[tuple[str, float]]:
        """Return up to `count` pairs of a class and its probability, the most probable classes first."""
        order = self.shares.argsort(descending=True, stable=True)[:count].tolist()
        return [(self.classes[index], float(self.shares[index])) for index in order]


class TableList(list[T]):
    """The predictions of one call, as a list that can be converted to tables."""

    def to_arrow(self) -> pa.Table:
        """Return the predictions as an Arrow table."""
        raise NotImplementedError

    def to_pandas(self) -> "DataFrame":
        """Return the table of `to_arrow` as a pandas DataFrame.

        Raises:
            UserError: pandas is not installed.
        """
        return to_pandas(self.to_arrow())


class Predictions(TableList[Prediction]):
    """The predictions of a classifier."""

    def to_arrow(self) -> pa.Table:
        """Return a table with the columns of `paucal predict --output answers.csv` and unrounded numbers.

        The columns are the path; the class and its confidence, or for a multi-label model a list of labels; and a
        column "p_CLASS" with the probability of each class.
        """
        columns: dict[str, Any] = {"path": pa.array([row.path for row in self], pa.string())}
        if self and self[0].thresholds is not None:
            columns["labels"] = [row.labels for row in self]
        else:
            columns["predicted"] = pa.array([row.predicted for row in self], pa.string())
            columns["confidence"] = pa.array([row.confidence for row in self], pa.float32())
        for index, name in enumerate(self[0].classes if self else ()):
            columns[f"p_{name}"] = pa.array([float(row.shares[index]) for row in self], pa.float32())
        return pa.table(columns)


def csv_header(card: ModelCard, top_k: int | None = None) -> list[str]:
    """Return the column names of a CSV table: path, class, confidence, and a probability per class.

    For a multi-label model, a column with all classes that reach their thresholds replaces class and confidence. If
    `top_k` is given, the columns have the names and probabilities of only the `top_k` most probable classes.
    """
    first_columns = ["path", "labels"] if card.is_multi_label else ["path", "predicted", "confidence"]
    if top_k is None:
        return [*first_columns, *(f"p_{name}" for name in card.classes)]
    ranks = range(1, min(top_k, len(card.classes)) + 1)
    return [*first_columns, *(column for rank in ranks for column in (f"class_{rank}", f"p_{rank}"))]


def csv_cells(row: Prediction, top_k: int | None = None) -> list[str | None]:
    """Return the CSV row of one image, with the columns of `csv_header`; labels are separated by ";"."""
    first_cells = [row.path, *([row.predicted] if row.thresholds is None else [";".join(row.labels)])]
    first_cells += [f"{row.confidence:.6g}"] if row.thresholds is None else []
    if top_k is None:
        return [*first_cells, *(f"{share:.6g}" for share in row.shares.tolist())]
    return [*first_cells, *(cell for name, share in row.top(top_k) for cell in (name, f"{share:.6g}"))]


def json_lines(rows: Iterable[Prediction], top_k: int | None = None) -> Iterator[str]:
    """Yield a JSON list in pieces: an object for each image, with the same values as its CSV row."""
    is_empty = True
    for row in rows:
        names = ("path", "predicted", "confidence") if row.thresholds is None else ("path", "labels")
        values: dict[str, Any] = {name: getattr(row, name) for name in names}
        values["probabilities"] = row.probabilities if top_k is None else dict(row.top(top_k))
        entry = textwrap.indent(json.dumps(values, indent=2, ensure_ascii=False), "  ")
        yield f"{'[' if is_empty else ','}\n{entry}"
        is_empty = False
    yield "[]\n" if is_empty else "\n]\n"


@dataclass(frozen=True, eq=False)
class OutputBatch:
    """The outputs of a model for consecutive images.

    Attributes:
        names: Paths of the N images; None for an image in memory.
        stamps: Stamps of the N images, which show whether a file has changed; see `InputImages.stamp`.
        problems: For each of the N images, the reason why the image could not be read; None for the M readable images.
        shares: (M, K) float32 probabilities of the readable images for K classes.
        features: (M, D) float32 inputs of the final linear classifier; None if not requested.
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
        """Whether each of the N images could be read."""
        return [problem is None for problem in self.problems]

    def predictions(self, card: ModelCard) -> list[Prediction]:
        """Return the predictions for the images that could be read."""
        rows = self.features if self.features is not None else [None] * len(self.shares)
        return [
            Prediction(name, card.classes, shares, card.thresholds, features)
            for name, shares, features in zip(compress(self.names, self.readable), self.shares, rows, strict=True)
        ]


def predict_batches(
    model: TrainedModel,
    pictures: InputImages,
    settings: PredictSettings,
    console: Console,
    *,
    start: int = 0,
    features: bool = False,
) -> Iterator[OutputBatch]:
    """Yield the outputs of a model for the images from position `start` on, batch by batch, with a progress bar.

    Unreadable images do not count towards the batch size. Thus, a call that resumes after a complete batch gets the
    same batches, and the same predictions, as an uninterrupted call.
    """
    with ExitStack() as stack:
        take_features = stack.enter_context(record_features(model)) if features else None
        advance = stack.enter_context(console.progress("classifying"))
        n_done = start
        for first, batch in _batches(pictures, settings, console, start):
            problems = [str(picture) if isinstance(picture, UnreadableImage) else None for picture in batch]
            readable = [picture for picture in batch if not isinstance(picture, UnreadableImage)]
            probabilities, feature_rows = torch.empty(0, len(model.classes)), None
            if readable and model.classes:
                probabilities = model.probabilities(readable)
            elif readable:  # for a backbone without a classifier, `take_features` needs a forward pass
                probabilities = torch.empty(len(readable), 0)
                with torch.inference_mode():
                    model.module(model.prepared(readable))
            if take_features is not None:
                feature_rows = take_features() if readable else torch.empty(0, 0)
            positions = range(first, first + len(batch))
            names, stamps = map(pictures.name, positions), map(pictures.stamp, positions)
            yield OutputBatch(list(names), list(stamps), problems, probabilities, feature_rows)
            n_done += len(batch)
            advance(n_done, len(pictures))


def _batches(
    pictures: InputImages, settings: PredictSettings, console: Console, start: int
) -> Iterator[tuple[int, list[Image.Image | UnreadableImage]]]:
    """Yield each batch as the position of its first image and the list of its images, including unreadable images."""
    first, batch, n_readable = start, [], 0
    for position in range(start, len(pictures)):
        picture = pictures.read_or_skip(position, settings.on_bad_image, console)
        batch.append(picture)
        n_readable += not isinstance(picture, UnreadableImage)
        if n_readable == settings.batch_size:
            yield first, batch
            first, batch, n_readable = position + 1, [], 0
    if batch:
        yield first, batch
