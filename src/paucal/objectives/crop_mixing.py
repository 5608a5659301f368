"""Mixup between the student's crops of neighbouring images, and the targets of the mixed crops.

EsViT's code has it as an option that the paper does not mention (timm's Mixup per crop). The cross-entropy is linear in
its target, so a crop mixed from two images is compared with the teacher's rows of both, weighted by their shares.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from paucal.losses import Targets


def mixed_crops(crops: Sequence[Tensor], alpha: float) -> tuple[list[Tensor], Tensor]:
    """Mix each crop with the same crop of the image before it.

    Args:
        crops: Crops, each (B, C, H, W).
        alpha: Parameter of the Beta distribution from which each crop's share is drawn, on the CPU.

    Returns:
        The mixed crops, and the share of its own image that each keeps, (V,).
    """
    shares = torch.distributions.Beta(alpha, alpha).sample((len(crops),))
    pairs = zip(crops, shares.tolist(), strict=True)
    return [share * crop + (1 - share) * crop.roll(1, 0) for crop, share in pairs], shares


def mixed_targets(teacher: Tensor, targets: Targets, shares: Tensor) -> tuple[Tensor, Targets]:
    """Return the teacher's rows followed by the previous image's, and targets that weight both by their shares.

    Args:
        teacher: (B, S, D).
        targets: Rows (B, V, J) and weights (V, J) of unmixed crops.
        shares: (V,).
    """
    rows_of_both = torch.cat([teacher, teacher.roll(1, 0)], 1)
    rows = torch.cat([targets.rows, targets.rows + teacher.shape[1]], 2)
    own_share = shares.to(targets.weights.device, non_blocking=targets.weights.is_cuda)[:, None]
    return rows_of_both, Targets(rows, torch.cat([targets.weights * own_share, targets.weights * (1 - own_share)], 1))
