"""VISReg: views predict their mean, and sorted projections keep the embeddings normally distributed."""

from collections.abc import Sequence
from typing import Any

from paucal.backbones.spec import BackboneSpec
from paucal.methods.contract import PretrainingMethod
from paucal.methods.lejepa import entry as lejepa
from paucal.methods.visreg.settings import VisRegSettings
from paucal.objectives.base import Objective
from paucal.objectives.visreg import VisReg
from paucal.types import Crops


def _build_objective(settings: Any, spec: BackboneSpec, groups: Sequence[Crops]) -> Objective:
    own_options = settings.visreg_weight, settings.visreg_directions, settings.visreg_dim
    return lejepa.build_projected(VisReg, settings, spec, groups, own_options)


METHOD = PretrainingMethod(
    name="visreg",
    settings=VisRegSettings,
    rules=lejepa.RULES,
    title=lambda settings: "VISReg: views predict their mean",
    build=_build_objective,
    judge=lejepa.judge_features,
    healthy_from_start=True,
)
