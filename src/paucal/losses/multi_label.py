"""Binary cross-entropy with one sigmoid per class, for images that can have several labels."""

import torch
import torch.nn.functional as F
from torch import Tensor


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
