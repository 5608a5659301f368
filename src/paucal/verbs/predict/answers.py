"""What a classifier says about images: as values, as CSV and as JSON."""

import csv
import io
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any

from torch import Tensor

from paucal.evaluation.calibration import marked
from paucal.models.card import ModelCard


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a classifier says about one image.

    Attributes:
        path: Path of the image; None for an image given as pixels.
        classes: K names.
        shares: (K,) float32 probabilities on the CPU, which sum to 1, or of a model that gives several labels one for
            each class.
        thresholds: (K,) probabilities from which on such a model answers with a class; None where it gives one label.
        features: (D,) float32, what the classifier was given; None where they were not asked for.
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
        """The names of the classes that the image is said to be of: one, or any number above their thresholds."""
        if self.thresholds is None:
            return [self.predicted]
        return list(compress(self.classes, marked(self.shares, self.thresholds).tolist()))

    @property
    def probabilities(self) -> Mapping[str, float]:
        """The probability of each class by its name."""
        return dict(zip(self.classes, self.shares.tolist(), strict=True))

    def top(self, count: int) -> list[tuple[str, float]]:
        """Return the likeliest classes with their probabilities, falling; all where there are fewer."""
        order = self.shares.argsort(descending=True, stable=True)[:count].tolist()
        return [(self.classes[place], float(self.shares[place])) for place in order]


def csv_lines(rows: Iterable[Prediction], card: ModelCard, top_k: int | None = None) -> Iterator[str]:
    """Yield one line per image: path, class, confidence, and a probability per class.

    Of a model that gives several labels there are all that reach their threshold, with ";" between them, and no
    confidence.

    Args:
        rows: The answers.
        card: Card of the model.
        top_k: Name only so many of the likeliest classes, in the place of a column for each.
    """
    several, top = card.several, None if top_k is None else min(top_k, len(card.classes))
    answers = ["labels"] if several else ["predicted", "confidence"]
    ranks = [] if top is None else [word for rank in range(1, top + 1) for word in (f"class_{rank}", f"p_{rank}")]
    yield _line(["path", *answers, *([f"p_{name}" for name in card.classes] if top is None else ranks)])
    for row in rows:
        told = [";".join(row.labels)] if several else [row.predicted, _short(row.confidence)]
        if top is None:
            shares = map(_short, row.shares.tolist())
        else:
            shares = [word for name, share in row.top(top) for word in (name, _short(share))]
        yield _line([row.path, *told, *shares])


def json_lines(rows: Iterable[Prediction], top_k: int | None = None) -> Iterator[str]:
    """Yield a list with a mapping per image, of the same; a piece of text for each."""
    one, several = ("path", "predicted", "confidence"), ("path", "labels")
    empty = True
    for row in rows:
        answer: dict[str, Any] = {name: getattr(row, name) for name in (one if row.thresholds is None else several)}
        answer["probabilities"] = row.probabilities if top_k is None else dict(row.top(top_k))
        entry = textwrap.indent(json.dumps(answer, indent=2, ensure_ascii=False), "  ")
        yield f"{'[' if empty else ','}\n{entry}"
        empty = False
    yield "[]\n" if empty else "\n]\n"


def _line(words: Sequence[str | None]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(words)
    return text.getvalue()


def _short(share: float) -> str:
    return f"{share:.6g}"
