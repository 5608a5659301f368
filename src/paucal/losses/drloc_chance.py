"""The chance level of the dense relative localization loss, which a head reaches without using the image."""

import torch
from torch import Tensor

from paucal.losses.drloc import PAPER, DrLocReading
from paucal.losses.drloc_targets import class_counts, pair_classes, pair_targets


def drloc_chance_level(height: int, width: int, reading: DrLocReading = PAPER) -> float:
    """Return the smallest expected loss over random pairs that a constant prediction can reach.

    If the loss of a run stays at this level, the features contain no information about positions. The best constant
    prediction is the median of the targets in the modes "l1" and "signed", and the distribution of the targets in the
    mode "ce". In the mode "reg", the best prediction gives only the first and the last class a probability above 0,
    because this maximises the variance by which the error is divided.

    Example:
        >>> round(drloc_chance_level(7, 7), 4), round(drloc_chance_level(7, 7, DrLocReading(mode="ce")), 4)
        (0.1924, 4.8583)
    """
    axis_loss = {"ce": _lowest_cross_entropy, "reg": _lowest_variance_loss}.get(reading.mode, _lowest_l1_loss)
    total = axis_loss(height, reading) + axis_loss(width, reading)
    is_mean = reading.mode in ("l1", "signed") and reading.coordinates == "mean"
    return (total / 2 if is_mean else total).item()


def _all_pairs(side: int) -> Tensor:
    """Return all pairs of cells of a grid with `side` rows and one column, (1, side^2, 2, 2).

    A single column is enough, since the rows and columns of a pair are drawn independently.
    """
    rows = torch.arange(side)
    cells = torch.cartesian_prod(rows, rows)
    return torch.stack((cells, torch.zeros_like(cells)), dim=-1)[None]


def _lowest_l1_loss(side: int, options: DrLocReading) -> Tensor:
    targets = pair_targets(_all_pairs(side), side, 1, target=options.target, scale=options.scale)
    offsets = targets[0, :, 0].double()
    return (offsets - offsets.median()).abs().mean()


def _classes_of_all_pairs(side: int, options: DrLocReading) -> Tensor:
    return pair_classes(_all_pairs(side), side, 1, classes=options.classes)[0, :, 0]


def _lowest_cross_entropy(side: int, options: DrLocReading) -> Tensor:
    counts = _classes_of_all_pairs(side, options).bincount().double()
    return torch.distributions.Categorical(counts / counts.sum()).entropy()


def _lowest_variance_loss(side: int, options: DrLocReading, eps: float = 1e-8) -> Tensor:
    classes = _classes_of_all_pairs(side, options).double()
    last = class_counts(side, side, options.classes)[0] - 1
    mean = torch.linspace(0, last, 10_001, dtype=torch.float64)
    error = (classes[:, None] - mean).square().mean(0)
    # A distribution on {0, ..., last} has a variance of at most mean * (last - mean). The loss decreases as the
    # variance grows up to error / factor, a bound that matters only if the factor is far above its usual 0.001.
    variance = torch.minimum(mean * (last - mean), error / max(options.log_variance_factor, 1e-12)) + eps
    return (error / variance + options.log_variance_factor * variance.log()).min()
