"""The loss of DIET (Ibrahim, Balestriero et al., arXiv:2302.10260), which classifies with one class per image."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

SMOOTHING = 0.8  # default label smoothing


def diet_loss(logits: Sequence[Tensor], images: Tensor, smoothing: float = SMOOTHING) -> Tensor:
    """Return the cross-entropy of the image classes, averaged over views and images, a scalar in float32.

    Args:
        logits: One (B, N) tensor per view, with a logit for each of the N images of the training set.
        images: (B,) int64 class of each image in the batch, which is the image's index in the training set.
        smoothing: Label smoothing, the fraction of the target probability that is spread evenly over all classes.

    Example:
        >>> logits = torch.zeros(2, 8)
        >>> round(diet_loss([logits, logits], torch.tensor([0, 5])).item(), 4)  # ln 8
        2.0794
    """
    losses = [F.cross_entropy(view_logits.float(), images, label_smoothing=smoothing) for view_logits in logits]
    return torch.stack(losses).mean()
