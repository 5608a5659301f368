"""The flags of every verb, read from its own parser: a new verb or flag is tried without a word here."""

import argparse
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from paucal.cli.arguments import capture_parser
from paucal.cli.main import COMMAND_SUMMARIES, load_command


@dataclass(frozen=True)
class Flag:
    """One argument of a verb.

    Attributes:
        name: with its dashes; "" for a positional argument.
        kinds: what one value may be: int, float, str, bool (a switch), and words for those of a Literal.
        words: of a Literal.
        several: whether it takes several values.
    """

    name: str
    kinds: tuple[type, ...]
    words: tuple[str, ...] = ()
    several: bool = False


@cache
def flags_of(verb: str) -> tuple[Flag, ...]:
    """Return the flags of a verb, without --help and without the hidden --no-... of those that are false at first."""
    parser = capture_parser(load_command(verb))
    shown = [action for action in parser._actions if not (action.nargs == 0 and action.help == argparse.SUPPRESS)]
    return tuple(_flag(action, parser.hints) for action in shown if action.dest != "help")


@cache
def spellings_of(verb: str) -> frozenset[str]:
    """Return all spellings of the flags of a verb, such as `-b` and `--batch-size`."""
    parser = capture_parser(load_command(verb))
    return frozenset(spelling for action in parser._actions for spelling in action.option_strings)


@cache
def named_flags() -> tuple[tuple[str, Flag], ...]:
    """Return every (verb, flag) with a name."""
    return tuple((verb, flag) for verb in COMMAND_SUMMARIES for flag in flags_of(verb) if flag.name)


def _flag(action: Any, hints: dict[str, Any]) -> Flag:
    name = max((text for text in action.option_strings if text != "--image-size"), key=len, default="")
    if action.nargs == 0:
        return Flag(name, (bool,))
    kinds, words = _parts(hints.get(action.dest, str))
    return Flag(name, tuple(kinds), tuple(words), action.nargs in ("+", "*"))


def _parts(hint: Any) -> tuple[list[type], list[str]]:
    if typing.get_origin(hint) is typing.Literal:
        return [], [str(word) for word in typing.get_args(hint)]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [_parts(member) for member in typing.get_args(hint)]
        return [kind for kinds, _ in parts for kind in kinds], [word for _, words in parts for word in words]
    if typing.get_origin(hint) is list:
        return _parts(typing.get_args(hint)[0])
    return ([] if hint is type(None) else [hint]), []


def flag_names(verb: str) -> Sequence[str]:
    """Return the names of a verb's flags."""
    return [flag.name for flag in flags_of(verb) if flag.name]
