"""What a classifier says about images: as values, as CSV and as JSON."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a classifier says about one image.

    Attributes:
        path: of the image; None where it was given as a picture.
        classes: K names.
        shares: (K,) float32 probabilities on the CPU, which sum to 1.
    """

    path: str | None
    classes: tuple[str, ...]
    shares: Tensor

    @cached_property
    def predicted(self) -> str:
        """The name of the class with the highest probability."""
        return self.classes[int(self.shares.argmax())]

    @cached_property
    def confidence(self) -> float:
        """The highest probability."""
        return float(self.shares.max())

    @property
    def probabilities(self) -> Mapping[str, float]:
        """The probability of each class by its name."""
        return dict(zip(self.classes, self.shares.tolist(), strict=True))


def as_csv(rows: Iterable[Prediction], classes: Sequence[str]) -> str:
    """Return one line per image: path, class, confidence, and a probability per class."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["path", "predicted", "confidence", *(f"p_{name}" for name in classes)])
    for row in rows:
        shares = [f"{share:.6g}" for share in row.shares.tolist()]
        writer.writerow([row.path, row.predicted, f"{row.confidence:.6g}", *shares])
    return text.getvalue()


def as_json(rows: Iterable[Prediction]) -> str:
    """Return a list with a mapping per image, of the same."""
    names = ("path", "predicted", "confidence", "probabilities")
    answers = [{name: getattr(row, name) for name in names} for row in rows]
    return json.dumps(answers, indent=2, ensure_ascii=False) + "\n"
