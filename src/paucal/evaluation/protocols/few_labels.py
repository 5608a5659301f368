"""The few-labels protocol: accuracy of a classifier on features, by the number of labelled images per class."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paucal.data.randomness import derive_seed
from paucal.evaluation.protocols.classifier import require_finite, require_same_width, split_rows, to_double
from paucal.evaluation.protocols.logistic import DEFAULT_SOLVER, SolverSettings, fit_logistic
from paucal.metrics.measures import hits

LABELS_PER_CLASS = (1, 2, 5, 10, 50)  # evaluated numbers of labels per class
REPEATS = 5  # number of random draws for each number of labels
LAMBDA = 1.0  # factor of the L2 penalty lambda / 2 * |W|^2


@dataclass(frozen=True)
class CurvePoint:
    """Results for one number of labels per class."""

    per_class: int  # number of labels per class; if a class has fewer images, all its labels are used
    hits: NDArray[np.float64]  # (repeats, N): 1 if the prediction is correct, 0 if wrong, a fraction if top scores tie
    margins: NDArray[np.float64]  # (repeats, N) second class's score minus the first's; empty for more than two classes


def draw_few(labels: Tensor, per_class: int, seed: int) -> Tensor:
    """Draw the rows of `per_class` images per class; for the same seed, smaller draws are subsets of larger draws."""
    rows = []
    for label in labels.unique().tolist():
        members = (labels == label).nonzero()[:, 0]
        order = np.random.default_rng(derive_seed(seed, label)).permutation(len(members))
        rows.append(members[torch.from_numpy(order[:per_class])])
    return torch.cat(rows).sort().values


def few_label_curve(
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    n_classes: int,
    per_class: Sequence[int] = LABELS_PER_CLASS,
    repeats: int = REPEATS,
    seed: int = 0,
    solver: SolverSettings = DEFAULT_SOLVER,
    progress: Callable[[int, int], None] | None = None,
) -> list[CurvePoint]:
    """Fit logistic regressions to repeated draws of a few labels, and score the test images.

    No hyperparameter is selected, because with one label per class there are no images left for validation. Instead,
    the labelled features are centred and divided by their root mean square, and the penalty lambda is 1. Numbers of
    labels that exceed the number of images of the largest class are skipped.

    `train` and `test` are (N, D) features and (N,) labels. There are `repeats` draws for each number of labels in
    `per_class`, which depend only on the labels and the seed, not on the features.
    """
    require_same_width(train[0], test[0])
    require_finite(test[0], "test images")
    largest_class = int(torch.bincount(train[1]).max())
    numbers = [n for n in per_class if n <= largest_class] or [largest_class]
    curve = []
    for number in numbers:
        all_hits, margins = [], []
        for repeat in range(repeats):
            drawn_rows = draw_few(train[1], number, derive_seed(seed, repeat)).to(train[0].device)
            features, labels = to_double(train[0][drawn_rows]), train[1][drawn_rows.to(train[1].device)]
            centre = features.mean(0)
            scale = (features - centre).square().mean().sqrt().clamp(min=1e-12)
            classifier = fit_logistic((features - centre) / scale, labels, n_classes, LAMBDA, solver)
            chunks = [classifier.scores((to_double(chunk) - centre) / scale) for chunk in split_rows(test[0])]
            scores = torch.cat(chunks).cpu()
            all_hits.append(hits(scores, test[1].cpu()))
            margins += [(scores[:, 1] - scores[:, 0]).numpy()] if n_classes == 2 else []
            if progress is not None:
                progress(len(curve) * repeats + repeat + 1, len(numbers) * repeats)
        curve.append(CurvePoint(number, np.stack(all_hits), np.array(margins)))
    return curve
