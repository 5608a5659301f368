"""Logistic regression by torch's L-BFGS, for features on a GPU; the same minimum as scikit-learn's.

The loss is divided by the number of images, as scikit-learn does, so that one tolerance means the same in both.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from paucal.evaluation.protocols.double import in_double

HISTORY = 10  # pairs of differences that L-BFGS keeps, as in SciPy
_STALLED = 1e-16  # a smaller change of the mean loss is rounding


def fit_softmax(
    features: Tensor, labels: Tensor, strength: float, max_iterations: int, tolerance: float
) -> tuple[Tensor, Tensor, int, bool]:
    """Fit a softmax over the classes, or one logistic function for two.

    Args:
        features: (N, D).
        labels: (N,), every class in [0, K) present; on any device.
        strength: lambda.
        max_iterations: of L-BFGS.
        tolerance: on the largest entry of the gradient of the mean loss.

    Returns:
        (K, D) weights and (K,) biases in float64, the number of iterations, and whether the tolerance was reached.
    """
    n_classes = int(labels.max()) + 1
    features = in_double(features)
    labels = labels.to(features.device)
    if n_classes > 2:
        return _minimise(features, n_classes, strength, lambda z: F.cross_entropy(z, labels), max_iterations, tolerance)
    targets = labels[:, None].to(features)
    weight, bias, iterations, converged = _minimise(
        features, 1, strength, lambda z: F.binary_cross_entropy_with_logits(z, targets), max_iterations, tolerance
    )
    return torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2, iterations, converged


def fit_independent(
    features: Tensor, labels: Tensor, strength: float, max_iterations: int, tolerance: float
) -> tuple[Tensor, Tensor, int, bool]:
    """Fit one logistic function per class, all at once.

    Args:
        features: (N, D).
        labels: (N, K) of 1, 0 and -1; -1 leaves the image out for that class.
        strength: lambda.
        max_iterations: of L-BFGS.
        tolerance: on the largest entry of the gradient of the mean loss.

    Returns:
        As `fit_softmax`.
    """
    features = in_double(features)
    labels = labels.to(features.device)
    targets, known = (labels > 0).to(features), (labels >= 0).to(features)

    def loss(logits: Tensor) -> Tensor:
        return (F.binary_cross_entropy_with_logits(logits, targets, reduction="none") * known).sum() / len(labels)

    return _minimise(features, labels.shape[1], strength, loss, max_iterations, tolerance)


def _minimise(
    inputs: Tensor,
    outputs: int,
    strength: float,
    loss: Callable[[Tensor], Tensor],
    max_iterations: int,
    tolerance: float,
) -> tuple[Tensor, Tensor, int, bool]:
    weight = inputs.new_zeros(outputs, inputs.shape[1], requires_grad=True)
    bias = inputs.new_zeros(outputs, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=max_iterations,
        tolerance_grad=tolerance,
        tolerance_change=_STALLED,
        history_size=HISTORY,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        total = loss(inputs @ weight.T + bias) + strength / (2 * len(inputs)) * weight.square().sum()
        total.backward()
        return total.detach()

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[arg-type]
        closure()  # the gradient at the point that was reached
    steepest = max(float(p.grad.abs().max()) for p in (weight, bias))  # type: ignore[union-attr]
    iterations = int(optimizer.state[weight]["n_iter"])
    return weight.detach(), bias.detach(), iterations, steepest <= tolerance
