"""The loss for semantic segmentation, which is the cross-entropy over the labelled pixels."""

from torch import Tensor
from torch.nn import functional as F

from paucal.losses.precision import at_least_float32


def pixel_loss(logits: Tensor, mask: Tensor, ignored: int = 255) -> Tensor:
    """Return the mean cross-entropy of the labelled pixels of a batch, in nats.

    Args:
        logits: (B, K, H, W) logits.
        mask: (B, H, W) class number of each pixel, in any integer dtype.
        ignored: Mask value of unlabelled pixels, which are left out of the mean.

    Returns:
        A scalar tensor. If no pixel is labelled, the loss and its gradient are 0 (torch's mean would be NaN).

    Raises:
        ValueError: Logits and mask differ in batch size, height or width.

    Example:
        >>> import torch
        >>> mask = torch.tensor([[[0, 1, 255]]])
        >>> round(pixel_loss(torch.zeros(1, 2, 1, 3), mask).item(), 4)
        0.6931
    """
    if logits.shape[0] != mask.shape[0] or logits.shape[2:] != mask.shape[1:]:
        raise ValueError(
            f"logits and mask must have the same batch size, height and width, got {tuple(logits.shape)} and "
            f"{tuple(mask.shape)}"
        )
    mask = mask.long()
    total = F.cross_entropy(at_least_float32(logits), mask, ignore_index=ignored, reduction="sum")
    return total / (mask != ignored).sum().clamp(min=1)
