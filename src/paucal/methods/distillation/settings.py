"""The flags of distillation."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option


@dataclass(frozen=True)
class DistillationSettings:
    """Options of distillation (Touvron et al., ICML 2021; Hinton et al., 2015)."""

    teacher: str | None = option(
        "run or timm model with published weights whose classes are learnt with --add distillation", group="method"
    )
    distillation_weight: float | None = option(
        "weight of the loss of --add distillation, beside 1 for that of the labels", group="method", low=0
    )
    distillation_targets: Literal["class", "probabilities"] = option(
        "what --add distillation learns from the teacher: its likeliest class, or its probabilities",
        "class",
        group="method",
    )
