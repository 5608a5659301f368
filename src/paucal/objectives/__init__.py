"""Objectives: one `nn.Module` per training method, with its networks and losses; `base.py` defines the interface."""

from paucal.objectives.base import Objective, Term
from paucal.objectives.diet import Diet
from paucal.objectives.distillation import Distillation
from paucal.objectives.drloc import DrLoc
from paucal.objectives.drloc_head import LocalizationHead
from paucal.objectives.drloc_options import DrLocOptions, default_weight
from paucal.objectives.lejepa import LeJepa, LeJepaOptions
from paucal.objectives.locality_guidance import LocalityGuidance
from paucal.objectives.self_distillation import SelfDistillation
from paucal.objectives.self_distillation_options import SelfDistillationOptions
from paucal.objectives.supervised import Supervised
from paucal.objectives.token_labeling import TokenLabeling, TokenLabelingOptions
from paucal.objectives.visreg import VisReg

__all__ = [
    "Diet",
    "Distillation",
    "DrLoc",
    "DrLocOptions",
    "LeJepa",
    "LeJepaOptions",
    "LocalityGuidance",
    "LocalizationHead",
    "Objective",
    "SelfDistillation",
    "SelfDistillationOptions",
    "Supervised",
    "Term",
    "TokenLabeling",
    "TokenLabelingOptions",
    "VisReg",
    "default_weight",
]
