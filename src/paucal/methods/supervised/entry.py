"""Training with cross-entropy on the labels, and with extra losses."""

from collections.abc import Mapping
from typing import Any

from paucal.backbones.features import FeatureBackbone
from paucal.methods.contract import TrainingMethod
from paucal.methods.fine_tuning import fine_tuning
from paucal.objectives import Objective, Supervised, Term


def build_supervised(settings: Any, backbone: FeatureBackbone, terms: Mapping[str, Term]) -> Objective:
    """Build the objective: cross-entropy on the labels, plus the extra losses `terms`."""
    return Supervised(backbone, terms, settings.label_smoothing, fine_tuning(settings))


METHOD = TrainingMethod(
    name="supervised",
    build=build_supervised,
    suggested_comparison=("drloc", "add dense relative localization"),
)
