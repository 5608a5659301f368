"""Settings chosen from the data and the machine, each with the reason that is printed beside it.

Every rule is a small function of the facts and of the settings resolved before it; the order of `RULES` is the order
of resolution.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from paucal.recipes import rules_images, rules_length, rules_machine, rules_model
from paucal.recipes.facts import Facts
from paucal.recipes.settings import TrainSettings

Rule = Callable[[Facts, TrainSettings], tuple[Any, str]]

RULES: dict[str, Rule] = {
    rule.__name__: rule
    for group in (
        (rules_machine.device, rules_machine.devices, rules_machine.nodes, rules_machine.strategy),
        (rules_model.model, rules_model.model_args, rules_model.img_size),
        rules_length.RULES,
        rules_images.RULES,
        (rules_model.drop_path, rules_model.drloc_weight, rules_model.drloc_pairs, rules_model.drloc_hidden),
        (rules_machine.precision, rules_machine.workers),
    )
    for rule in group
}


def resolve(settings: TrainSettings, facts: Facts) -> tuple[TrainSettings, dict[str, str]]:
    """Fill in every setting that is None and has a rule.

    Returns:
        The settings, and the reason of each value that was chosen.
    """
    reasons: dict[str, str] = {}
    for name, rule in RULES.items():
        if name.startswith("drloc") and "drloc" not in (settings.method, *(settings.add or ())):
            continue
        if getattr(settings, name) in (None, "auto"):
            value, reason = rule(facts, settings)
            if value is not None:
                reasons[name] = reason
                settings = replace(settings, **{name: value})
    return settings, reasons


def origins(settings: object, given: Mapping[str, str], reasons: Mapping[str, str]) -> dict[str, str]:
    """Return where each value comes from: "flag", "config", "auto: reason" or "default"."""
    return {
        name: f"auto: {reasons[name]}" if name in reasons else given.get(name, "default") for name in vars(settings)
    }
