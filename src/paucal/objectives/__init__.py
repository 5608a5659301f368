"""Objectives: one `nn.Module` per training method, with its networks and losses; `base.py` defines the interface."""

from paucal.objectives.base import Objective, Term
from paucal.objectives.distilled_network import SelfDistillationOptions
from paucal.objectives.drloc import DrLoc, DrLocOptions, LocalizationHead, default_weight
from paucal.objectives.guided import Distillation, LocalityGuidance
from paucal.objectives.one_network import Diet, LeJepa, LeJepaOptions, VisReg
from paucal.objectives.self_distillation import SelfDistillation
from paucal.objectives.supervised import Supervised
from paucal.objectives.token_labeling import TokenLabeling, TokenLabelingOptions

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
