"""The loss of DIET (Ibrahim, Balestriero et al., arXiv:2302.10260): every image is its own class."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

SMOOTHING = 0.8


def diet_loss(logits: Sequence[Tensor], images: Tensor, smoothing: float = SMOOTHING) -> Tensor:
    """Return the mean cross-entropy of the views, in float32.

    Args:
        logits: Scores of all N images of the set, per view (B, N).
        images: (B,) position of each image of the batch in the set.
        smoothing: Share of the target that is spread evenly over all images (label smoothing).

    Example:
        >>> scores = torch.zeros(2, 8)
        >>> round(diet_loss([scores, scores], torch.tensor([0, 5])).item(), 4)  # ln 8
        2.0794
    """
    losses = [F.cross_entropy(view_logits.float(), images, label_smoothing=smoothing) for view_logits in logits]
    return torch.stack(losses).mean()
