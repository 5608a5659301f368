"""DIET: every image is its own class, which a linear classifier predicts from any view of the image."""

from collections.abc import Sequence
from typing import Any

from paucal.backbones.spec import BackboneSpec
from paucal.methods import lejepa
from paucal.methods.contract import PretrainingMethod
from paucal.methods.pretraining_settings import DietSettings
from paucal.objectives.base import Objective
from paucal.objectives.one_network import Diet
from paucal.rules.resolve import Choice, DataAndMachine, rules_by_name
from paucal.types import Crops

MAX_CLASSES = 1 << 16  # with more images, several images share a class
SCRATCH_RATE = 1e-3  # learning rate for random weights


def diet_classes(facts: DataAndMachine) -> Choice:
    """Choose the number of classes: the number of images, but at most `MAX_CLASSES`."""
    n_classes = max(2, min(max(facts.n_images, facts.n_train), MAX_CLASSES))
    return n_classes, f"one for each image, at most {MAX_CLASSES}"


def lr(facts: DataAndMachine, effective_batch: int) -> Choice:
    """Choose DIET-CP's learning rate for pretrained weights, and DIET's learning rate for random weights."""
    if lejepa.has_trained_weights(facts):
        return lejepa.continued_rate(effective_batch)
    return SCRATCH_RATE, "DIET's value"


def _build_objective(settings: Any, spec: BackboneSpec, groups: Sequence[Crops]) -> Objective:
    frozen_stages = lejepa.freeze_options(settings)
    return Diet(spec, groups, settings.diet_classes, settings.diet_smoothing, settings.drop_path, frozen_stages)


DIET_RULES = {
    "local_crops": lambda local_size: ([0] * len(local_size or [0]), "each view is classified separately"),
    **rules_by_name((diet_classes, lr)),
}
# All other settings are chosen by the rules of LeJEPA, except those of its projector.
LEJEPA_RULES = {name: rule for name, rule in lejepa.RULES.items() if name not in (*DIET_RULES, "projection_hidden")}
METHOD = PretrainingMethod(
    name="diet",
    settings=DietSettings,
    # The rule for `lr` has to come before the rule for `min_lr`, which uses `lr`.
    rules={**DIET_RULES, **LEJEPA_RULES},
    title=lambda settings: "DIET: every image is its own class",
    build=_build_objective,
    find_collapse=lejepa.find_collapse,
    healthy_from_start=True,
)
