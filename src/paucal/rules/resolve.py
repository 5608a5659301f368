"""Choose settings from the data and the machine by rules; each value is printed with the reason for the choice.

A rule is a function that has the name of the setting that it chooses. Its parameters are the inputs of the choice:
other settings, properties of the settings class such as `effective_batch`, `facts`, which is a `DataAndMachine`, and
`shape`, a function that returns the `BackboneShape` of the settings. A rule returns a value and a reason. If the value
is None, the setting is left unchanged. Rules run in order, so a rule sees the settings that the user gave and the
settings that earlier rules chose.
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from paucal.rules.backbone import BackboneShape, backbone_shape
from paucal.rules.facts import DataAndMachine
from paucal.settings.options import CHOSEN_BY_RULE
from paucal.settings.shared import JobSettings

# Settings that depend on the number of epochs. These settings are None as long as the number of epochs has not been
# planned from the time budget, and if the number of epochs is 0.
EPOCH_DEPENDENT = ("schedule_epochs", "warmup_epochs", "average")

Choice = tuple[Any, str]  # value of a setting (or None) and the reason for the value
Rule = Callable[..., Choice]
Shape = Callable[[], BackboneShape]  # input `shape` of a rule
S = TypeVar("S", bound=JobSettings)


def rules_by_name(rules: Iterable[Rule]) -> dict[str, Rule]:
    """Return rules by the name of the setting that each rule chooses."""
    return {rule.__name__: rule for rule in rules}


def resolve(settings: S, facts: DataAndMachine, rules: Mapping[str, Rule]) -> tuple[S, dict[str, str]]:
    """Choose every setting that is None or "auto" and has a rule.

    Afterwards a setting is None only if its type allows None, so code that reads settings needs no defaults.

    Returns:
        The settings, and the reason for each chosen value by the name of the setting.

    Raises:
        RuntimeError: A rule has a bug and chose no value for a setting that needs a value.
    """
    reasons: dict[str, str] = {}
    hints = typing.get_type_hints(type(settings))
    for name, rule in rules.items():
        if getattr(settings, name) not in (CHOSEN_BY_RULE, "auto"):
            continue
        shape = partial(backbone_shape, settings.model, settings.model_args, settings.img_size)
        extra_inputs: dict[str, Any] = {"facts": facts, "shape": shape}
        inputs = {
            item: extra_inputs[item] if item in extra_inputs else getattr(settings, item)
            for item in inspect.signature(rule).parameters
        }
        value, reason = rule(**inputs)
        if value is not None:
            reasons[name], settings = reason, replace(settings, **{name: value})
        elif type(None) not in typing.get_args(hints[name]) and (name not in EPOCH_DEPENDENT or settings.epochs):
            raise RuntimeError(f"the rule for {name} chose no value")
    return settings, reasons
