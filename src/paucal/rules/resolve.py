"""Settings chosen from the data and the machine, each with the reason that is printed beside it.

A rule is a function whose parameters name what it reads: settings and their properties, such as `effective_batch`, and
`facts` of the data and the machine. It returns a value and the reason, or None for "no opinion". Rules are resolved in
order, so that a rule sees the settings that were given and those resolved before it.
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from paucal.rules.facts import DataAndMachine
from paucal.settings.groups import JobSettings

# These follow from the number of epochs: they are None until a run with a time is planned, and with 0 epochs.
OF_LENGTH = ("schedule_epochs", "warmup_epochs", "average")

Choice = tuple[Any, str]
Rule = Callable[..., Choice]
S = TypeVar("S", bound=JobSettings)


def rules_by_name(rules: Iterable[Rule]) -> dict[str, Rule]:
    """Return rules by the name of their setting."""
    return {rule.__name__: rule for rule in rules}


def resolve(settings: S, facts: DataAndMachine, rules: Mapping[str, Rule]) -> tuple[S, dict[str, str]]:
    """Fill in every setting that is None or "auto" and has a rule.

    Afterwards a setting is None only if its type says so: code that reads settings needs no defaults of its own.

    Returns:
        The settings, and the reason of each value that was chosen.

    Raises:
        RuntimeError: A rule gave no value to a setting that must have one, which is a mistake in the rule.
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
        elif type(None) not in typing.get_args(hints[name]) and (name not in OF_LENGTH or settings.epochs):
            raise RuntimeError(f"the rule for {name} has chosen no value")
    return settings, reasons


def origins(settings: object, given: Mapping[str, str], reasons: Mapping[str, str]) -> dict[str, str]:
    """Return where each value comes from: "flag", "config", "auto: reason" or "default"."""
    chosen = {name: f"auto: {reason}" for name, reason in reasons.items()}
    return {name: chosen.get(name) or given.get(name, "default") for name in vars(settings)}
