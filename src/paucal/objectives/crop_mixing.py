"""Mixup between the student's crops of consecutive images in a batch, and the targets of the mixed crops.

EsViT's code has this option (timm's Mixup for each crop), which the paper does not mention. The cross-entropy is
linear in the target, so a crop mixed from two images is compared with the teacher's outputs for both images, weighted
by the mixing weights.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from paucal.losses import Targets


def mix_crops(crops: Sequence[Tensor], alpha: float) -> tuple[list[Tensor], Tensor]:
    """Mix each crop with the corresponding crop of the previous image in the batch.

    Args:
        crops: V tensors (B, C, H, W), one per crop of an image.
        alpha: Parameter of the Beta distribution from which the mixing weights are drawn, on the CPU.

    Returns:
        The mixed crops, and the (V,) weight of the original image in each mixed crop.
    """
    mix_weights = torch.distributions.Beta(alpha, alpha).sample((len(crops),))
    pairs = zip(crops, mix_weights.tolist(), strict=True)
    return [weight * crop + (1 - weight) * crop.roll(1, 0) for crop, weight in pairs], mix_weights


def mix_targets(teacher: Tensor, targets: Targets, mix_weights: Tensor) -> tuple[Tensor, Targets]:
    """Return the teacher's rows and the targets for mixed crops.

    Args:
        teacher: (B, S, D) teacher's rows, one per crop.
        targets: Targets of crops that are not mixed, with `rows` (B, V, J) and `weights` (V, J).
        mix_weights: (V,) weight of the original image in each mixed crop, from `mix_crops`.

    Returns:
        (B, 2 * S, D) teacher's rows of each image followed by the rows of the previous image, and targets that weight
        the rows of the two images by the mixing weights.
    """
    teacher_rows = torch.cat([teacher, teacher.roll(1, 0)], 1)
    rows = torch.cat([targets.rows, targets.rows + teacher.shape[1]], 2)
    weight = mix_weights.to(targets.weights.device, non_blocking=targets.weights.is_cuda)[:, None]
    return teacher_rows, Targets(rows, torch.cat([targets.weights * weight, targets.weights * (1 - weight)], 1))
