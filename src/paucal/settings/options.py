"""Settings: fields of frozen dataclasses, each with a flag and a key in configs.

A field with the default `AUTO` (None) and a type without None is filled by a rule, with a reason: after
`rules.resolve.resolve` it has a value. If a field's type allows None, None is a valid value.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, get_args, get_type_hints

from paucal.types import UserError

AUTO = None
USUAL_SIDE = 224  # default image size in pixels
MAX_SIDE = 4096
MAX_COUNT = 10**9  # limit of counts of images; numbers beyond 64 bits would overflow
MAX_EPOCHS = 1_000_000
LARGEST = 1e30  # limit of all numbers: larger ones could overflow float32


@dataclass(frozen=True)
class EarlierName:
    """A former name of a setting, which stays valid in flags, configs and stored runs.

    Attributes:
        values: Current value for each earlier value; other values are unchanged.
    """

    name: str
    hint: Any
    values: Mapping[Any, Any] = field(default_factory=dict)


def option(  # noqa: PLR0913 (each is a word of its own in a declaration)
    help: str,
    default: Any = AUTO,
    *,
    group: str = "training",
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    or_zero: bool = False,
    chosen: bool = False,
    earlier: EarlierName | None = None,
) -> Any:
    """Declare a setting.

    Args:
        help: Description in one line.
        default: Default value; None to choose it from the data.
        group: Heading in the help.
        low: Smallest number, or smallest entry of a list.
        high: Largest number or entry.
        above: Bound that it must exceed.
        or_zero: Whether 0 is allowed too, for "none".
        chosen: Whether a rule may choose a value although the type allows None.
        earlier: Name that the setting had before.
    """
    bounds = {"low": low, "high": high, "above": above, "or_zero": or_zero}
    metadata = {"help": help, "group": group, "chosen": chosen, "earlier": earlier, **bounds}
    return field(default=default, metadata=metadata)


def setting_fields(settings: type | object) -> dict[str, Field]:
    """Return the fields of settings, or of a class of settings, by name."""
    return {item.name: item for item in fields(settings)}  # type: ignore[arg-type]


def chosen_settings(settings: type) -> frozenset[str]:
    """Return the names of the settings that a rule chooses if they are not given."""
    hints = get_type_hints(settings)
    return frozenset(
        name
        for name, item in setting_fields(settings).items()
        if item.metadata["chosen"] or (item.default is AUTO and type(None) not in get_args(hints[name]))
    )


def earlier_names(settings: type) -> dict[str, tuple[str, EarlierName]]:
    """Return today's name and the description of each earlier name of a setting."""
    earlier_by_name = {name: item.metadata["earlier"] for name, item in setting_fields(settings).items()}
    return {earlier.name: (name, earlier) for name, earlier in earlier_by_name.items() if earlier is not None}


def with_current_names(values: Mapping[str, Any], settings: type) -> dict[str, Any]:
    """Return values by the settings' current names."""
    current, new_name_of = {}, earlier_names(settings)
    for given_name, value in values.items():
        name, earlier_name = new_name_of.get(given_name, (given_name, None))
        if name in current or (earlier_name is not None and name in values):
            raise UserError(f"{flag(given_name)} is an earlier name of {flag(name)}: give one of them.")
        current[name] = value if earlier_name is None else earlier_name.values.get(value, value)
    return current


def with_earlier_names(values: Mapping[str, Any], settings: type) -> dict[str, Any]:
    """Return values by the original names of renamed settings, so that hashes of stored settings stay the same."""
    renamed, first = dict(values), dict(earlier_names(settings).values())
    for name in first.keys() & values.keys():
        value, earlier = renamed.pop(name), first[name]
        renamed[earlier.name] = next((old for old, new in earlier.values.items() if new == value), value)
    return renamed


def flag(name: str) -> str:
    """Return the flag of a setting.

    Example:
        >>> flag("batch_size")
        '--batch-size'
    """
    return "--" + name.replace("_", "-")


def flag_words(name: str, value: Any) -> list[str]:
    """Return a setting's flag with its value, as it is typed.

    Example:
        >>> flag_words("img_size", [32, 48]), flag_words("compile", True), flag_words("eval_mode", False)
        (['--img-size', '32', '48'], ['--compile'], ['--no-eval-mode'])
    """
    if value is False:
        return [flag(f"no_{name}")]
    values = value if isinstance(value, list) else [value]
    return [flag(name), *([] if value is True else map(str, values))]


def check_ranges(settings: object) -> None:
    """Raise a UserError for the first number out of its setting's range, or the first empty word."""
    for name, item in setting_fields(settings).items():
        value, bounds = getattr(settings, name), item.metadata
        refuse_empty(flag(name), value)
        if isinstance(value, list):
            _check_entries(name, value, bounds)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            _check_number(name, value, bounds)
    check_size(getattr(settings, "img_size", None))


def refuse_empty(name: str, value: object) -> None:
    """Raise a UserError for an empty word or a list with one, such as an unset shell variable."""
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and not text.strip():
            or_none = f", or leave {name} out" if name.startswith("-") else ""
            raise UserError(f"{name} is empty: give a value{or_none}.")


def _check_entries(name: str, values: list, bounds: Mapping[str, Any]) -> None:
    low, high = bounds["low"], bounds["high"]
    for value in values if low is not None else ():
        if not low <= value <= high:
            raise UserError(f"{flag(name)} has {value}, expected whole numbers from {low} to {high}.")


def _check_number(name: str, value: float, bounds: Mapping[str, Any]) -> None:
    """Raise a UserError for a number out of range; integers may be too large for a float."""
    low, high, above = bounds["low"], bounds["high"], bounds["above"]
    if above is not None and not above < value <= LARGEST:
        raise UserError(f"{flag(name)} is {value}, expected a number above {above:g}, at most {LARGEST:g}.")
    if low is None or (bounds["or_zero"] and value == 0):
        return
    if low <= value < math.inf and value <= (LARGEST if high is None else high):
        return
    if high is None:
        text = f"at most {LARGEST:g}" if value > LARGEST else f"at least {low:g}"
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
