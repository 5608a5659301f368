"""What shows whether self-distillation is well: read by people, and by the watcher that names a collapse.

All are scalars on the device, of one batch:

- `teacher_entropy`, `student_entropy`: mean entropy in nats of the distributions over prototypes; ln K is uniform, 0
  is a single prototype.
- `batch_entropy`: entropy of the teacher's distribution averaged over the images; small where all images get the same
  prototypes.
- `agreement`: share of images for which teacher and student, each on its own crop, find the same prototype likeliest.
- `feature_spread`, `effective_rank`: of the teacher's pooled features, see `losses.feature_health`.
"""

import torch
from torch import Tensor

from paucal.losses import Sharpness, effective_rank, entropy, feature_spread
from paucal.objectives.distilled_network import DistilledNetwork


@torch.no_grad()
def health(
    student: DistilledNetwork, teacher: DistilledNetwork, seen: Tensor, goal: Tensor, sharpness: Sharpness
) -> dict[str, Tensor]:
    """Return the scalars of the module's description, without the centre's norm.

    Args:
        student: its view head is used.
        teacher: the same.
        seen: (B, P), the student's pooled features of one crop.
        goal: (B, P), the teacher's of another crop.
        sharpness: temperatures and the centre.
    """
    likely = _scores(teacher, goal).sub_(sharpness.centre).div_(sharpness.teacher_temperature).softmax(1)
    guessed = _scores(student, seen).div_(sharpness.student_temperature).softmax(1)
    return {
        "teacher_entropy": entropy(likely).mean(),
        "student_entropy": entropy(guessed).mean(),
        "batch_entropy": entropy(likely.mean(0)),
        "agreement": (likely.argmax(1) == guessed.argmax(1)).float().mean(),
        "feature_spread": feature_spread(goal),
        "effective_rank": effective_rank(goal),
    }


def _scores(network: DistilledNetwork, features: Tensor) -> Tensor:
    return network.head("view")(features).float()
