"""Mixup between the student's crops of consecutive images in a batch, and the targets of the mixed crops.

EsViT's code has this option (timm's Mixup for each crop), which the paper does not mention. The cross-entropy is
linear in its target, so a crop mixed from two images is compared with the teacher's outputs for both, weighted by their
shares.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from paucal.losses import Targets


def mix_crops(crops: Sequence[Tensor], alpha: float) -> tuple[list[Tensor], Tensor]:
    """Mix each crop with the same crop of the previous image in the batch.

    Args:
        crops: V tensors (B, C, H, W), one per crop.
        alpha: Parameter of the Beta distribution of the shares, which are drawn on the CPU.

    Returns:
        The mixed crops, and (V,) shares of the original image in them, one per crop.
    """
    shares = torch.distributions.Beta(alpha, alpha).sample((len(crops),))
    pairs = zip(crops, shares.tolist(), strict=True)
    return [share * crop + (1 - share) * crop.roll(1, 0) for crop, share in pairs], shares


def mixed_targets(teacher: Tensor, targets: Targets, shares: Tensor) -> tuple[Tensor, Targets]:
    """Return the teacher's rows and the targets for mixed crops.

    Args:
        teacher: (B, S, D) the teacher's rows.
        targets: Targets of crops that are not mixed, with `rows` (B, V, J) and `weights` (V, J).
        shares: (V,) shares of the original image, from `mix_crops`.

    Returns:
        (B, 2 * S, D) the teacher's rows of each image followed by those of the previous image, and targets that weight
        both by their shares.
    """
    teacher_rows = torch.cat([teacher, teacher.roll(1, 0)], 1)
    rows = torch.cat([targets.rows, targets.rows + teacher.shape[1]], 2)
    share = shares.to(targets.weights.device, non_blocking=targets.weights.is_cuda)[:, None]
    return teacher_rows, Targets(rows, torch.cat([targets.weights * share, targets.weights * (1 - share)], 1))
