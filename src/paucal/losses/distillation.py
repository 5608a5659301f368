"""Losses for distillation, in which a network is trained on a teacher's predictions.

In hard distillation, the target is the teacher's predicted class (DeiT, Touvron et al., arXiv:2012.12877). In soft
distillation, the targets are the teacher's probabilities of all classes (Hinton et al., arXiv:1503.02531), here at
temperature 1.
"""

import torch.nn.functional as F
from torch import Tensor

from paucal.losses.precision import at_least_float32


def hard_distillation_loss(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return the cross-entropy with the teacher's predicted class as the target, a scalar in float32.

    Args:
        logits: (B, K) logits of the network in training.
        teacher: (B, K) logits of the teacher for the same images and classes.

    Example:
        >>> import torch
        >>> hard_distillation_loss(torch.zeros(2, 4), torch.eye(4)[:2]).item() == torch.tensor(4.0).log().item()
        True
    """
    return F.cross_entropy(at_least_float32(logits), teacher.argmax(1))


def soft_distillation_loss(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return the cross-entropy with the teacher's probabilities as the target, for (B, K) logits of both.

    Example:
        >>> import torch
        >>> round(soft_distillation_loss(torch.zeros(2, 4), torch.eye(4)[:2]).item(), 4)  # ln 4
        1.3863
    """
    return F.cross_entropy(at_least_float32(logits), at_least_float32(teacher).softmax(1))
