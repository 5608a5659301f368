"""Declare settings: fields of frozen dataclasses that are also command-line flags and keys of config files.

If the default of a field is `CHOSEN_BY_RULE` (None) and the field's type does not allow None, a rule chooses the value
of the field (see `rules.resolve.resolve`), and the rule's reason is kept. If the type allows None, None is a valid
value that means, for instance, "no limit".
"""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from inspect import get_annotations
from typing import Any, get_args, get_type_hints

from paucal.types import UserError

CHOSEN_BY_RULE = None  # default of settings whose value is chosen by a rule
DEFAULT_SIDE = 224  # default image size in pixels
MAX_SIDE = 4096  # largest valid side of an image in pixels
MAX_IMAGES = 10**9  # largest valid number of images, far below the limit of 64-bit integers
MAX_EPOCHS = 1_000_000  # largest valid number of epochs
MAX_NUMBER = 1e30  # largest valid number for any setting, since larger numbers could overflow float32


@dataclass(frozen=True)
class EarlierName:
    """A former name of a setting, which is still accepted in flags, configs and stored runs."""

    name: str
    hint: Any  # type hint of the values that are valid with this name
    # Current value for each former value that was renamed too; other values are unchanged
    values: Mapping[Any, Any] = field(default_factory=dict)


def option(  # noqa: PLR0913 (a declaration passes only a few of the arguments, by name)
    help: str,
    default: Any = CHOSEN_BY_RULE,
    *,
    group: str | None = None,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    or_zero: bool = False,
    chosen: bool = False,
    earlier: EarlierName | None = None,
) -> Any:
    """Declare a setting: return a dataclass field.

    Args:
        help: Description that `--help` shows.
        default: Default value, which may be a list; None if a rule chooses the value.
        group: Heading of the setting in `--help`; None for the heading of its class (see `help_heading`).
        low: Smallest valid number, or smallest valid entry of a list.
        high: Largest valid number, or largest valid entry of a list.
        above: Exclusive lower bound of a number; replaces `low`.
        or_zero: Whether 0, meaning "none", is valid although it lies below `low`.
        chosen: Whether a rule may choose a value even though the type allows None.
        earlier: Former name of the setting; None if the setting was not renamed.
    """
    bounds = {"low": low, "high": high, "above": above, "or_zero": or_zero}
    metadata = {"help": help, "group": group, "chosen": chosen, "earlier": earlier, **bounds}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def default_of(item: Field) -> Any:
    """Return the default value of a setting."""
    return item.default if item.default_factory is MISSING else item.default_factory()


def setting_fields(settings: type | object) -> dict[str, Field]:
    """Return the dataclass fields of a settings object or class, by name."""
    return {item.name: item for item in fields(settings)}  # type: ignore[arg-type]


def help_heading(settings: type, name: str) -> str:
    """Return the heading of a setting in `--help`: its `group`, else `help_group` of its class, else "training"."""
    declaring_class = next(base for base in settings.__mro__ if name in get_annotations(base))
    return setting_fields(settings)[name].metadata["group"] or vars(declaring_class).get("help_group", "training")


def rule_chosen_names(settings: type) -> frozenset[str]:
    """Return the names of the settings for which a rule chooses a value unless the user gives one."""
    hints = get_type_hints(settings)
    return frozenset(
        name
        for name, item in setting_fields(settings).items()
        if item.metadata["chosen"] or (item.default is CHOSEN_BY_RULE and type(None) not in get_args(hints[name]))
    )


def earlier_names(settings: type) -> dict[str, tuple[str, EarlierName]]:
    """Return (current name, `EarlierName`) for each renamed setting, by its former name."""
    earlier_by_name = {name: item.metadata["earlier"] for name, item in setting_fields(settings).items()}
    return {earlier.name: (name, earlier) for name, earlier in earlier_by_name.items() if earlier is not None}


def with_current_names(values: Mapping[str, Any], settings: type) -> dict[str, Any]:
    """Return the values of settings by name, with former names and values replaced by the current ones."""
    current, renamed_settings = {}, earlier_names(settings)
    for given_name, value in values.items():
        name, earlier_name = renamed_settings.get(given_name, (given_name, None))
        if name in current or (earlier_name is not None and name in values):
            raise UserError(f"{flag(given_name)} is an earlier name of {flag(name)}: remove one of the two flags.")
        current[name] = value if earlier_name is None else earlier_name.values.get(value, value)
    return current


def with_earlier_names(values: Mapping[str, Any], settings: type) -> dict[str, Any]:
    """Return values with the former names and values of renamed settings, so that hashes of settings stay the same."""
    renamed, earlier_by_name = dict(values), dict(earlier_names(settings).values())
    for name in earlier_by_name.keys() & values.keys():
        value, earlier = renamed.pop(name), earlier_by_name[name]
        renamed[earlier.name] = next((old for old, new in earlier.values.items() if new == value), value)
    return renamed


def flag(name: str) -> str:
    """Return the command-line flag of a setting, such as `--batch-size` for `batch_size`."""
    return "--" + name.replace("_", "-")


def flag_words(name: str, value: Any) -> list[str]:
    """Return the command-line words that give a setting its value.

    Example:
        >>> flag_words("img_size", [32, 48]), flag_words("compile", True), flag_words("eval_mode", False)
        (['--img-size', '32', '48'], ['--compile'], ['--no-eval-mode'])
    """
    if value is False:
        return [flag(f"no_{name}")]
    values = value if isinstance(value, list) else [value]
    return [flag(name), *([] if value is True else map(str, values))]


def require_known(setting: str, value: str, table: Mapping[str, object]) -> str:
    """Return the value of a setting if it is a key of a table; raise a UserError otherwise."""
    if value not in table:
        similar = difflib.get_close_matches(value, table, n=1)
        hint = f"; did you mean {similar[0]!r}?" if similar else "."
        raise UserError(f"{flag(setting)}: {value!r} is unknown, expected one of {', '.join(table)}{hint}")
    return value


def check_ranges(settings: object) -> None:
    """Raise a UserError for the first setting that is a number out of range or an empty text."""
    for name, item in setting_fields(settings).items():
        value, bounds = getattr(settings, name), item.metadata
        refuse_empty_text(flag(name), value)
        if isinstance(value, list) and bounds["low"] is not None:
            for entry in value:
                if not bounds["low"] <= entry <= bounds["high"]:
                    raise UserError(
                        f"{flag(name)} has {entry}, expected whole numbers from {bounds['low']} to {bounds['high']}."
                    )
        elif isinstance(value, int | float) and not isinstance(value, bool):
            _check_number(name, value, bounds)
    check_size(getattr(settings, "img_size", None))


def refuse_unsupported(settings: object, names: Iterable[str], task: str) -> None:
    """Raise a UserError for the first setting in `names` that is not the default; `task` is a noun for the message."""
    declared = setting_fields(settings)
    for name in names:
        if getattr(settings, name) != default_of(declared[name]):
            raise UserError(f"{flag(name)} is not supported for {task}: remove {flag(name)}.")


def refuse_empty_text(name: str, value: object) -> None:
    """Raise a UserError for an empty text or a list with an empty text, as an unset shell variable produces."""
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and not text.strip():
            alternative = f", or leave {name} out" if name.startswith("-") else ""
            raise UserError(f"{name} is empty: give a value{alternative}.")


def _check_number(name: str, value: float, bounds: Mapping[str, Any]) -> None:
    """Raise a UserError for a number out of range, including an integer that is too large for a float."""
    low, high, above = bounds["low"], bounds["high"], bounds["above"]
    if above is not None and not above < value <= MAX_NUMBER:
        raise UserError(f"{flag(name)} is {value}, expected a number above {above:g}, at most {MAX_NUMBER:g}.")
    if low is None or (bounds["or_zero"] and value == 0):
        return
    if low <= value < math.inf and value <= (MAX_NUMBER if high is None else high):
        return
    if high is None:
        text = f"at most {MAX_NUMBER:g}" if value > MAX_NUMBER else f"at least {low:g}"
    else:
        text = f"between {_format_number(low)} and {_format_number(high)}"
    raise UserError(f"{flag(name)} is {value}, expected {'0 for none or ' * bounds['or_zero']}a number {text}.")


def _format_number(number: float) -> str:
    return f"{number:,}" if number >= 10_000 else f"{number:g}"


def check_size(size: Sequence[int] | None) -> None:
    """Raise a UserError for an invalid `--img-size`."""
    if size is None:
        return
    if len(size) not in (1, 2) or not all(8 <= side <= MAX_SIDE for side in size):
        text = " ".join(map(str, size))
        raise UserError(
            f"--img-size is {text!r}, expected one side or height and width, each from 8 to {MAX_SIDE} pixels."
        )


def list_origins(settings: object, origins: Mapping[str, str], reasons: Mapping[str, str]) -> dict[str, str]:
    """Return the origin of each setting: "auto: REASON", the entry in `origins` ("flag" or "config"), or "default"."""
    return {
        name: automatic_origin(reasons[name]) if name in reasons else origins.get(name, "default")
        for name in vars(settings)
    }


def automatic_origin(reason: str) -> str:
    """Return the origin of a setting that the run chose for a reason."""
    return f"auto: {reason}"


def is_automatic(origin: str) -> bool:
    """Return whether the run chose the setting that has this origin."""
    return origin.startswith("auto: ")
