"""A linear classifier on frozen features, checks of its features and labels, and folds for cross-validation."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paucal.data.randomness import derive_seed
from paucal.metrics.measures import MetricName, measure_of, value_of
from paucal.types import UserError
from paucal.wording import counted

# Number of values that are checked or converted at once. Features are processed in chunks to avoid a copy of all
# features.
VALUES_PER_CHUNK = 1 << 22
FOLDS = 5  # number of folds of a cross-validation


@dataclass(frozen=True)
class LinearClassifier:
    """The weights and biases of a linear classifier for K classes, and whether its solver converged."""

    weight: Tensor  # (K, D) weights
    bias: Tensor  # (K,) biases; minus infinity for a class without training images
    iterations: int = 0  # number of iterations of the solver
    converged: bool = True  # whether the solver reached its tolerance within the maximum number of iterations

    def scores(self, features: Tensor) -> Tensor:
        """Return (N, K) scores of (N, D) features, in the precision and on the device of the classifier's weights."""
        # Each chunk is moved to the device before the conversion to its dtype, since MPS has no float64.
        chunks = (chunk.to(self.weight.device).to(self.weight.dtype) for chunk in split_rows(features))
        return torch.cat([chunk @ self.weight.T + self.bias for chunk in chunks])


def validation_score(classifier: LinearClassifier, features: Tensor, labels: Tensor, metric: MetricName) -> float:
    """Return the metric of a classifier on (N, D) features; NaN if its training diverged."""
    scores = classifier.scores(features).cpu()
    is_trained = ~classifier.bias.isneginf().cpu()
    if not bool(torch.isfinite(scores[:, is_trained]).all()):
        return float("nan")
    return value_of(measure_of(metric, scores, labels.cpu()), len(labels))


def to_double(values: Tensor) -> Tensor:
    """Return values as float64 on their device, or on the CPU if the device is MPS, which has no float64."""
    return (values.cpu() if values.device.type == "mps" else values).double()


def draw_folds(
    labels: Tensor, seed: int = 0, folds: int = FOLDS, groups: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Return for each fold the rows to fit on and the rows to score on, both in ascending order.

    Each class is spread evenly over the folds (Kohavi 1995, "A study of cross-validation and bootstrap for accuracy
    estimation and model selection"). Images with several classes, whose labels are (N, K), are assigned to folds at
    random. If there are fewer images than `folds`, each image is a fold.

    All images of a group of similar images are in the same fold. Groups are ignored unless at least two classes have at
    least two groups (`can_fold_groups`) and each fold leaves two classes to fit on. If a class has a single group, the
    classifier that is scored on this group is fitted without the class.
    """
    if labels.ndim == 1 and int((labels.unique(return_counts=True)[1] > 1).sum()) < 2:
        raise UserError(
            "there are no validation images, and a cross-validation of the training images needs at least two classes "
            "with at least two images: give more images, or --val-fraction 0.1."
        )
    unit_of_row, unit_labels = torch.arange(len(labels)), labels.cpu()
    if groups is not None and can_fold_groups(labels, groups):
        _, first_rows, numbers = np.unique(groups.numpy(), return_index=True, return_inverse=True)
        unit_of_row, unit_labels = torch.from_numpy(numbers), unit_labels[torch.from_numpy(first_rows)]
    order = np.random.default_rng(derive_seed(seed, len(unit_labels))).permutation(len(unit_labels))
    if labels.ndim == 1:  # sorted by class, so that each class is spread evenly over the folds
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
    """Return whether two classes have at least two groups each; for (N, K) labels, whether there are two groups."""
    if labels.ndim == 2:
        return len(groups.unique()) > 1
    class_of_pair = torch.stack([labels, groups]).unique(dim=1)[0]
    return int((class_of_pair.unique(return_counts=True)[1] > 1).sum()) > 1


def balanced_fold_count(labels: Tensor, max_folds: int, groups: Tensor | None = None) -> int:
    """Return the number of folds: the median number of images per class, but at least 2 and at most `max_folds`.

    If groups of images are kept together, the groups of a class are counted instead of the images of the class.

    If there were more folds than images of a class, the classifier for a held-out image would be fitted to fewer images
    of the held-out image's class than of other classes, so the biases would favour wrong classes. With two images per
    class, all predictions could be wrong.
    """
    if groups is not None and can_fold_groups(labels, groups):
        labels = torch.stack([labels, groups]).unique(dim=1)[0]
    return max(2, min(max_folds, int(labels.unique(return_counts=True)[1].median())))


def take_rows(data: tuple[Tensor, Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the given rows of features and labels, which may be on different devices."""
    features, labels = data
    return features[rows.to(features.device)], labels[rows.to(labels.device)]


def require_two_classes(labels: Tensor, images_text: str = "the training images") -> None:
    """Raise a UserError if (N,) labels have fewer than two classes."""
    count = len(labels.unique())
    if count < 2:
        raise UserError(
            f"{images_text} have {counted(count, 'class', 'classes')}, but a classifier needs at least two: add images "
            "of other classes."
        )


def rows_per_chunk(dim: int) -> int:
    """Return the number of rows of `dim` channels that are processed at once."""
    return max(1, VALUES_PER_CHUNK // max(1, dim))


def split_rows(features: Tensor) -> tuple[Tensor, ...]:
    """Return views of (N, D) features as chunks of rows."""
    return features.split(rows_per_chunk(features.shape[1]))


def count_non_finite(features: Tensor) -> int:
    """Return how many rows of (N, D) features contain NaN or infinite values."""
    return sum(int((~torch.isfinite(chunk).all(1)).sum()) for chunk in split_rows(features))


def require_finite(features: Tensor, images_text: str) -> None:
    """Raise a UserError if features are NaN or infinite."""
    n_broken = count_non_finite(features)
    if n_broken:
        raise UserError(
            f"the features of {n_broken} of {len(features)} {images_text} are not finite numbers, because the weights "
            "are damaged or values overflow half precision: check the model, or give --feature-dtype float32."
        )


def require_same_width(train: Tensor, test: Tensor) -> None:
    """Raise a UserError if training and test features have different numbers of channels."""
    if train.shape[1] != test.shape[1]:
        raise UserError(
            f"the training features have {train.shape[1]} channels, but the test features have {test.shape[1]}: "
            "extract both with the same model."
        )
