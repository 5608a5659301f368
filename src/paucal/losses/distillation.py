"""Distillation: a network learns a teacher's predictions.

Learning only the class is hard distillation (DeiT, Touvron et al., arXiv 2012.12877); learning the probabilities of all
classes is soft distillation (Hinton et al., arXiv 1503.02531), here at temperature 1.
"""

import torch.nn.functional as F
from torch import Tensor

from paucal.losses.precision import precise


def hard_distillation_loss(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return the cross-entropy on the teacher's likeliest class, a scalar in float32.

    Args:
        logits: (B, K) logits of the network in training.
        teacher: (B, K) logits of the teacher for the same images and the same classes; they get no gradient.

    Example:
        >>> import torch
        >>> hard_distillation_loss(torch.zeros(2, 4), torch.eye(4)[:2]).item() == torch.tensor(4.0).log().item()
        True
    """
    return F.cross_entropy(precise(logits), teacher.argmax(1))


def soft_distillation_loss(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return the cross-entropy on the teacher's probabilities, a scalar in float32.

    Args:
        logits: (B, K) logits of the network in training.
        teacher: (B, K) logits of the teacher for the same images and the same classes; they get no gradient.

    Example:
        >>> import torch
        >>> round(soft_distillation_loss(torch.zeros(2, 4), torch.eye(4)[:2]).item(), 4)  # of equal logits: log 4
        1.3863
    """
    return F.cross_entropy(precise(logits), precise(teacher).softmax(1))
