"""The loss of LeJEPA (Balestriero and LeCun 2025, arXiv:2511.08544).

The loss pulls the embeddings of an image's views towards their mean, and makes the embeddings of a batch normally
distributed. There is no teacher, no centring and no stop-gradient. A regularisation term, SIGReg, prevents collapse:
when the embeddings of a batch are projected on random directions, the projections must look like a sample of the
standard normal distribution, which is not the case if embeddings are collapsed, stretched or one-dimensional.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paucal.distributed import all_reduce_mean, world_size

# As in the authors' package and minimal example, there are 17 integration points from 0 to 3, and none below 0 since
# the integrand is an even function. The paper's Algorithm 1 has 17 points from -5 to 5, which corresponds to a limit
# of 5 with 9 points here.
INTEGRAL_LIMIT, KNOTS = 3.0, 17  # upper limit of the integral; number of integration points from 0 to the limit
WEIGHT = 0.05  # lambda, the weight of SIGReg


@dataclass(frozen=True)
class LeJepaLoss:
    """The prediction loss, SIGReg and their weighted sum, scalars.

    Attributes:
        prediction: Mean squared distance of the views' embeddings from the image's mean embedding (`prediction_loss`).
        sigreg: SIGReg statistic, averaged over views.
        total: weight * sigreg + (1 - weight) * prediction.
    """

    prediction: Tensor
    sigreg: Tensor
    total: Tensor


def lejepa_loss(
    embeddings: Sequence[Tensor],
    directions: Tensor,
    *,
    global_views: int | None = None,
    weight: float = WEIGHT,
    knots: int = KNOTS,
    limit: float = INTEGRAL_LIMIT,
) -> LeJepaLoss:
    """Return the loss of LeJEPA.

    The loss is computed in float32, also under autocast. With several processes, SIGReg is computed on the joint batch.

    Args:
        embeddings: One (N, D) tensor per view, with the projected embeddings of the same N images.
        directions: (D, M) matrix of M directions of length 1, the same on every process; see `unit_directions`.
        global_views: Number of views at the beginning of `embeddings` whose mean is the centre, as in the paper's
            multi-crop; None for the mean of all views, as in the authors' minimal example.
        weight: Lambda, the weight of SIGReg; the weight of the prediction loss is 1 - lambda.
        knots: Number of points of the trapezoidal rule from 0 to `limit`, including both ends.
        limit: Upper limit of the integral, which is taken from -limit to limit.

    Raises:
        ValueError: There are fewer than two views, or the weight is not in [0, 1].

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> views = [torch.randn(64, 16, generator=generator) for _ in range(2)]
        >>> loss = lejepa_loss(views, unit_directions(16, 256, generator))
        >>> round(loss.prediction.item(), 1), bool(loss.total < loss.sigreg)
        (0.5, True)
    """
    check_views_and_weight(len(embeddings), weight)
    views = torch.stack([view.float() for view in embeddings])
    prediction = prediction_loss(views, global_views)
    statistic = torch.stack([sigreg(view, directions, knots, limit) for view in views]).mean()
    return LeJepaLoss(prediction, statistic, weight * statistic + (1 - weight) * prediction)


def check_views_and_weight(n_views: int, weight: float) -> None:
    """Raise a ValueError if there are fewer than two views or the weight of the regularisation is not in [0, 1]."""
    if n_views < 2:
        raise ValueError(f"the loss compares the views of an image and needs at least 2, got {n_views}")
    if not 0 <= weight <= 1:
        raise ValueError(f"weight must be from 0 to 1, got {weight}")


def prediction_loss(views: Tensor, global_views: int | None = None) -> Tensor:
    """Return the mean squared distance between the embeddings of an image's views and a mean embedding (the centre).

    `views` are (V, N, D) embeddings of V views of N images; the centre is the mean of the first `global_views`, or of
    all views. Gradients also flow through the centre.
    """
    centre = views[:global_views].mean(0)
    return (views - centre).square().mean()


def sigreg(embeddings: Tensor, directions: Tensor, knots: int = KNOTS, limit: float = INTEGRAL_LIMIT) -> Tensor:
    """Return the Epps-Pulley statistic, which is large if random projections of embeddings do not look normal.

    For the projections x on one direction, the statistic is N times the integral over t of
    w(t) |mean of exp(i t x) - exp(-t^2 / 2)|^2 with w(t) = exp(-t^2 / 2). The result is the mean over the directions.
    Since the integrand is an even function, the trapezoidal rule is applied on [0, limit] and the result is doubled.
    For a standard normal sample, the expected value does not depend on N. Time and memory are linear in N, D and M.
    `embeddings` are (N, D), `directions` M columns (D, M) of length 1; `knots` includes both ends.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        projections = embeddings.float() @ directions.float()
        step = limit / (knots - 1)
        integral = projections.new_zeros(())
        for knot in range(knots):
            t = knot * step
            normal = math.exp(-0.5 * t * t)  # w(t), which equals the characteristic function of the normal distribution
            real = _mean_over_processes((t * projections).cos())
            imaginary = _mean_over_processes((t * projections).sin())
            width = step if knot in (0, knots - 1) else 2 * step
            integral = integral + width * normal * ((real - normal).square() + imaginary.square()).mean()
        return len(embeddings) * world_size() * integral


def unit_directions(dim: int, count: int, generator: torch.Generator) -> Tensor:
    """Return a (dim, count) matrix of random directions of length 1, on the generator's device."""
    normal_draws = torch.randn(dim, count, generator=generator, device=generator.device)
    return normal_draws / torch.linalg.vector_norm(normal_draws, dim=0)


def _mean_over_processes(values: Tensor) -> Tensor:
    """Return the mean over the rows of all processes, with the gradient of this process's mean.

    The trainer averages gradients over the processes, which gives the gradient of the joint mean.
    """
    local_mean = values.mean(0)
    return local_mean + (all_reduce_mean(local_mean) - local_mean.detach())
