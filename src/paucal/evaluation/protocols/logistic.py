"""Logistic regression on frozen features with an L2 penalty (EsViT, section 4.1 and appendix; after CLIP).

What is minimised is sum of cross-entropies + lambda / 2 * |W|^2, the bias free, by L-BFGS with at most 1000 iterations.
scikit-learn does it on the CPU (its C is 1 / lambda), `logistic_torch.py` on a GPU; with two classes both fit one
vector of weights, as scikit-learn does, since the penalty of two would be another one.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from paucal.evaluation.protocols.classifier import (
    LinearClassifier,
    require_classes,
    require_finite,
    require_same_width,
    validation_score,
)
from paucal.evaluation.protocols.double import in_double
from paucal.evaluation.protocols.lambda_search import Searched, search_strength
from paucal.evaluation.protocols.logistic_torch import fit_independent, fit_softmax
from paucal.metrics.named import MetricName
from paucal.types import UserError

MAX_ITERATIONS = 1000
TOLERANCE = 1e-4  # on the largest entry of the gradient of the mean loss, scikit-learn's own
Backend = Literal["sklearn", "torch"]
Fit = tuple[Tensor, Tensor, int, bool]


@dataclass(frozen=True)
class Solver:
    """How a fit is computed.

    Attributes:
        backend: "sklearn" on the CPU, "torch" where the features are.
        max_iterations: of L-BFGS.
        tolerance: on the largest entry of the gradient of the mean loss.
    """

    backend: Backend = "sklearn"
    max_iterations: int = MAX_ITERATIONS
    tolerance: float = TOLERANCE


DEFAULT = Solver()


def fit_logistic(
    features: Tensor, labels: Tensor, n_classes: int, strength: float, solver: Solver = DEFAULT
) -> LinearClassifier:
    """Fit a classifier.

    Args:
        features: (N, D).
        labels: (N,) in [0, K), of which some classes may be missing; or (N, K) of 1, 0 and -1 (image ignored for that
            class), then one regression is fitted per class.
        n_classes: K.
        strength: lambda.
        solver: backend and when to stop.

    Raises:
        UserError: features that are no finite numbers, or fewer than two classes.
    """
    require_finite(features, "training images")
    if labels.ndim == 2:
        return _fit_many(features, labels, strength, solver)
    require_classes(labels)
    present, compact = labels.unique(return_inverse=True)
    fit = _softmax_by_sklearn if solver.backend == "sklearn" else fit_softmax
    weight, bias, iterations, converged = fit(features, compact, strength, solver.max_iterations, solver.tolerance)
    all_weights = weight.new_zeros(n_classes, features.shape[1])
    all_biases = bias.new_full((n_classes,), -torch.inf)
    all_weights[present.to(weight.device)], all_biases[present.to(bias.device)] = weight, bias
    return LinearClassifier(all_weights, all_biases, iterations, converged)


@dataclass(frozen=True)
class Selected:
    """A classifier whose lambda was chosen on validation images.

    Attributes:
        classifier: fitted to the training and validation images together.
        search: the validation score by lambda.
        fits: how many were made, the last one included.
    """

    classifier: LinearClassifier
    search: Searched
    fits: int


def fit_selected(
    train: tuple[Tensor, Tensor],
    val: tuple[Tensor, Tensor],
    n_classes: int,
    metric: MetricName = "accuracy",
    solver: Solver = DEFAULT,
    search: Callable[[Callable[[float], float]], Searched] = search_strength,
    both: tuple[Tensor, Tensor] | None = None,
) -> Selected:
    """Choose lambda on the validation images, then fit to both parts together; test images are never seen.

    Args:
        train: (N, D) features and labels as `fit_logistic` takes them.
        val: the same of the validation images.
        n_classes: K.
        metric: what is highest at the best lambda.
        solver: backend and when to stop.
        search: how lambda is found.
        both: the rows of `train` and then of `val`, where they lie in one tensor already, which saves a copy.

    Raises:
        UserError: no validation images, features of different models or no finite numbers, or a single class.
    """
    if not len(val[0]):
        raise UserError("there are no validation images to choose lambda with: give --val-fraction 0.1.")
    require_same_width(train[0], val[0])
    require_finite(val[0], "validation images")

    def score(strength: float) -> float:
        return validation_score(fit_logistic(*train, n_classes, strength, solver), *val, metric)

    found = search(score)
    if both is None:
        both = torch.cat([train[0], val[0]]), torch.cat([train[1], val[1]])
    return Selected(fit_logistic(*both, n_classes, found.strength, solver), found, len(found.scores) + 1)


def _softmax_by_sklearn(features: Tensor, labels: Tensor, strength: float, limit: int, tolerance: float) -> Fit:
    weight, bias, iterations, converged = _by_sklearn(features, labels, strength, limit, tolerance)
    if len(bias) == 1:  # two classes share one vector
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    return weight, bias, iterations, converged


def _by_sklearn(features: Tensor, labels: Tensor, strength: float, limit: int, tolerance: float) -> Fit:
    model = LogisticRegression(C=1 / strength, max_iter=limit, tol=tolerance)
    with warnings.catch_warnings():
        # Hardly penalised fits of separable classes have no minimum nearby; the limit is the paper's.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(in_double(features).cpu().numpy(), labels.cpu().numpy())
    iterations = int(np.max(model.n_iter_))
    return torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_), iterations, iterations < limit


def _fit_many(features: Tensor, labels: Tensor, strength: float, solver: Solver) -> LinearClassifier:
    for number, column in enumerate(labels.T):
        require_classes(column[column >= 0], f"the images labelled for class {number}")
    if solver.backend == "torch":
        return LinearClassifier(*fit_independent(features, labels, strength, solver.max_iterations, solver.tolerance))
    fits = [
        _by_sklearn(features[known], column[known], strength, solver.max_iterations, solver.tolerance)
        for column in labels.T
        for known in [column >= 0]
    ]
    weights, biases, iterations, converged = zip(*fits, strict=True)
    return LinearClassifier(torch.cat(weights), torch.cat(biases), max(iterations), all(converged))
