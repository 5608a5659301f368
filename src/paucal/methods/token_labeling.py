"""Token labeling and ReLabel: training with label maps, in which a teacher has labelled the parts of each image."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paucal.backbones.features import FeatureBackbone
from paucal.losses.token_labeling import TokenLabelingReading
from paucal.methods.contract import TrainingMethod
from paucal.methods.supervised import fine_tuning
from paucal.methods.training_settings import TokenLabelingSettings
from paucal.objectives import Objective, Term, TokenLabeling, TokenLabelingOptions
from paucal.types import UserError

RELABEL = "relabel"


def _build_objective(settings: Any, backbone: FeatureBackbone, terms: Mapping[str, Term]) -> Objective:
    reading = TokenLabelingReading.from_preset(settings.token_preset)
    if settings.token_weight is not None:
        reading = replace(reading, dense_weight=settings.token_weight)
    mixes = not settings.no_mix_token
    if settings.method == RELABEL:
        reading, mixes = replace(reading, dense_weight=0.0), False
    options = TokenLabelingOptions(
        reading, mixes, settings.label_smoothing, settings.token_preset == "reference", settings.seed
    )
    return TokenLabeling(backbone, options, terms, fine_tuning(settings))


def _check_settings(settings: Any) -> None:
    for name in ("mixup", "cutmix"):
        if getattr(settings, name):
            raise UserError(
                f"--{name} is not supported for --method {settings.method}, whose labels are for parts of images: "
                f"remove --{name}."
            )


_SHARED_FIELDS: dict[str, Any] = {
    "settings": TokenLabelingSettings,
    "paths": ("labels",),
    # Mixup and CutMix are off, since a mixed image would need a mixed label map.
    "rules": dict.fromkeys(
        ("mixup", "cutmix"), lambda method: (0.0, f"{method} uses labels for parts of images instead")
    ),
    "check": _check_settings,
    "advice": "with --method {method}: give --method token-labeling",
    "build": _build_objective,
    "label_maps": True,
    "suggested_comparison": ("supervised", "the same with plain labels, without the teacher"),
}
METHODS = (
    TrainingMethod(name="token-labeling", **_SHARED_FIELDS),
    TrainingMethod(name=RELABEL, **_SHARED_FIELDS),
)
