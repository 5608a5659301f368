"""The loss of LeJEPA (Balestriero and LeCun 2025, arXiv:2511.08544): views predict their centre, embeddings are normal.

There is no teacher, no centring and no stopped gradient. Collapse is prevented by SIGReg: along random directions the
embeddings of a batch must look like a sample of the standard normal distribution, unlike a collapsed, stretched or
one-dimensional batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paucal.distributed import all_reduce_mean, world_size

# The values of the authors' package and minimal example: 17 points from 0 to 3, counted twice since the integrand is
# an even function. Algorithm 1 of the paper has 17 points from -5 to 5: here a limit of 5 and 9 knots.
LIMIT, KNOTS = 3.0, 17
WEIGHT = 0.05


@dataclass(frozen=True)
class LeJepaLoss:
    """The two parts of the loss and their weighted sum, scalars.

    Attributes:
        prediction: Mean squared distance of the views' embeddings from their image's centre.
        sigreg: The statistic of SIGReg, averaged over views.
        total: `weight` times SIGReg plus 1 - `weight` times the prediction.
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
    limit: float = LIMIT,
) -> LeJepaLoss:
    """Return the loss of LeJEPA.

    Computed in float32, also inside autocast. On several processes the empirical characteristic functions are those of
    the joint batch.

    Args:
        embeddings: Projected embeddings of the same N images, per view (N, D).
        directions: (D, M) of unit length, the same on every process; see `unit_directions`.
        global_views: Number of first views whose mean is the centre that all views predict, as with the paper's
            multi-crop; None for all views, as in the authors' minimal example.
        weight: Lambda, the share of SIGReg.
        knots: Points of the trapezoid rule from 0 to the limit, both included.
        limit: Upper end of the integral, which is taken from -limit to limit.

    Raises:
        ValueError: there are fewer than two views, or the weight is not in [0, 1].

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> views = [torch.randn(64, 16, generator=generator) for _ in range(2)]
        >>> found = lejepa_loss(views, unit_directions(16, 256, generator))
        >>> round(found.prediction.item(), 1), bool(found.total < found.sigreg)
        (0.5, True)
    """
    if len(embeddings) < 2 or not 0 <= weight <= 1:
        raise ValueError(f"expected 2 views or more and a weight from 0 to 1, got {len(embeddings)} and {weight}")
    views = torch.stack([view.float() for view in embeddings])
    prediction = view_prediction(views, global_views)
    regular = torch.stack([sigreg(view, directions, knots, limit) for view in views]).mean()
    return LeJepaLoss(prediction, regular, weight * regular + (1 - weight) * prediction)


def view_prediction(views: Tensor, global_views: int | None = None) -> Tensor:
    """Return the mean squared distance of embeddings from their image's centre; gradients flow through both.

    Args:
        views: (V, N, D).
        global_views: Number of first views whose mean is the centre; None for all.

    Returns:
        A scalar, averaged over views, images and coordinates.

    Example:
        >>> view_prediction(torch.tensor([[[1.0, 2.0]], [[3.0, 2.0]]])).item()
        0.5
    """
    centre = views[:global_views].mean(0)
    return (views - centre).square().mean()


def sigreg(embeddings: Tensor, directions: Tensor, knots: int = KNOTS, limit: float = LIMIT) -> Tensor:
    """Return how far embeddings are from a standard normal sample along random directions (Epps and Pulley's test).

    N times the integral over t of w(t) |mean of exp(i t x) - exp(-t^2 / 2)|^2 with w(t) = exp(-t^2 / 2), averaged over
    the directions. The integrand is an even function, so the trapezoid rule runs over [0, limit] and counts twice. For
    a standard normal sample the expected value does not depend on N.

    Args:
        embeddings: (N, D), float32.
        directions: (D, M) of unit length.
        knots: Points of the trapezoid rule from 0 to the limit, both included.
        limit: Upper end of the integral, which is taken from -limit to limit.

    Returns:
        A scalar of at least 0; time and memory are linear in N, D and M.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        along = embeddings.float() @ directions.float()
        step = limit / (knots - 1)
        total = along.new_zeros(())
        for knot in range(knots):
            frequency = knot * step
            normal = math.exp(-0.5 * frequency * frequency)
            real_part, imaginary = _joint_mean((frequency * along).cos()), _joint_mean((frequency * along).sin())
            share = step if knot in (0, knots - 1) else 2 * step
            total = total + share * normal * ((real_part - normal).square() + imaginary.square()).mean()
        return len(embeddings) * world_size() * total


def unit_directions(dim: int, count: int, generator: torch.Generator) -> Tensor:
    """Return (dim, count) random directions of length 1, on the generator's device.

    Example:
        >>> directions = unit_directions(4, 3, torch.Generator().manual_seed(0))
        >>> directions.shape, directions.square().sum(0).round(decimals=4).tolist()
        (torch.Size([4, 3]), [1.0, 1.0, 1.0])
    """
    normal_draws = torch.randn(dim, count, generator=generator, device=generator.device)
    return normal_draws / torch.linalg.vector_norm(normal_draws, dim=0)


def _joint_mean(values: Tensor) -> Tensor:
    """Return the mean over rows of all processes, with the gradient of this process's own mean.

    The trainer averages gradients over processes, which turns them into the gradient of the joint mean.
    """
    own_mean = values.mean(0)
    return own_mean + (all_reduce_mean(own_mean) - own_mean.detach())
