"""Binary cross-entropy of images that have several labels: one sigmoid per class."""

import torch
import torch.nn.functional as F
from torch import Tensor


def multi_label_loss(
    logits: Tensor, targets: Tensor, label_smoothing: float = 0.0, pos_weight: Tensor | None = None
) -> Tensor:
    """Return the mean binary cross-entropy over the classes and images whose target is known.

    Smoothing is that of timm's `BinaryCrossEntropy` for one label, applied to several: the share removed from the
    labels is spread over all classes, as in cross-entropy. (timm's form for several labels moves each target towards a
    half, which would give every one of many rare classes a probability of 5 %.)

    Args:
        logits: (B, K).
        targets: (B, K) in [0, 1]; 1 for a class that the image shows, NaN where unknown.
        label_smoothing: Share of the labels that is spread over the K classes.
        pos_weight: (K,) factors on the loss of the images of each class; None for 1.

    Returns:
        A scalar; 0 without known targets.

    Example:
        >>> multi_label_loss(torch.zeros(1, 3), torch.tensor([[1.0, 0.0, torch.nan]]))
        tensor(0.6931)
    """
    is_known = ~targets.isnan()
    smoothed = torch.where(is_known, targets, 0.0) * (1 - label_smoothing) + label_smoothing / logits.shape[1]
    losses = F.binary_cross_entropy_with_logits(logits, smoothed, pos_weight=pos_weight, reduction="none")
    return (losses * is_known).sum() / is_known.sum().clamp(min=1)
