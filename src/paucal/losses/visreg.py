"""The loss of VISReg (arXiv:2606.02572): views must agree, and a batch of embeddings must look normally distributed.

This is the loss of LeJEPA with a different test of normality. The embeddings are projected on random directions. The
projections are standardised, sorted and compared with the quantiles of the standard normal distribution. In addition,
the mean of every channel must be near 0 and its standard deviation near 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paucal.distributed import all_reduce_mean, rank, world_size
from paucal.losses.lejepa import check_views_and_weight, prediction_loss

WEIGHT = 0.02  # lambda, the weight of the regularisation
MIN_DEVIATION = 1e-6  # smallest standard deviation by which projections are divided


@dataclass(frozen=True)
class VisRegLoss:
    """The prediction loss, the regularisation and their weighted sum, scalars.

    Attributes:
        prediction: Mean squared distance of the views' embeddings from the image's mean embedding.
        regularisation: Mean of `shape_loss` over the views.
        total: weight * regularisation + (1 - weight) * prediction.
    """

    prediction: Tensor
    regularisation: Tensor
    total: Tensor


def visreg_loss(embeddings: Sequence[Tensor], directions: Tensor, *, weight: float = WEIGHT) -> VisRegLoss:
    """Return the loss of VISReg.

    The loss is computed in float32, also under autocast. With several processes, the regularisation is computed on the
    joint batch.

    Args:
        embeddings: One (N, D) tensor per view, with the projected embeddings of the same N images.
        directions: (D, M) matrix of M directions of length 1, the same on every process; see `lejepa.unit_directions`.
        weight: Lambda, the weight of the regularisation; the weight of the prediction loss is 1 - lambda.

    Raises:
        ValueError: There are fewer than two views, or the weight is not in [0, 1].
    """
    check_views_and_weight(len(embeddings), weight)
    views = torch.stack([view.float() for view in embeddings])
    prediction = prediction_loss(views)
    regularisation = torch.stack([shape_loss(view, directions) for view in views]).mean()
    return VisRegLoss(prediction, regularisation, weight * regularisation + (1 - weight) * prediction)


def shape_loss(embeddings: Tensor, directions: Tensor) -> Tensor:
    """Return a scalar that measures how far (N, D) embeddings are from a standard normal sample.

    The scalar is the sum of three terms:

    - The squared mean of each channel, averaged over channels.
    - The squared difference between the standard deviation of each channel and 1, averaged over channels.
    - The squared difference between the sorted, standardised projections on each direction and the quantiles
      (i + 1/2) / N of the standard normal distribution, averaged over directions and i.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        rows = _gather_rows(embeddings.float())
        mean, deviation = rows.mean(0), rows.std(0, correction=0)
        projections = rows @ directions.float()
        projected_deviation = projections.std(0, correction=0).clamp(min=MIN_DEVIATION)
        ordered = ((projections - projections.mean(0)) / projected_deviation).sort(0).values
        probabilities = (torch.arange(len(rows), device=rows.device) + 0.5) / len(rows)
        quantiles = torch.special.ndtri(probabilities.double()).to(ordered)[:, None]
        return mean.square().mean() + (deviation - 1).square().mean() + (ordered - quantiles).square().mean()


def _gather_rows(values: Tensor) -> Tensor:
    """Concatenate the rows of all processes, which must all have the same number of rows.

    Only this process's rows receive a gradient, which is multiplied by the number of processes. The trainer averages
    gradients over the processes, which gives the gradient on the joint batch.
    """
    n_processes = world_size()
    if n_processes == 1:
        return values
    slots = values.new_zeros(n_processes, *values.shape)
    slots[rank()] = n_processes * values.detach()
    rows_by_process = list(all_reduce_mean(slots))
    rows_by_process[rank()] = rows_by_process[rank()] + n_processes * (values - values.detach())
    return torch.cat(rows_by_process)
