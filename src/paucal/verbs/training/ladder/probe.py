"""The first rung: logistic regression on frozen features, folded into the network's own classifier."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from paucal.evaluation.protocols.cross_validation import draw_folds
from paucal.evaluation.protocols.logistic import Solver, fit_logistic

STRENGTHS = (1.0, 10.0, 100.0, 1000.0)  # of the L2 penalty on standardised features; few, since the peak is flat
FOLDS = 3
SOLVER = Solver(max_iterations=200)
ABSENT = -30.0  # the logit of a class without training images, under all others but finite, as losses need it


@dataclass(frozen=True)
class Head:
    """A linear classifier of plain features.

    Attributes:
        weight: (K, D) float32.
        bias: (K,) float32.
        strength: of the L2 penalty.
        cross_validated: share of the training images given the right class when they were left out.
    """

    weight: Tensor
    bias: Tensor
    strength: float
    cross_validated: float

    def put_into(self, classifier: nn.Linear) -> None:
        """Make it a network's classifier, in place."""
        with torch.no_grad():
            classifier.weight.copy_(self.weight)
            classifier.bias.copy_(self.bias)

    def scores(self, features: Tensor) -> Tensor:
        """Return (N, K) logits of (N, D) features."""
        return features @ self.weight.T + self.bias


def fit_head(
    features: Tensor, labels: Tensor, n_classes: int, seed: int = 0, strengths: Sequence[float] = STRENGTHS
) -> Head:
    """Fit logistic regression to standardised features, and fold the standardisation into its weights.

    The penalty is chosen by cross-validation within the training images; of equal scores the stronger one wins.

    Args:
        features: (N, D) of the training images.
        labels: (N,) in [0, K).
        n_classes: K.
        seed: of the folds.
        strengths: the penalties to choose from, ascending.

    Raises:
        UserError: the features are no finite numbers, or there are too few images.
    """
    mean, deviation = features.mean(0), features.std(0)
    deviation = torch.where(deviation > 1e-8, deviation, torch.ones_like(deviation))
    standard = (features - mean) / deviation
    folds = draw_folds(labels, seed, FOLDS)

    def score(strength: float) -> float:
        right = 0
        for rows, others in folds:
            fitted = fit_logistic(standard[rows], labels[rows], n_classes, strength, SOLVER)
            right += int((fitted.scores(standard[others]).argmax(1) == labels[others]).sum())
        return right / len(labels)

    scores = [score(strength) for strength in strengths]
    best = max(range(len(strengths)), key=lambda number: (scores[number], number))
    fitted = fit_logistic(standard, labels, n_classes, strengths[best], SOLVER)
    weight, bias = fitted.weight / deviation, fitted.bias.clamp(min=ABSENT)
    bias = bias - weight @ mean.to(weight.dtype)
    return Head(weight.float(), bias.float(), strengths[best], scores[best])


def stratified(labels: Tensor, count: int, seed: int = 0) -> Tensor:
    """Return positions of about so many images, ascending, each class in its share and with two images at least."""
    generator = np.random.default_rng(seed)
    share, found = min(1.0, count / max(len(labels), 1)), []
    for label in labels.unique().tolist():
        rows = np.flatnonzero(labels.numpy() == label)
        found.append(generator.permutation(rows)[: max(2, round(share * len(rows)))])
    return torch.from_numpy(np.sort(np.concatenate(found)))


def accuracy(head: Head, features: Tensor, labels: Tensor) -> float:
    """Return the share of images given the right class."""
    return float((head.scores(features).argmax(1) == labels).float().mean())
