"""A linear classifier on frozen features, checks of its data, and folds for cross-validation."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paucal.data.randomness import derive_seed
from paucal.metrics.measures import MetricName, measure_of, value_of
from paucal.types import UserError
from paucal.wording import counted

CHUNK = 1 << 22  # number of values checked or converted at once, which avoids a second copy of all features
FOLDS = 5


@dataclass(frozen=True)
class LinearClassifier:
    """Weights and biases.

    Attributes:
        weight: (K, D) weights.
        bias: (K,) biases; minus infinity for a class without training images.
        iterations: Iterations of the solver.
        converged: Whether the solver reached its tolerance before its limit of iterations.
    """

    weight: Tensor
    bias: Tensor
    iterations: int = 0
    converged: bool = True

    def scores(self, features: Tensor) -> Tensor:
        """Return (N, K) scores of (N, D) features, in the classifier's precision and on its device."""
        # Move first, then convert, since MPS has no float64.
        converted = (part.to(self.weight.device).to(self.weight.dtype) for part in pieces(features))
        return torch.cat([part @ self.weight.T + self.bias for part in converted])


def validation_score(classifier: LinearClassifier, features: Tensor, labels: Tensor, metric: MetricName) -> float:
    """Return the score of a classifier on (N, D) features; NaN if it has diverged."""
    scores = classifier.scores(features).cpu()
    trained = ~classifier.bias.isneginf().cpu()
    if not bool(torch.isfinite(scores[:, trained]).all()):
        return float("nan")
    return value_of(measure_of(metric, scores, labels.cpu()), len(labels))


def to_double(values: Tensor) -> Tensor:
    """Return values in float64 on their device, or on the CPU if they are on MPS, which has no float64."""
    return (values.cpu() if values.device.type == "mps" else values).double()


def draw_folds(
    labels: Tensor, seed: int = 0, folds: int = FOLDS, groups: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Return the rows to fit on and the rows to score on of each fold, both ascending.

    Each class is spread evenly over the folds (Kohavi 1995, "A study of cross-validation and bootstrap for accuracy
    estimation and model selection").

    Args:
        labels: (N,) int64 classes; or (N, K) for several labels, then the folds are drawn without regard to classes.
        seed: Seed of the draw.
        folds: Largest number of folds; small classes allow fewer.
        groups: (N,) numbers of groups of alike images, which stay in one fold; ignored unless two classes have two
            groups or more (`can_fold_groups`) and two classes are left to fit on. Classes with a single group are then
            missing in the fit for their fold.
    """
    if labels.ndim == 1 and int((labels.unique(return_counts=True)[1] > 1).sum()) < 2:
        raise UserError(
            "without validation images the training images are cross-validated, which needs two classes with two "
            "images or more: give more images, or --val-fraction 0.1."
        )
    unit_of_row, unit_labels = torch.arange(len(labels)), labels.cpu()
    if groups is not None and can_fold_groups(labels, groups):
        _, first_rows, numbers = np.unique(groups.numpy(), return_index=True, return_inverse=True)
        unit_of_row, unit_labels = torch.from_numpy(numbers), unit_labels[torch.from_numpy(first_rows)]
    order = np.random.default_rng(derive_seed(seed, len(unit_labels))).permutation(len(unit_labels))
    if labels.ndim == 1:  # class by class, so that each class is spread over the folds
        order = order[np.argsort(unit_labels.numpy()[order], kind="stable")]
    fold_of_unit = torch.empty(len(unit_labels), dtype=torch.int64)
    fold_of_unit[torch.from_numpy(order)] = torch.arange(len(unit_labels)) % min(folds, len(unit_labels))
    fold_of_row = fold_of_unit[unit_of_row]
    splits = [
        ((fold_of_row != fold).nonzero()[:, 0], (fold_of_row == fold).nonzero()[:, 0])
        for fold in range(int(fold_of_row.max()) + 1)
    ]
    if groups is not None and any(len(labels[rows].unique()) < 2 for rows, _ in splits):
        return draw_folds(labels, seed, folds)
    return splits


def can_fold_groups(labels: Tensor, groups: Tensor) -> bool:
    """Return whether classes can be predicted from other groups: two classes, or several labels, have two groups."""
    if labels.ndim == 2:
        return len(groups.unique()) > 1
    class_of_pair = torch.stack([labels, groups]).unique(dim=1)[0]
    return int((class_of_pair.unique(return_counts=True)[1] > 1).sum()) > 1


def even_folds(labels: Tensor, max_folds: int, groups: Tensor | None = None) -> int:
    """Return the number of folds: 2 to `max_folds`, but no more than the median number of images of a class.

    If groups of images stay in one fold, the groups of a class count instead of its images.

    With more folds than images of a class, a fit would see fewer images of a held-out image's class than of the others,
    and its biases would favour wrong classes: with two images per class, all predictions can be wrong.
    """
    if groups is not None and can_fold_groups(labels, groups):
        labels = torch.stack([labels, groups]).unique(dim=1)[0]
    return max(2, min(max_folds, int(labels.unique(return_counts=True)[1].median())))


def take_rows(data: tuple[Tensor, Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the given rows of features and labels, which may be on any device."""
    features, labels = data
    return features[rows.to(features.device)], labels[rows.to(labels.device)]


def require_classes(labels: Tensor, what: str = "the training images") -> None:
    """Refuse (N,) labels of a single class."""
    count = len(labels.unique())
    if count < 2:
        raise UserError(
            f"{what} have {counted(count, 'class', 'classes')}, but a classifier needs at least two: add images "
            "of others."
        )


def rows_at_once(dim: int) -> int:
    """Return how many rows of `dim` channels are processed at once."""
    return max(1, CHUNK // max(1, dim))


def pieces(features: Tensor) -> tuple[Tensor, ...]:
    """Return (N, D) features as views of a few rows each."""
    return features.split(rows_at_once(features.shape[1]))


def count_broken(features: Tensor) -> int:
    """Return how many rows of (N, D) features hold a value that is not finite."""
    return sum(int((~torch.isfinite(part).all(1)).sum()) for part in pieces(features))


def require_finite(features: Tensor, what: str) -> None:
    """Refuse features that are NaN or infinite."""
    broken = count_broken(features)
    if broken:
        raise UserError(
            f"the features of {broken} of {len(features)} {what} are not finite numbers: the weights are damaged, or "
            "the values overflow half precision; check the model, or give --feature-dtype float32."
        )


def require_same_width(train: Tensor, test: Tensor) -> None:
    """Refuse features of two different models."""
    if train.shape[1] != test.shape[1]:
        raise UserError(
            f"the training features have {train.shape[1]} channels and the test features {test.shape[1]}: they "
            "come from different models; extract both with one model."
        )
