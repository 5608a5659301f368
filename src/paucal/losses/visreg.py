"""The loss of VISReg (arXiv:2606.02572): views must agree, and a batch of embeddings must look like a normal sample.

It follows LeJEPA with another test of normality: along random directions the standardised embeddings, in their order,
are compared with the quantiles of the normal distribution; mean and deviation of every coordinate are constrained too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paucal.distributed import all_reduce_mean, rank, world_size
from paucal.losses.lejepa import view_prediction

WEIGHT = 0.02
SMALLEST_DEVIATION = 1e-6


@dataclass(frozen=True)
class VisRegLoss:
    """The parts of the loss and their weighted sum, scalars.

    Attributes:
        prediction: Mean squared distance of the views' embeddings from their image's mean.
        regularisation: Mean of `shape_loss` over the views.
        total: `weight` times the regularisation plus 1 - `weight` times the prediction.
    """

    prediction: Tensor
    regularisation: Tensor
    total: Tensor


def visreg_loss(embeddings: Sequence[Tensor], directions: Tensor, *, weight: float = WEIGHT) -> VisRegLoss:
    """Return the loss of VISReg, computed in float32, on several processes over the joint batch.

    Args:
        embeddings: Projected embeddings of the same N images, per view (N, D).
        directions: (D, M) of unit length, the same on every process; see `lejepa.unit_directions`.
        weight: Lambda, the share of the regularisation.

    Raises:
        ValueError: there are fewer than two views, or the weight is not a share between 0 and 1.
    """
    if len(embeddings) < 2 or not 0 <= weight <= 1:
        raise ValueError(f"expected 2 views or more and a weight from 0 to 1, got {len(embeddings)} and {weight}")
    views = torch.stack([view.float() for view in embeddings])
    prediction = view_prediction(views)
    shape = torch.stack([shape_loss(view, directions) for view in views]).mean()
    return VisRegLoss(prediction, shape, weight * shape + (1 - weight) * prediction)


def shape_loss(embeddings: Tensor, directions: Tensor) -> Tensor:
    """Return how far (N, D) embeddings are from a standard normal sample: in mean, in deviation and in shape.

    The mean over coordinates of the squared mean and of the squared distance of the deviation from 1, and the mean over
    directions and ranks of the squared distance between the sorted, standardised projections and the quantiles
    (i + 1/2) / N of the standard normal distribution.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        rows = _joint_rows(embeddings.float())
        mean, deviation = rows.mean(0), rows.std(0, correction=0)
        along = rows @ directions.float()
        spread = along.std(0, correction=0).clamp(min=SMALLEST_DEVIATION)
        ordered = ((along - along.mean(0)) / spread).sort(0).values
        ranks = (torch.arange(len(rows), device=rows.device) + 0.5) / len(rows)
        quantiles = torch.special.ndtri(ranks.double()).to(ordered)[:, None]
        return mean.square().mean() + (deviation - 1).square().mean() + (ordered - quantiles).square().mean()


def _joint_rows(values: Tensor) -> Tensor:
    """Concatenate the rows of all processes. Every process must have the same number of rows.

    Gradients flow only to this process's rows and are multiplied by the number of processes: the trainer averages
    gradients over processes, which turns them into the gradient on the joint batch.
    """
    world = world_size()
    if world == 1:
        return values
    slots = values.new_zeros(world, *values.shape)
    slots[rank()] = world * values.detach()
    parts = list(all_reduce_mean(slots))
    parts[rank()] = parts[rank()] + world * (values - values.detach())
    return torch.cat(parts)
