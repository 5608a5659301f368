"""Health metrics of self-distillation, for reports and for `evaluation.collapse`, which detects collapse.

All are scalars on the device, of one batch; metrics of the region task start with `region_` and are computed at the
middle cell of a crop:

- `teacher_entropy`, `student_entropy`: mean entropy in nats of the distributions over prototypes; ln K is uniform, 0
  is a single prototype.
- `batch_entropy`: entropy of the teacher's distribution averaged over the images; small if all images get the same
  prototypes.
- `agreement`: share of images for which teacher and student, each on its own crop, have the same likeliest prototype.
- `feature_spread`, `effective_rank`, `feature_norm`: of the teacher's features, see `losses.feature_health`.
- `centre_norm`: length of the centre.

For both tasks together: `teacher_temperature`, and `teacher_distance`, the length of the difference of the backbones'
weights over the length of the student's weights.
"""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from paucal.losses import Sharpness, effective_rank, entropy, feature_spread
from paucal.objectives.distilled_network import DistilledNetwork
from paucal.objectives.projection_head import ProjectionHead


@torch.no_grad()
def task_health(
    student: ProjectionHead, teacher: ProjectionHead, seen: Tensor, goal: Tensor, sharpness: Sharpness
) -> dict[str, Tensor]:
    """Return the health metrics of one task."""
    teacher_probabilities = teacher(goal).float().sub(sharpness.centre).div(sharpness.teacher_temperature).softmax(1)
    guessed = student(seen).float().div(sharpness.student_temperature).softmax(1)
    return {
        "teacher_entropy": entropy(teacher_probabilities).mean(),
        "student_entropy": entropy(guessed).mean(),
        "batch_entropy": entropy(teacher_probabilities.mean(0)),
        "agreement": (teacher_probabilities.argmax(1) == guessed.argmax(1)).float().mean(),
        "feature_spread": feature_spread(goal),
        "effective_rank": effective_rank(goal),
        "feature_norm": torch.linalg.vector_norm(goal.float(), dim=1).mean(),
        "centre_norm": torch.linalg.vector_norm(sharpness.centre),
    }


@torch.no_grad()
def teacher_distance(student: DistilledNetwork, teacher: DistilledNetwork) -> Tensor:
    """Return the length of the difference of the backbones' weights over the length of the student's weights."""
    pairs = list(zip(teacher.backbone.parameters(), student.backbone.parameters(), strict=True))
    squared_distance = torch.stack([(own - student_value).square().sum() for own, student_value in pairs]).sum()
    ratio = (squared_distance / torch.stack([value.square().sum() for _, value in pairs]).sum()).sqrt()
    return ratio.full_tensor() if isinstance(ratio, DTensor) else ratio  # a DTensor if the weights are sharded
