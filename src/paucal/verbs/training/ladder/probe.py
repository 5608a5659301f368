"""The first rung: logistic regression on frozen features, folded into the network's own classifier."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from paucal.evaluation.protocols.cross_validation import draw_folds
from paucal.evaluation.protocols.logistic import Solver, fit_logistic

STRENGTHS = (1.0, 10.0, 100.0, 1000.0)  # of the L2 penalty on standardised features; few, since the peak is flat
USUAL = 100.0  # where nothing can be compared
FOLDS, MOST_COMPARED = 3, 3000
SOLVER = Solver(max_iterations=200)
ABSENT = -30.0  # the logit of a class without training images, under all others but finite, as losses need it


@dataclass(frozen=True)
class Head:
    """A linear classifier of plain features.

    Attributes:
        weight: (K, D) float32.
        bias: (K,) float32.
        strength: of the L2 penalty.
        cross_validated: share of the training images given the right class when they were left out; None where they
            are too few to leave some out.
    """

    weight: Tensor
    bias: Tensor
    strength: float
    cross_validated: float | None

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
    strength, score = _choose(standard, labels, n_classes, seed, strengths)
    fitted = fit_logistic(standard, labels, n_classes, strength, SOLVER)
    weight, bias = fitted.weight / deviation, fitted.bias.clamp(min=ABSENT)
    bias = bias - weight @ mean.to(weight.dtype)
    return Head(weight.float(), bias.float(), strength, score)


def _choose(
    standard: Tensor, labels: Tensor, n_classes: int, seed: int, strengths: Sequence[float]
) -> tuple[float, float | None]:
    """Return the best strength and its score, on a part of many images: the peak is flat, and the fits take long."""
    if int((labels.unique(return_counts=True)[1] > 1).sum()) < 2:
        return USUAL, None
    some = stratified(labels, MOST_COMPARED, seed)
    features, truth = standard[some], labels[some]
    folds = draw_folds(truth, seed, FOLDS)

    def score(strength: float) -> float:
        right = 0
        for rows, others in folds:
            fitted = fit_logistic(features[rows], truth[rows], n_classes, strength, SOLVER)
            right += int((fitted.scores(features[others]).argmax(1) == truth[others]).sum())
        return right / len(truth)

    scores = [score(strength) for strength in strengths]
    best = max(range(len(strengths)), key=lambda number: (scores[number], number))
    return strengths[best], scores[best]


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
