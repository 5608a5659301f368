"""VISReg: views predict their mean, and sorted projections keep the embeddings normally distributed."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from paucal.backbones.spec import BackboneSpec
from paucal.methods.contract import PretrainingMethod
from paucal.methods.lejepa import entry as lejepa
from paucal.methods.visreg.settings import VisRegSettings
from paucal.objectives.base import Objective
from paucal.objectives.lejepa import LeJepaOptions
from paucal.objectives.visreg import VisReg
from paucal.types import Crops


def _build_objective(settings: Any, spec: BackboneSpec, groups: Sequence[Crops]) -> Objective:
    options = LeJepaOptions(
        weight=settings.visreg_weight,
        directions=settings.visreg_directions,
        projection_dim=settings.visreg_dim,
        hidden_dim=settings.projection_hidden,
        seed=settings.seed,
    )
    objective = VisReg(spec, groups, options, settings.drop_path, lejepa.still_stages(settings))
    if settings.processes > 1 and settings.device == "cuda":  # torch has no such norm for CPUs
        objective.projector = nn.SyncBatchNorm.convert_sync_batchnorm(objective.projector)
    return objective


METHOD = PretrainingMethod(
    name="visreg",
    summary="as lejepa, with sorted projections instead of its test: VISReg",
    settings=VisRegSettings,
    rules=lejepa.RULES,
    advice="with --method {method}: leave it out, or give --method visreg",
    title=lambda settings: "VISReg: views predict their mean",
    build=_build_objective,
    weight_decay=lambda settings: settings.weight_decay,
    clip=lambda settings: settings.clip,
    judge=lejepa.judge_features,
    settled_start=True,
)
