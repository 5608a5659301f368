"""Choosing settings from the data and the machine by rules; each value has a reason that is printed beside it.

A rule is a function with the name of the setting that it chooses. Its parameters are named after what it reads:
settings and their properties, such as `effective_batch`, and `facts` about the data and the machine. It returns a value
and the reason; the value None leaves the setting as it is. Rules run in order, so a rule sees the settings that the
user gave and those that earlier rules chose.
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from paucal.rules.facts import DataAndMachine
from paucal.settings.groups import JobSettings

# Settings that depend on the number of epochs: None until it is planned from the time budget, and with 0 epochs.
EPOCH_DEPENDENT = ("schedule_epochs", "warmup_epochs", "average")

Choice = tuple[Any, str]  # value of a setting (or None) and the reason
Rule = Callable[..., Choice]
S = TypeVar("S", bound=JobSettings)


def rules_by_name(rules: Iterable[Rule]) -> dict[str, Rule]:
    """Return rules by the name of the setting that each chooses."""
    return {rule.__name__: rule for rule in rules}


def resolve(settings: S, facts: DataAndMachine, rules: Mapping[str, Rule]) -> tuple[S, dict[str, str]]:
    """Choose every setting that is None or "auto" and has a rule.

    Afterwards a setting is None only if its type allows None, so code that reads settings needs no defaults.

    Returns:
        The settings, and by name the reason for each chosen value.

    Raises:
        RuntimeError: A rule chose no value for a setting that must have one: a bug in the rule.
    """
    reasons: dict[str, str] = {}
    hints = typing.get_type_hints(type(settings))
    for name, rule in rules.items():
        if getattr(settings, name) not in (None, "auto"):
            continue
        parameters = inspect.signature(rule).parameters
        value, reason = rule(**{name: facts if name == "facts" else getattr(settings, name) for name in parameters})
        if value is not None:
            reasons[name], settings = reason, replace(settings, **{name: value})
        elif type(None) not in typing.get_args(hints[name]) and (name not in EPOCH_DEPENDENT or settings.epochs):
            raise RuntimeError(f"the rule for {name} chose no value")
    return settings, reasons


def origins(settings: object, given: Mapping[str, str], reasons: Mapping[str, str]) -> dict[str, str]:
    """Return the origin of each setting: "auto: reason", its entry in `given` ("flag" or "config"), or "default"."""
    auto_origins = {name: f"auto: {reason}" for name, reason in reasons.items()}
    return {name: auto_origins.get(name) or given.get(name, "default") for name in vars(settings)}
