"""Logistic regression on frozen features with an L2 penalty (EsViT, section 4.1 and appendix; after CLIP).

The objective is the sum of cross-entropies + lambda / 2 * |W|^2 with an unpenalised bias, minimised by L-BFGS with at
most 1000 iterations. The solver is scikit-learn on the CPU (whose C is 1 / lambda) or torch, which can run on a GPU and
reaches the same minimum. The torch solver divides the loss by the number of images, as scikit-learn does, so that
tolerances have the same meaning. If there are two classes, both solvers fit a single weight vector, since two vectors
would be penalised differently.

Lambda is selected by the parametric binary search of the paper, on a grid of 97 values from 1e-6 to 1e6 (8 values per
decade). First, seven values that are two decades apart are tried. Then this distance is halved repeatedly, and the two
values at this distance from the best value so far are tried. The search ends when the grid neighbours of the best value
have been tried. It needs at most 7 + 4 * 2 = 15 fits, and finds the best value of the grid if the score has a single
peak.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from paucal.evaluation.protocols.classifier import (
    LinearClassifier,
    draw_folds,
    require_finite,
    require_same_width,
    require_two_classes,
    take_rows,
    to_double,
    validation_score,
)
from paucal.metrics.measures import MetricName
from paucal.types import UserError

HISTORY_SIZE = 10  # history size of L-BFGS, as in SciPy
_MIN_CHANGE = 1e-16  # changes of the mean loss below this value are rounding errors
PER_DECADE = 8  # grid points per decade of lambda
MIN_EXPONENT, MAX_EXPONENT = -6, 6  # log10 of the smallest and largest lambda
N_GRID_POINTS = (MAX_EXPONENT - MIN_EXPONENT) * PER_DECADE + 1
COARSE_STEP = 2 * PER_DECADE  # distance, in grid points, between the lambdas that are tried first

Backend = Literal["sklearn", "torch"]
Fit = tuple[Tensor, Tensor, int, bool]  # weights, biases, iterations, whether the tolerance was reached


@dataclass(frozen=True)
class SolverSettings:
    """Backend and stopping rule of a fit."""

    backend: Backend = "sklearn"  # "sklearn" on the CPU, or "torch" on the device of the features
    max_iterations: int = 1000  # largest number of L-BFGS iterations
    # A fit stops when no entry of the gradient of the mean loss exceeds this value; the default is scikit-learn's.
    tolerance: float = 1e-4


DEFAULT_SOLVER = SolverSettings()


@dataclass(frozen=True)
class SearchResult:
    """The result of a search for lambda."""

    best: int  # position of the best lambda on the grid, from 0
    scores: dict[int, float] = field(default_factory=dict)  # validation score of each tried position

    @property
    def strength(self) -> float:
        """Factor lambda of the L2 penalty at the best position."""
        return strength_at(self.best)


def strength_at(position: int) -> float:
    """Return lambda at a position on the grid, from 0 to 96."""
    if not 0 <= position < N_GRID_POINTS:
        raise ValueError(f"expected a position in [0, {N_GRID_POINTS}), got {position}")
    return 10.0 ** (MIN_EXPONENT + position / PER_DECADE)


def search_strength(score: Callable[[float], float]) -> SearchResult:
    """Find the lambda with the highest validation score in at most 15 evaluations.

    If scores are equal, the larger lambda is selected, since it gives a simpler model. NaN counts as the lowest score.
    """
    scores: dict[int, float] = {}

    def try_positions(positions: list[int]) -> int:
        """Score the positions that have not been tried yet; return the best position so far."""
        for position in positions:
            if 0 <= position < N_GRID_POINTS and position not in scores:
                value = float(score(strength_at(position)))
                scores[position] = value if value == value else float("-inf")
        return max(scores, key=lambda position: (scores[position], position))

    best = try_positions(list(range(0, N_GRID_POINTS, COARSE_STEP)))
    step = COARSE_STEP // 2
    while step:
        best = try_positions([best - step, best + step])
        step //= 2
    return SearchResult(best, scores)


def fit_logistic(
    features: Tensor, labels: Tensor, n_classes: int, strength: float, solver: SolverSettings = DEFAULT_SOLVER
) -> LinearClassifier:
    """Fit a linear classifier to (N, D) features by logistic regression; `strength` is lambda.

    `labels` are (N,) in [0, K), where classes may be missing; or (N, K): 1, 0 or -1 (the image is ignored for the
    class), to which one regression per class is fitted.
    """
    require_finite(features, "training images")
    if labels.ndim == 2:
        for number, column in enumerate(labels.T):
            require_two_classes(column[column >= 0], f"the images labelled for class {number}")
        if solver.backend == "torch":
            return LinearClassifier(*fit_independent(features, labels, strength, solver))
        fits = [_fit_by_sklearn(features[column >= 0], column[column >= 0], strength, solver) for column in labels.T]
        weights, biases, iterations, converged = zip(*fits, strict=True)
        return LinearClassifier(torch.cat(weights), torch.cat(biases), max(iterations), all(converged))
    require_two_classes(labels)
    class_numbers, compact_labels = labels.unique(return_inverse=True)
    if solver.backend == "torch":
        fit = fit_softmax(features, compact_labels, strength, solver)
    else:
        fit = _split_binary(_fit_by_sklearn(features, compact_labels, strength, solver))
    weight, bias, iterations, converged = fit
    all_weights = weight.new_zeros(n_classes, features.shape[1])
    all_biases = bias.new_full((n_classes,), -torch.inf)
    all_weights[class_numbers.to(weight.device)], all_biases[class_numbers.to(bias.device)] = weight, bias
    return LinearClassifier(all_weights, all_biases, iterations, converged)


def _fit_by_sklearn(features: Tensor, labels: Tensor, strength: float, solver: SolverSettings) -> Fit:
    model = LogisticRegression(C=1 / strength, max_iter=solver.max_iterations, tol=solver.tolerance)
    with warnings.catch_warnings():
        # For separable classes with a small penalty, the paper's maximum number of iterations is often not enough.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(to_double(features).cpu().numpy(), labels.cpu().numpy())
    iterations = int(np.max(model.n_iter_))
    weight, bias = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
    return weight, bias, iterations, iterations < solver.max_iterations


def fit_softmax(features: Tensor, labels: Tensor, strength: float, solver: SolverSettings) -> Fit:
    """Fit a softmax over the classes with torch, or a single logistic function if there are two classes.

    `labels` are (N,) and include every class in [0, K), or (N, K) class probabilities; on any device. The (K, D)
    weights and (K,) biases are float64.
    """
    # Read before the labels are moved to the device, to avoid a synchronisation.
    n_classes = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1
    features = to_double(features)
    labels = labels.to(features.device)
    if labels.ndim == 2 or n_classes > 2:
        return _minimise(features, n_classes, strength, lambda z: F.cross_entropy(z, labels), solver)
    targets = labels[:, None].to(features)
    fit = _minimise(features, 1, strength, lambda z: F.binary_cross_entropy_with_logits(z, targets), solver)
    return _split_binary(fit)


def fit_independent(features: Tensor, labels: Tensor, strength: float, solver: SolverSettings) -> Fit:
    """Fit one logistic function per class with torch, all at once, to (N, K) labels: 1, 0 or -1 (ignored)."""
    features = to_double(features)
    labels = labels.to(features.device)
    targets, is_labelled = (labels > 0).to(features), (labels >= 0).to(features)

    def loss(logits: Tensor) -> Tensor:
        return (F.binary_cross_entropy_with_logits(logits, targets, reduction="none") * is_labelled).sum() / len(labels)

    return _minimise(features, labels.shape[1], strength, loss, solver)


def _split_binary(fit: Fit) -> Fit:
    """Convert the single weight vector of a two-class fit to one vector per class; return other fits unchanged."""
    weight, bias, iterations, converged = fit
    if len(bias) == 1:
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    return weight, bias, iterations, converged


def _minimise(
    inputs: Tensor, outputs: int, strength: float, loss: Callable[[Tensor], Tensor], solver: SolverSettings
) -> Fit:
    weight = inputs.new_zeros(outputs, inputs.shape[1], requires_grad=True)
    bias = inputs.new_zeros(outputs, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=solver.max_iterations,
        tolerance_grad=solver.tolerance,
        tolerance_change=_MIN_CHANGE,
        history_size=HISTORY_SIZE,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        total = loss(inputs @ weight.T + bias) + strength / (2 * len(inputs)) * weight.square().sum()
        total.backward()
        return total.detach()

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[arg-type]
        closure()  # computes the gradient at the final point
    max_gradient = max(float(p.grad.abs().max()) for p in (weight, bias))  # type: ignore[union-attr]
    iterations = int(optimizer.state[weight]["n_iter"])
    return weight.detach(), bias.detach(), iterations, max_gradient <= solver.tolerance


@dataclass(frozen=True)
class SelectedClassifier:
    """A classifier that was fitted with the best lambda."""

    classifier: LinearClassifier
    search: SearchResult
    fits: int  # number of fits, including those of the search


def fit_selected(
    train: tuple[Tensor, Tensor],
    val: tuple[Tensor, Tensor],
    n_classes: int,
    metric: MetricName = "accuracy",
    solver: SolverSettings = DEFAULT_SOLVER,
    search: Callable[[Callable[[float], float]], SearchResult] = search_strength,
    both: tuple[Tensor, Tensor] | None = None,
) -> SelectedClassifier:
    """Select lambda on the validation images by `metric`, then fit to training and validation images together.

    `train` and `val` are (N, D) features and labels as in `fit_logistic`. If both are already in one tensor, training
    images first, giving them as `both` saves a copy.
    """
    if not len(val[0]):
        raise UserError("there are no validation images to select lambda with: give --val-fraction 0.1.")
    require_same_width(train[0], val[0])
    require_finite(val[0], "validation images")

    def score(strength: float) -> float:
        return validation_score(fit_logistic(*train, n_classes, strength, solver), *val, metric)

    result = search(score)
    if both is None:
        both = torch.cat([train[0], val[0]]), torch.cat([train[1], val[1]])
    classifier = fit_logistic(*both, n_classes, result.strength, solver)
    return SelectedClassifier(classifier, result, len(result.scores) + 1)


def fit_by_folds(
    train: tuple[Tensor, Tensor],
    n_classes: int,
    metric: MetricName = "accuracy",
    solver: SolverSettings = DEFAULT_SOLVER,
) -> SelectedClassifier:
    """Select lambda by cross-validation within the training images, then fit to all training images."""
    folds = draw_folds(train[1])

    def score(strength: float) -> float:
        scores = []
        for rows, held_out in folds:
            classifier = fit_logistic(*take_rows(train, rows), n_classes, strength, solver)
            scores.append(validation_score(classifier, *take_rows(train, held_out), metric))
        return float(np.mean(scores))

    result = search_strength(score)
    classifier = fit_logistic(*train, n_classes, result.strength, solver)
    return SelectedClassifier(classifier, result, len(folds) * len(result.scores) + 1)
