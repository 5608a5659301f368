"""The one check of settings' values, for flags, keyword arguments, configs and stored runs."""

import inspect
import json
import math
import os
import typing
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

from paucal.reading import parse_yaml
from paucal.settings.options import earlier_names, flag, setting_fields, with_current_names
from paucal.types import UserError
from paucal.wording import did_you_mean, shortened

S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., Any])
KINDS: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
TRUTH = {**dict.fromkeys(("true", "yes", "on"), True), **dict.fromkeys(("false", "no", "off"), False)}  # YAML's words
DURATION = "expected a time such as 10m, 600s, 8h, 1d12h or 1:30:00"
# Separator of name and value in settings that take NAME=VALUE words or a mapping.
PAIRS = {"model_args": "=", "slurm": "=", "arms": ": "}
MAX_SHOWN = 80  # characters of a value


class _Unfit(Exception):
    """A value has the wrong type."""


def from_python(kind: type[S], values: Mapping[str, Any], name: str, verb: str) -> S:
    """Build settings from the keyword arguments of a function, which has a verb in the command line.

    None counts as not given, a path becomes text, and a single value is accepted for a list.

    Raises:
        UserError: A value has the wrong type; the message is that of the command line.
        TypeError: A setting does not exist; the message suggests the nearest one.
    """
    hints = hints_of(kind)
    for setting in values:
        if setting not in hints:
            suggestion = did_you_mean(setting, setting_fields(kind))
            raise TypeError(f"{name} has no setting {setting!r}{suggestion}; help({name}) lists all.")
    given = {
        setting: convert_setting(setting, value, hints[setting], verb)
        for setting, value in values.items()
        if value is not None
    }
    return kind(**with_current_names(given, kind))


def hints_of(kind: type) -> dict[str, Any]:
    """Return the type of each setting by its name, earlier names included."""
    earlier_hints = {setting: item.hint for setting, (_, item) in earlier_names(kind).items()}
    return {**typing.get_type_hints(kind), **earlier_hints}


def convert_setting(name: str, value: Any, hint: Any, verb: str, parse_text: bool = False, shown: str = "") -> Any:
    """Return the value of a setting, given in Python or in a config, converted to its type.

    With `parse_text`, as for a config, text such as "3" or "true" may stand for a number or a truth value. Error
    messages name the setting as `shown`, or by its flag if that is empty.
    """
    plain = parse_text or name != "model_args"  # the only words whose values are read as YAML
    value_words = _words_of(value, PAIRS[name], plain) if name in PAIRS else value
    try:
        return _convert_to_hint(value_words, hint, parse_text)
    except _Unfit:
        if _is_list(without_none(hint)) and isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
            value = value[0]  # a flag's only word
        expected = DURATION if name in ("time", "time_limit", "hang_after") else expectation(*_allowed_types(hint))
        value_text = got(_yaml_on_one_line(value) if parse_text else value)
        raise UserError(f"{shown or flag(name)}: {expected}{value_text}; see 'paucal {verb} --help'.") from None


def given_names(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings with a value; None counts as not given."""
    return [name for name, value in values.items() if value is not None]


def shows_settings(kind: type) -> Callable[[F], F]:
    """Show the fields of `**settings` in a function's `help` and to editors."""

    def show(function: F) -> F:
        signature, hints = inspect.signature(function), typing.get_type_hints(kind)
        first = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
        new_parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=item.default, annotation=hints[name])
            for name, item in setting_fields(kind).items()
            if name not in signature.parameters
        ]
        function.__signature__ = signature.replace(parameters=[*first, *new_parameters])  # type: ignore[attr-defined]
        return function

    return show


def expectation(kinds: Iterable[type], choices: str = "") -> str:
    """Return the types and the words that a setting allows, as text.

    Example:
        >>> expectation([int], "'auto'")
        "expected a whole number or one of 'auto'"
    """
    kind_names = [KINDS[kind] for kind in kinds] + ([f"one of {choices}"] if choices else [])
    return f"expected {' or '.join(kind_names)}" if kind_names else "the value does not fit"


def got(value: object) -> str:
    """Return the end of a message about a value of the wrong type."""
    return f", got {shortened(str(value), MAX_SHOWN)!r}"


def without_none(hint: Any) -> Any:
    """Return the type of an optional value; the hint itself for other types.

    Example:
        >>> without_none(int | None), without_none(bool)
        (<class 'int'>, <class 'bool'>)
    """
    members = [m for m in typing.get_args(hint) if m is not type(None)]
    return members[0] if len(members) == 1 and not _is_literal(hint) and not _is_list(hint) else hint


def _is_literal(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Literal


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) is list


def _member_types(hint: Any) -> list[Any]:
    """Return the member types of a hint without None."""
    plain = _is_literal(hint) or _is_list(hint)
    return [hint] if plain else [m for m in typing.get_args(hint) if m is not type(None)] or [hint]


def _allowed_types(hint: Any) -> tuple[list[type], str]:
    """Return the plain types and the words that a hint, or the entries of its list, allows."""
    members = [typing.get_args(m)[0] if _is_list(m) else m for m in _member_types(hint)]
    choices = [choice for m in members if _is_literal(m) for choice in typing.get_args(m)]
    return [kind for kind in KINDS if kind in members], ", ".join(map(repr, choices))


def _convert_to_hint(value: Any, hint: Any, parse_text: bool) -> Any:
    """Return a value converted to one of a hint's types; raises `_Unfit` if it fits none."""
    for member in _member_types(hint):
        try:
            return _as_list(value, member, parse_text) if _is_list(member) else _as_kind(value, member, parse_text)
        except _Unfit:
            continue
    raise _Unfit


def _as_list(value: Any, hint: Any, parse_text: bool) -> list[Any]:
    entries = value if isinstance(value, list | tuple) else [value]
    if not entries:
        raise _Unfit
    return [_convert_to_hint(entry, typing.get_args(hint)[0], parse_text) for entry in entries]


def _as_kind(value: Any, kind: Any, parse_text: bool) -> Any:
    if _is_literal(kind):
        return _require_fit(value, isinstance(value, str) and value in typing.get_args(kind))
    if kind is str:
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
        return _require_fit(text, isinstance(text, str))
    if parse_text and isinstance(value, str) and kind in (int, float, bool):
        value = _read_plain(value, kind)
    if kind is bool:
        return _require_fit(value, isinstance(value, bool))
    number = not isinstance(value, bool)
    if kind is int:
        return int(_require_fit(value, number and isinstance(value, Integral)))
    if kind is float:
        return _as_float(_require_fit(value, number and isinstance(value, Real)))
    return value


def _read_plain(text: str, kind: type) -> Any:
    """Return the number or boolean that a text represents."""
    try:
        return TRUTH[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise _Unfit from None


def _words_of(value: Any, between: str, plain: bool) -> list[Any]:
    """Return a mapping, or each mapping in a list, as words with name and value."""
    entries = []
    for entry in value if isinstance(value, list | tuple) else [value]:
        pairs = isinstance(entry, Mapping)
        entries += [f"{k}{between}{_yaml_on_one_line(v, plain)}" for k, v in entry.items()] if pairs else [entry]
    return entries


def _yaml_on_one_line(value: Any, plain: bool = True) -> str:
    """Return a value as YAML on one line; text that looks like another type is quoted unless `plain`."""
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


def _as_float(value: Any) -> float | int:
    try:
        number = float(value)
    except OverflowError:  # an integer too large for a float: refused by the range check
        return value
    return _require_fit(number, math.isfinite(number))


def _require_fit(value: Any, fits: bool) -> Any:
    if not fits:
        raise _Unfit
    return value
