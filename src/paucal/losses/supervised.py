"""Cross-entropies for images that can have several labels, and for the labelled pixels of an image."""

import torch
import torch.nn.functional as F
from torch import Tensor

from paucal.losses.precision import at_least_float32


def multi_label_loss(
    logits: Tensor, targets: Tensor, label_smoothing: float = 0.0, pos_weight: Tensor | None = None
) -> Tensor:
    """Return the mean binary cross-entropy over all images and classes with a known target.

    Label smoothing multiplies targets by 1 - s and adds s / K, as timm's `BinaryCrossEntropy` does for single labels.
    (For several labels, timm moves each target towards 0.5. With s = 0.1, the target of every absent class would
    then be 0.05, even if there are many rare classes.)

    Args:
        logits: (B, K) logits.
        targets: (B, K) targets in [0, 1]: 1 if the image shows the class, 0 if not, and NaN if this is unknown.
        label_smoothing: Fraction s of the targets that is spread over the K classes.
        pos_weight: (K,) factors by which the loss of positive targets is multiplied, by class; None for 1.

    Returns:
        A scalar tensor; 0 if no target is known.

    Example:
        >>> multi_label_loss(torch.zeros(1, 3), torch.tensor([[1.0, 0.0, torch.nan]]))
        tensor(0.6931)
    """
    is_known = ~targets.isnan()
    smoothed = torch.where(is_known, targets, 0.0) * (1 - label_smoothing) + label_smoothing / logits.shape[1]
    losses = F.binary_cross_entropy_with_logits(logits, smoothed, pos_weight=pos_weight, reduction="none")
    return (losses * is_known).sum() / is_known.sum().clamp(min=1)


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
