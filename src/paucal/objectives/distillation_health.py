"""Health metrics of self-distillation, for reports and for `evaluation.collapse`, which detects collapse.

All metrics are scalar tensors on the device, computed from one batch. The metrics of the region task have names that
start with `region_`, and are computed for the cell in the middle of a crop's feature map.

- `teacher_entropy`, `student_entropy`: mean entropy of the distributions over prototypes in nats, which is ln K if all
  K prototypes have the same probability and 0 if one prototype has probability 1.
- `batch_entropy`: entropy of the teacher's distribution averaged over the images of the batch, which is small if all
  images have the same most likely prototypes.
- `agreement`: fraction of images for which teacher and student, given different crops, have the same most likely
  prototype.
- `feature_spread`, `effective_rank`: spread of the teacher's features and number of directions in which they vary, see
  `losses.feature_health`.
- `feature_norm`: mean L2 norm of the teacher's features.
- `centre_norm`: L2 norm of the centre.

Two metrics do not belong to a single task: `teacher_temperature`, and `teacher_distance`, which is the L2 norm of the
difference between the weights of the two backbones, divided by the L2 norm of the student's weights.
"""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from paucal.losses import Sharpness, effective_rank, entropy, feature_spread
from paucal.objectives.distilled_network import StudentOrTeacher
from paucal.objectives.projection_head import ProjectionHead


@torch.no_grad()
def task_health(
    student: ProjectionHead,
    teacher: ProjectionHead,
    student_features: Tensor,
    teacher_features: Tensor,
    sharpness: Sharpness,
) -> dict[str, Tensor]:
    """Return the health metrics of one task, given the task's heads and (B, P) features.

    Student's and teacher's features are of different crops of each image.
    """
    teacher_scores = teacher(teacher_features).float()
    teacher_probabilities = teacher_scores.sub(sharpness.centre).div(sharpness.teacher_temperature).softmax(1)
    student_probabilities = student(student_features).float().div(sharpness.student_temperature).softmax(1)
    return {
        "teacher_entropy": entropy(teacher_probabilities).mean(),
        "student_entropy": entropy(student_probabilities).mean(),
        "batch_entropy": entropy(teacher_probabilities.mean(0)),
        "agreement": (teacher_probabilities.argmax(1) == student_probabilities.argmax(1)).float().mean(),
        "feature_spread": feature_spread(teacher_features),
        "effective_rank": effective_rank(teacher_features),
        "feature_norm": torch.linalg.vector_norm(teacher_features.float(), dim=1).mean(),
        "centre_norm": torch.linalg.vector_norm(sharpness.centre),
    }


@torch.no_grad()
def teacher_distance(student: StudentOrTeacher, teacher: StudentOrTeacher) -> Tensor:
    """Return the L2 norm of the difference between the backbones' weights, divided by the norm of the student's."""
    pairs = list(zip(teacher.backbone.parameters(), student.backbone.parameters(), strict=True))
    squared_distance = torch.stack([(first - second).square().sum() for first, second in pairs]).sum()
    squared_norm = torch.stack([value.square().sum() for _, value in pairs]).sum()
    ratio = (squared_distance / squared_norm).sqrt()
    return ratio.full_tensor() if isinstance(ratio, DTensor) else ratio  # a DTensor if the weights are sharded
