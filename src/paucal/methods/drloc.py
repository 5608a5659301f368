"""Dense relative localization: an extra loss, and the method that adds it to cross-entropy on the labels."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.spec import BackboneSpec
from paucal.methods.contract import ExtraLoss, TrainingMethod
from paucal.methods.supervised import build_supervised
from paucal.methods.training_settings import DrLocSettings
from paucal.objectives import DrLoc, Term, default_weight
from paucal.objectives.drloc import PRESETS
from paucal.rules.resolve import Choice, Shape, rules_by_name
from paucal.settings.options import flag
from paucal.types import FeatureRequest, UserError

# The words for true and false of each boolean option. YAML would read "on" and "off" in a config file as booleans.
SWITCHES = {
    "drloc_shift": {"side_minus_1": True, "none": False},
    "drloc_extra_layer": {"linear": True, "none": False},
    "drloc_norm": {"after": True, "before": False},
}
# Fields of `DrLocOptions` whose name is not the name of the setting without "drloc_".
_FIELD_NAMES = {"drloc_pairs": "n_pairs", "drloc_shift": "shifted"}
_WITHOUT_FIELD = ("drloc_preset", "drloc_sampling")  # settings without a field in `DrLocOptions`
PAPER_PAIRS, PAPER_HIDDEN = 64, 512  # pairs of grid positions per image, and width of the localization MLP
PAPER_REASON = "the paper's value"
METHOD = TrainingMethod(
    name="drloc",
    terms=("drloc",),
    build=build_supervised,
    suggested_comparison=("supervised", "the same without the extra loss"),
)


class Requirement(NamedTuple):
    """The condition under which a setting has an effect."""

    setting: str  # name of the other setting on which the effect depends
    values: Sequence[str]  # values of the other setting for which there is an effect
    why: str  # why there is no effect for other values


_NEEDS_NUMERIC_OFFSETS = Requirement("drloc_mode", ("l1", "signed"), "ce and reg predict offsets as classes")
_NEEDS_OFFSET_CLASSES = Requirement("drloc_mode", ("ce", "reg"), "l1 and signed predict offsets as numbers")
_NEEDS_VARIANCE_TERM = Requirement("drloc_mode", ("reg",), "only reg has a variance term")
_NEEDS_RAMP = Requirement("drloc_schedule", ("ramp",), "the weight is constant")
REQUIREMENTS = {
    "drloc_scale": _NEEDS_NUMERIC_OFFSETS,
    "drloc_coordinates": _NEEDS_NUMERIC_OFFSETS,
    "drloc_shift": Requirement("drloc_mode", ("signed",), "only signed offsets are ever negative"),
    "drloc_classes": _NEEDS_OFFSET_CLASSES,
    "drloc_extra_layer": _NEEDS_OFFSET_CLASSES,
    "drloc_log_of": _NEEDS_VARIANCE_TERM,
    "drloc_alpha": _NEEDS_VARIANCE_TERM,
    "drloc_warmup_epochs": _NEEDS_RAMP,
    "drloc_horizon_epochs": _NEEDS_RAMP,
    "drloc_pairs": Requirement("drloc_sampling", ("random",), "a permutation pairs every grid position once"),
}


def check_options(settings: Any) -> None:
    """Raise a UserError for settings that have no effect on the chosen variant or contradict each other."""
    for name, requirement in REQUIREMENTS.items():
        value = effective_value(settings, requirement.setting)
        if getattr(settings, name) is not None and value not in requirement.values:
            text = " or ".join(requirement.values)
            raise UserError(
                f"{flag(name)} has no effect with {flag(requirement.setting)} {value}, since {requirement.why}: remove "
                f"{flag(name)}, or give {flag(requirement.setting)} {text}."
            )
    levels, pool = effective_value(settings, "drloc_levels"), settings.drloc_pool
    if levels != "last" and isinstance(pool, str):
        raise UserError(
            f"--drloc-pool {pool} is a rule for the last grid, and has no effect with --drloc-levels {levels}: remove "
            "--drloc-pool, or give the side to which every grid is pooled."
        )
    warmup, horizon = (effective_value(settings, f"drloc_{name}_epochs") for name in ("warmup", "horizon"))
    if effective_value(settings, "drloc_schedule") == "ramp" and horizon <= warmup:
        raise UserError(
            f"--drloc-horizon-epochs is {horizon}, where the weight is 0 again, and --drloc-warmup-epochs is {warmup}, "
            "where the weight is highest: give more epochs for the horizon than for the warm-up."
        )


def effective_value(settings: Any, name: str) -> Any:
    """Return the value of a setting, or the preset's value if the setting is None."""
    value = getattr(settings, name)
    return getattr(PRESETS[settings.drloc_preset], name.removeprefix("drloc_")) if value is None else value


def drloc_pairs(shape: Shape, drloc_sampling: str) -> Choice:
    """Choose the paper's number of pairs, or fewer on a small grid; None for a permutation of all grid positions."""
    if drloc_sampling == "permutation":
        return None, ""
    rows, columns = shape().grid
    n_positions = rows * columns
    if 2 * n_positions >= PAPER_PAIRS:
        return PAPER_PAIRS, PAPER_REASON
    return 2 * n_positions, f"two for each of the {n_positions} cells; the paper has {PAPER_PAIRS} for 49 cells"


def drloc_hidden(shape: Shape) -> Choice:
    """Choose the paper's width of the MLP, or twice the channels of a narrow backbone."""
    dim = shape().dim
    if 2 * dim >= PAPER_HIDDEN:
        return PAPER_HIDDEN, PAPER_REASON
    return 2 * dim, f"twice the {dim} channels of the grid; the paper has {PAPER_HIDDEN} for 384 and more"


def _build_term(settings: Any, spec: BackboneSpec, backbone: FeatureBackbone) -> Term:
    # The fields of `DrLocOptions` that the settings override
    options: dict[str, Any] = {"seed": settings.seed}
    for name in (item.name for item in fields(DrLocSettings) if item.name not in _WITHOUT_FIELD):
        value = getattr(settings, name, None)
        if value is not None:
            option = _FIELD_NAMES.get(name, name.removeprefix("drloc_"))
            options[option] = SWITCHES[name][value] if name in SWITCHES else value
    if getattr(settings, "drloc_sampling", "random") == "permutation":
        options["n_pairs"] = None
    # Of all options, only the levels decide which feature grids the loss reads.
    shapes = backbone.shapes(FeatureRequest(effective_value(settings, "drloc_levels")))
    return DrLoc.from_preset(
        settings.drloc_preset,
        [dim for dim, _, _ in shapes],
        [(height, width) for _, height, width in shapes],
        model_name=spec.name,
        **options,
    )


DRLOC_LOSS = ExtraLoss(
    name="drloc",
    settings=DrLocSettings,
    rules={
        # The paper's loss weight for the backbone's family, or 0.1 for a family that is not in the paper
        "drloc_weight": lambda model: default_weight(model or ""),
        **rules_by_name((drloc_pairs, drloc_hidden)),
    },
    check=check_options,
    advice="with --method {method}: remove {flag}, or add the loss with --add drloc",
    build=_build_term,
)
