"""What to change after each kind of collapse.

From EsViT's published settings (arXiv:2106.09785 and its program), DINO's account of centring and sharpening
(arXiv:2104.14294, section 5.3), and what helped people who trained on few images of their own: fewer prototypes, a
teacher momentum of 0.99, another learning rate and batch size (facebookresearch/dino, issue 246).
"""

import math
from collections.abc import Mapping

STUDENT_TEMPERATURE = 0.1
NEAR = 0.005  # relative distance; with a momentum of 0.98 and above it is 0.03 to 0.1 on few images

ADVICE = {
    "constant output": "Raise the teacher temperature (0.04 to 0.07 are published), keep the centres following faster "
    "(centre momentum 0.9), lower the learning rate, or use larger batches, whose centres are less noisy.",
    "uniform output": "Lower the teacher temperature (0.04, or 0.03 for few images) and warm it up longer, use fewer "
    "prototypes (a few thousand for a small set), a teacher momentum of 0.99 to 0.996, and train for more steps; if "
    "the loss never moves, change the learning rate.",
    "dimensional collapse": "Use larger batches and more local crops, lower the learning rate and the weight decay, "
    "and check that the images are not nearly all alike; with the view loss alone, add the region loss.",
    "divergence": "Lower the learning rate and warm it up longer, clip gradients (3.0 per tensor is published), keep "
    "the last layer's lengths fixed and frozen for longer, and use bfloat16 or float32 instead of float16.",
}


def advice(kind: str, row: Mapping[str, float]) -> str:
    """Return what to change, beginning with what the newest row shows to be the likely cause."""
    return " ".join([*causes(row), ADVICE[kind]])


def causes(row: Mapping[str, float]) -> list[str]:
    """Return a sentence for every setting that the row shows to be one that self-distillation cannot bear.

    Example:
        >>> causes({"centre_norm": 0.0, "teacher_temperature": 0.04})
        ['The centre is 0: switch centring on.']
    """
    found = []
    if row.get("centre_norm", math.nan) == 0:
        found.append("The centre is 0: switch centring on.")
    temperature = row.get("teacher_temperature", math.nan)
    if temperature >= STUDENT_TEMPERATURE:
        found.append(
            f"The teacher temperature is {temperature:g}; it must stay below the student's ({STUDENT_TEMPERATURE:g}), "
            "or the teacher asks for less certain answers than the student has."
        )
    if row.get("teacher_distance", math.nan) < NEAR:
        found.append("Teacher and student are as good as equal: give the teacher a momentum of 0.99 to 0.996.")
    return found
