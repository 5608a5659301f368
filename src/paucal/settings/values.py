"""Check and convert the types of settings from flags, keyword arguments, configs and stored runs."""

import inspect
import json
import math
import os
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

from paucal.reading import parse_yaml
from paucal.settings.options import default_of, earlier_names, flag, setting_fields, with_current_names
from paucal.types import UserError
from paucal.wording import did_you_mean, shorten

S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., Any])
TYPE_NAMES: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
BOOLEAN_WORDS = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}  # the words for booleans in YAML
EXPECTED_DURATION = "expected a time such as 10m, 600s, 8h, 1d12h or 1:30:00"
# Separator between name and value, by setting, for settings that accept NAME=VALUE words or a mapping.
PAIR_SEPARATORS = {"model_args": "=", "slurm": "=", "arms": ": "}
MAX_SHOWN_CHARACTERS = 80  # largest number of characters of a value that a message shows


class _WrongType(Exception):
    """Raised for a value of the wrong type."""


def settings_from_keywords(settings_type: type[S], values: Mapping[str, Any], name: str, verb: str) -> S:
    """Build settings from keyword arguments of the Python function `name`, whose command is `verb` (such as "train").

    A value of None counts as not given, a path becomes text, and a single value is accepted for a list. A wrong type
    raises a UserError with the message of the command line, an unknown setting a TypeError.
    """
    hints = setting_types(settings_type)
    for setting in values:
        if setting not in hints:
            suggestion = did_you_mean(setting, setting_fields(settings_type))
            raise TypeError(f"{name} has no setting {setting!r}{suggestion}; help({name}) lists all settings.")
    given = {
        setting: convert_setting(setting, value, hints[setting], verb)
        for setting, value in values.items()
        if value is not None
    }
    return settings_type(**with_current_names(given, settings_type))


def setting_types(settings_type: type) -> dict[str, Any]:
    """Return the type hint of each setting, by its current name and by its former name."""
    earlier_hints = {setting: earlier.hint for setting, (_, earlier) in earlier_names(settings_type).items()}
    return {**typing.get_type_hints(settings_type), **earlier_hints}


def convert_setting(name: str, value: Any, hint: Any, verb: str, parse_text: bool = False, shown: str = "") -> Any:
    """Convert the value of a setting to the type `hint`; raise a UserError if that is impossible.

    If `parse_text` is true, as for flags and configs, text such as "3" or "true" is accepted for a number or boolean.
    The error message calls the setting `shown`, or uses its flag if `shown` is empty.
    """
    # The values in `model_args` are later parsed as YAML, so text that looks like a number needs quotes.
    plain = parse_text or name != "model_args"
    value_words = _mapping_to_words(value, PAIR_SEPARATORS[name], plain) if name in PAIR_SEPARATORS else value
    try:
        return _convert(value_words, hint, parse_text)
    except _WrongType:
        if _is_list(strip_none(hint)) and isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
            value = value[0]  # the message shows what the user typed; argparse makes a list even of a single word
        members = [typing.get_args(member)[0] if _is_list(member) else member for member in _member_types(hint)]
        choices = [choice for member in members if _is_literal(member) for choice in typing.get_args(member)]
        expected = describe_expected([scalar_type for scalar_type in TYPE_NAMES if scalar_type in members], choices)
        if name in ("time", "time_limit", "hang_after"):
            expected = EXPECTED_DURATION
        value_text = shorten(_yaml_on_one_line(value) if parse_text else str(value), MAX_SHOWN_CHARACTERS)
        raise UserError(f"{shown or flag(name)}: {expected}, got {value_text!r}; see 'paucal {verb} --help'.") from None


def given_names(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings whose value is not None."""
    return [name for name, value in values.items() if value is not None]


def with_settings_signature(settings_type: type) -> Callable[[F], F]:
    """Return a decorator that replaces `**settings` in a function's signature by one keyword argument per setting.

    Only the signature that `help` and editors show is replaced.
    """

    def decorate(function: F) -> F:
        signature, hints = inspect.signature(function), typing.get_type_hints(settings_type)
        own_parameters = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
        new_parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default_of(item), annotation=hints[name])
            for name, item in setting_fields(settings_type).items()
            if name not in signature.parameters
        ]
        new_signature = signature.replace(parameters=[*own_parameters, *new_parameters])
        function.__signature__ = new_signature  # type: ignore[attr-defined]
        return function

    return decorate


def describe_expected(types: Iterable[type], choices: Sequence[str] = ()) -> str:
    """Return the part of an error message that names the valid types and choices of a setting.

    Example:
        >>> describe_expected([int], ["auto"])
        "expected a whole number or 'auto'"
        >>> describe_expected([], ["on", "off"])
        "expected one of 'on', 'off'"
    """
    type_names = [TYPE_NAMES[value_type] for value_type in types]
    if choices:
        type_names.append(f"{'one of ' if len(choices) > 1 else ''}{', '.join(map(repr, choices))}")
    return f"expected {' or '.join(type_names)}" if type_names else "the value has the wrong type"


def strip_none(hint: Any) -> Any:
    """Return `T` for the type hint `T | None` with a single type `T`; return other hints unchanged."""
    members = [m for m in typing.get_args(hint) if m is not type(None)]
    return members[0] if len(members) == 1 and not _is_literal(hint) and not _is_list(hint) else hint


def _is_literal(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Literal


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) is list


def _member_types(hint: Any) -> list[Any]:
    """Return the members of a union without None; for any other hint, a list of the hint alone."""
    plain = _is_literal(hint) or _is_list(hint)
    return [hint] if plain else [m for m in typing.get_args(hint) if m is not type(None)] or [hint]


def _convert(value: Any, hint: Any, parse_text: bool) -> Any:
    """Convert a value to the first type in a hint that fits the value; raise `_WrongType` if no type fits."""
    for member in _member_types(hint):
        try:
            if _is_literal(member):
                if isinstance(value, str) and value in typing.get_args(member):
                    return value
            elif _is_list(member):
                entries = value if isinstance(value, list | tuple) else [value]
                if entries:
                    return [_convert(entry, typing.get_args(member)[0], parse_text) for entry in entries]
            else:
                return _convert_scalar(value, member, parse_text)
        except _WrongType:
            continue
    raise _WrongType


def _convert_scalar(value: Any, scalar_type: Any, parse_text: bool) -> Any:
    if scalar_type is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif scalar_type in (int, float, bool) and parse_text and isinstance(value, str):
        try:
            value = BOOLEAN_WORDS[value.lower()] if scalar_type is bool else scalar_type(value)
        except (ValueError, KeyError):
            raise _WrongType from None
    valid_type = {int: Integral, float: Real}.get(scalar_type, scalar_type)
    is_bool = isinstance(value, bool)  # a bool is also an Integral and a Real
    if scalar_type in TYPE_NAMES and not (isinstance(value, valid_type) and is_bool == (scalar_type is bool)):
        raise _WrongType
    if scalar_type is int:
        return int(value)
    if scalar_type is float:
        try:
            value = float(value)
        except OverflowError:  # an integer too large for a float, which the range check refuses later
            return value
        if not math.isfinite(value):
            raise _WrongType
    return value


def _mapping_to_words(value: Any, separator: str, plain: bool) -> list[Any]:
    """Return each mapping, alone or in a list, as words "NAME<separator>VALUE"; return other entries unchanged."""
    entries = []
    for entry in value if isinstance(value, list | tuple) else [value]:
        is_mapping = isinstance(entry, Mapping)
        entries += [f"{k}{separator}{_yaml_on_one_line(v, plain)}" for k, v in entry.items()] if is_mapping else [entry]
    return entries


def _yaml_on_one_line(value: Any, plain: bool = True) -> str:
    """Return a value as YAML on one line; text that looks like another type is quoted unless `plain` is true."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_yaml_on_one_line(entry, plain)}" for name, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_yaml_on_one_line(entry, plain) for entry in value) + "]"
    if isinstance(value, str):
        return value if plain or _is_plain(value) else json.dumps(value)
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _is_plain(text: str) -> bool:
    try:
        return parse_yaml(text) == text
    except ValueError:
        return False
