"""Which runs are meant, and in which order."""

import fnmatch
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from paucal.types import UserError
from paucal.verbs.runs.rows import ListedRun
from paucal.wording import did_you_mean

_CONDITION = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)\s*(!=|>=|<=|=|>|<)\s*(.+)", re.DOTALL)
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
HEADINGS = ("run", "state", "verb", "method", "val", "test", "time", "size", "changed", "deletable")


def matching(runs: Sequence[ListedRun], conditions: Sequence[str]) -> list[ListedRun]:
    """Return the runs of which all conditions hold; a run that lacks what is asked for does not match.

    Args:
        runs: Runs to choose from.
        conditions: NAME and VALUE with one of = != > < >= <= between; after = and != a word may have wildcards.

    Raises:
        UserError: a condition cannot be read, or names what no run has.
    """
    for condition in conditions:
        holds = _test(condition, runs)
        runs = [run for run in runs if holds(run)]
    return list(runs)


def ordered(runs: Sequence[ListedRun], by: str) -> list[ListedRun]:
    """Return runs in order of one of their values, with a "-" before it the largest first; runs without it come last.

    Raises:
        UserError: no run has such a value.
    """
    name, reverse = by.removeprefix("-").replace("-", "_"), by.startswith("-")
    require_known(name, runs, "--sort")
    have = [run for run in runs if run.value(name) is not None]
    numbers = all(_is_number(run.value(name)) for run in have)
    have.sort(key=lambda run: run.value(name) if numbers else str(run.value(name)), reverse=reverse)
    return have + [run for run in runs if run.value(name) is None]


def require_known(name: str, runs: Sequence[ListedRun], flag: str) -> None:
    """Refuse a name that no run has a value for.

    Raises:
        UserError: it is none.
    """
    known = {*HEADINGS, *(key for run in runs for key in (*run.settings, *run.summary))}
    if runs and name not in known:
        raise UserError(f"{flag}: no run has {name!r}{did_you_mean(name, known)}; expected a heading or a setting.")


def _test(condition: str, runs: Sequence[ListedRun]) -> Callable[[ListedRun], bool]:
    found = _CONDITION.fullmatch(condition.strip())
    if found is None:
        raise UserError(f"--where: expected conditions such as 'method=drloc' or 'test>0.9', got {condition[:80]!r}.")
    name, sign, wanted = found[1].replace("-", "_"), found[2], found[3].strip()
    require_known(name, runs, "--where")
    if sign in ("=", "!="):
        return lambda run: _equals(run.value(name), wanted) == (sign == "=")
    try:
        bound = float(wanted)
    except ValueError:
        raise UserError(f"--where: {condition[:80]!r} compares with {wanted[:40]!r}, which is no number.") from None
    return lambda run: _is_number(value := run.value(name)) and _ORDER[sign](value, bound)


def _equals(value: Any, wanted: str) -> bool:
    if _is_number(value):
        try:
            return float(wanted) == value
        except ValueError:
            return False
    words = " ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)
    return fnmatch.fnmatchcase(words.lower(), wanted.lower())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
