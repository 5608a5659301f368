"""Options of dense relative localization from its flags, and checks of their combinations."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from paucal.methods.drloc.settings import DrLocSettings
from paucal.objectives.drloc_options import PRESETS
from paucal.settings.options import flag
from paucal.types import UserError

# Words for options that are true or false. Not "on" and "off", which YAML reads as true and false in a config.
SWITCHES = {
    "drloc_shift": {"side_minus_1": True, "none": False},
    "drloc_extra_layer": {"linear": True, "none": False},
    "drloc_norm": {"after": True, "before": False},
}
_RENAMED = {"drloc_pairs": "n_pairs", "drloc_shift": "shifted"}
_NO_OPTIONS = ("drloc_preset", "drloc_sampling")  # not fields of the options


class Needs(NamedTuple):
    """The condition under which a setting has an effect.

    Attributes:
        setting: Name of the setting that it depends on.
        values: Values of that setting for which it has an effect.
        why: Why it has no effect for other values.
    """

    setting: str
    values: Sequence[str]
    why: str


_OFFSETS = Needs("drloc_mode", ("l1", "signed"), "ce and reg predict offsets as classes")
_CLASSES = Needs("drloc_mode", ("ce", "reg"), "l1 and signed predict offsets as numbers")
_VARIANCE = Needs("drloc_mode", ("reg",), "only reg has a variance term")
_RAMP = Needs("drloc_schedule", ("ramp",), "the weight is constant")
NEEDS = {
    "drloc_scale": _OFFSETS,
    "drloc_coordinates": _OFFSETS,
    "drloc_shift": Needs("drloc_mode", ("signed",), "only signed offsets are ever negative"),
    "drloc_classes": _CLASSES,
    "drloc_extra_layer": _CLASSES,
    "drloc_log_of": _VARIANCE,
    "drloc_alpha": _VARIANCE,
    "drloc_warmup_epochs": _RAMP,
    "drloc_horizon_epochs": _RAMP,
    "drloc_pairs": Needs("drloc_sampling", ("random",), "a permutation pairs every cell once"),
}


def given_options(settings: Any) -> dict[str, Any]:
    """Return the fields of `DrLocOptions` that the settings of a run give, apart from the preset.

    Args:
        settings: Settings of the run; old stored runs may lack some.
    """
    options: dict[str, Any] = {"seed": settings.seed}
    for name in (item.name for item in fields(DrLocSettings) if item.name not in _NO_OPTIONS):
        value = getattr(settings, name, None)
        if value is not None:
            option = _RENAMED.get(name, name.removeprefix("drloc_"))
            options[option] = SWITCHES[name][value] if name in SWITCHES else value
    if getattr(settings, "drloc_sampling", "random") == "permutation":
        options["n_pairs"] = None
    return options


def check_options(settings: Any) -> None:
    """Refuse settings without effect on the chosen variant, and settings that contradict each other."""
    for name, needs in NEEDS.items():
        chosen = in_effect(settings, needs.setting)
        if getattr(settings, name) is not None and chosen not in needs.values:
            words = " or ".join(needs.values)
            raise UserError(
                f"{flag(name)} has no effect with {flag(needs.setting)} {chosen}, since {needs.why}: leave it out, or "
                f"give {flag(needs.setting)} {words}."
            )
    _check_pool(settings)
    _check_ramp(settings)


def _check_pool(settings: Any) -> None:
    levels, pool = in_effect(settings, "drloc_levels"), settings.drloc_pool
    if levels != "last" and isinstance(pool, str):
        raise UserError(
            f"--drloc-pool {pool} is a rule for the last grid, and has no effect with --drloc-levels {levels}: leave "
            "it out, or give the side to pool every grid to."
        )


def _check_ramp(settings: Any) -> None:
    warmup, horizon = (in_effect(settings, f"drloc_{name}_epochs") for name in ("warmup", "horizon"))
    if in_effect(settings, "drloc_schedule") == "ramp" and horizon <= warmup:
        raise UserError(
            f"--drloc-horizon-epochs is {horizon}, where the weight is 0 again, and --drloc-warmup-epochs is {warmup}, "
            "where it is highest: give more epochs for the horizon than for the warm-up."
        )


def in_effect(settings: Any, name: str) -> Any:
    """Return the value of a setting, by default that of the preset."""
    given = getattr(settings, name)
    return getattr(PRESETS[settings.drloc_preset], name.removeprefix("drloc_")) if given is None else given
