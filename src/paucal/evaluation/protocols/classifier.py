"""A linear classifier on frozen features, and what may be asked of the features before one is fitted."""

from dataclasses import dataclass

import torch
from torch import Tensor

from paucal.metrics.measures import value_of
from paucal.metrics.named import MetricName, measure_of
from paucal.types import UserError
from paucal.wording import counted

HELD = 1 << 22  # values looked at together, so that no second copy of all features is made


@dataclass(frozen=True)
class LinearClassifier:
    """Weights and biases.

    Attributes:
        weight: (K, D).
        bias: (K,); minus infinity for a class that was not among the training labels.
        iterations: of the solver.
        converged: whether it stopped for a small gradient and not for the number of iterations.
    """

    weight: Tensor
    bias: Tensor
    iterations: int = 0
    converged: bool = True

    def scores(self, features: Tensor) -> Tensor:
        """Return (N, K) scores of (N, D) features, in the classifier's precision and on its device."""
        # The device first: MPS has no float64 to convert to before the way to the CPU.
        own = (part.to(self.weight.device).to(self.weight.dtype) for part in pieces(features))
        return torch.cat([part @ self.weight.T + self.bias for part in own])


def validation_score(classifier: LinearClassifier, features: Tensor, labels: Tensor, metric: MetricName) -> float:
    """Return the score of a classifier on (N, D) features; not a number where it has diverged."""
    scores = classifier.scores(features).cpu()
    trained = ~classifier.bias.isneginf().cpu()
    if not bool(torch.isfinite(scores[:, trained]).all()):
        return float("nan")
    return value_of(measure_of(metric, scores, labels.cpu()), len(labels))


def require_classes(labels: Tensor, what: str = "the training images") -> None:
    """Refuse (N,) labels of a single class.

    Raises:
        UserError: there is nothing to tell apart.
    """
    found = labels.unique().tolist()
    if len(found) < 2:
        raise UserError(
            f"{what} have {counted(len(found), 'class', 'classes')}, and a classifier needs at least two: "
            "add images of others."
        )


def rows_at_once(dim: int) -> int:
    """Return how many rows of so many channels make a piece of features."""
    return max(1, HELD // max(1, dim))


def pieces(features: Tensor) -> tuple[Tensor, ...]:
    """Return (N, D) features as views of a few rows each."""
    return features.split(rows_at_once(features.shape[1]))


def count_broken(features: Tensor) -> int:
    """Return how many rows of (N, D) features hold a value that is no finite number."""
    return sum(int((~torch.isfinite(part).all(1)).sum()) for part in pieces(features))


def require_finite(features: Tensor, what: str) -> None:
    """Refuse features that are no numbers.

    Raises:
        UserError: some are not finite.
    """
    broken = count_broken(features)
    if broken:
        raise UserError(
            f"the features of {broken} of {len(features)} {what} are not finite numbers: the weights are damaged, or "
            "the values overflow half precision; check the model, or give --feature-dtype float32."
        )


def require_same_width(train: Tensor, test: Tensor) -> None:
    """Refuse features of two models.

    Raises:
        UserError: they have different numbers of channels.
    """
    if train.shape[1] != test.shape[1]:
        raise UserError(
            f"the training features have {train.shape[1]} channels and the test features {test.shape[1]}: they are of "
            "different models; extract both with one."
        )
