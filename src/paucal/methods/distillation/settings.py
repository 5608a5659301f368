"""The flags of distillation."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option


@dataclass(frozen=True)
class DistillationSettings:
    """Options of distillation (Touvron et al., ICML 2021; Hinton et al., 2015)."""

    help_group = "method"
    teacher: str | None = option("teacher of --add distillation: a run or a timm model with published weights")
    distillation_weight: float | None = option(
        "weight of the loss of --add distillation, relative to 1 for the labels", low=0
    )
    distillation_targets: Literal["class", "probabilities"] = option(
        "what --add distillation learns from the teacher: the most likely class, or the probabilities", "class"
    )
