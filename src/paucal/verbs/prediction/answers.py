"""What a classifier says about images: as values, as CSV and as JSON."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress

from torch import Tensor

from paucal.evaluation.thresholds import marked


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a classifier says about one image.

    Attributes:
        path: of the image; None where it was given as a picture.
        classes: K names.
        shares: (K,) float32 probabilities on the CPU, which sum to 1, or of a model that gives several labels one for
            each class.
        thresholds: (K,) probabilities from which on such a model answers with a class; None where it gives one label.
    """

    path: str | None
    classes: tuple[str, ...]
    shares: Tensor
    thresholds: tuple[float, ...] | None = None

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


def as_csv(rows: Iterable[Prediction], classes: Sequence[str]) -> str:
    """Return one line per image: path, class, confidence, and a probability per class.

    Of a model that gives several labels there are all that reach their threshold, with ";" between them, and no
    confidence.
    """
    rows = list(rows)
    several = any(row.thresholds is not None for row in rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    answers = ["labels"] if several else ["predicted", "confidence"]
    writer.writerow(["path", *answers, *(f"p_{name}" for name in classes)])
    for row in rows:
        shares = [f"{share:.6g}" for share in row.shares.tolist()]
        told = [";".join(row.labels)] if several else [row.predicted, f"{row.confidence:.6g}"]
        writer.writerow([row.path, *told, *shares])
    return text.getvalue()


def as_json(rows: Iterable[Prediction]) -> str:
    """Return a list with a mapping per image, of the same."""
    one, several = ("path", "predicted", "confidence", "probabilities"), ("path", "labels", "probabilities")
    answers = [{name: getattr(row, name) for name in (one if row.thresholds is None else several)} for row in rows]
    return json.dumps(answers, indent=2, ensure_ascii=False) + "\n"
