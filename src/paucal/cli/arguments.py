"""Flags from a settings dataclass, and errors of the command line as one sentence."""

import re
import typing
from argparse import SUPPRESS, Action
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import Field, fields
from itertools import zip_longest
from typing import Any, TypeVar

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from paucal.cli.config import read_config
from paucal.reading import named_path
from paucal.settings.chosen import CHOSEN
from paucal.settings.options import flag, refuse_empty, setting_fields
from paucal.settings.values import KINDS, expectation, got, without_none
from paucal.types import UserError
from paucal.wording import did_you_mean

S = TypeVar("S")
ALIASES = {
    "-b": "--batch-size",
    "-j": "--workers",
    "--imgsz": "--img-size",
    "--out": "--output",
    "--ema": "--average",
    "--monitor-data": "--monitor",  # torchrun takes the shorter name for the beginning of one of its own
}


CHOICE = "chosen: from the images and the machine; a run prints its choices with their reasons."


NUMBERS = {int: "INT", float: "FLOAT"}
# What a text stands for, where the last word of its flag does not say it.
TEXTS = {
    **dict.fromkeys(("output", "cache", "pictures"), "PATH"),
    **dict.fromkeys(("config", "classes", "split", "sheet", "picture", "real_labels"), "FILE"),
    **dict.fromkeys(("time", "time_limit"), "DURATION"),
    "data_root": "FOLDER",
    "group_by": "RULE",
}


class PlainHelp(DefaultHelpFormatter):
    """Help with the placeholder, the description and the default of each option, without Python's type names."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=110)
        self._chosen = CHOSEN.get(prog.rpartition(" ")[2], frozenset())

    def add_usage(self, usage: Any, actions: Iterable[Action], groups: Any, prefix: Any = None) -> None:
        """Show a short usage line; the flags, up to a hundred, are listed below."""
        words = [_usage_of(action) for action in actions if not action.option_strings]
        super().add_usage(" ".join(("%(prog)s", *words, "[--flags]")), [], [], prefix)

    def _get_help_string(self, action) -> str:
        text = action.help or ""
        if action.default is None and action.dest in self._chosen:
            return f"{text} (default: chosen)"
        if action.default in (None, False, SUPPRESS) or not action.option_strings:
            return text
        default = " ".join(action.default) if isinstance(action.default, list) else action.default
        return f"{text} (default: {default})"


class ParserShown(BaseException):
    """Carries a parser out of a verb that is called within `showing_parsers`; not an Exception, so it is not caught.

    Attributes:
        parser: Parser with all its arguments.
    """

    def __init__(self, parser: ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


_showing: ContextVar[bool] = ContextVar("showing", default=False)


@contextmanager
def showing_parsers() -> Iterator[None]:
    """Let every verb that is called within raise `ParserShown` with its parser instead of running."""
    token = _showing.set(True)
    try:
        yield
    finally:
        _showing.reset(token)


def _usage_of(action: Action) -> str:
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    forms = {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]"}
    return forms.get(str(action.nargs), name)


class VerbParser(ArgumentParser):
    """A parser that knows the types of its settings.

    Attributes:
        hints: Type of each setting by its name.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.hints: dict[str, Any] = {}


def new_parser(verb: str, description: str) -> VerbParser:
    """Return a parser that raises instead of exiting."""
    return VerbParser(
        allow_abbrev=False,
        prog=f"paucal {verb}",
        description=description,
        epilog=CHOICE if verb in CHOSEN else None,
        formatter_class=PlainHelp,
        exit_on_error=False,
        print_config=None,  # paucal's own also prints the chosen settings
    )


def add_settings(parser: VerbParser, settings: type, skip: Sequence[str] = ()) -> None:
    """Add one flag per field of a settings dataclass, under the fields' headings."""
    hints = typing.get_type_hints(settings)
    groups: dict[str, Any] = {}
    for item in fields(settings):
        if item.name in skip:
            continue
        parser.hints[item.name] = hints[item.name]
        heading = item.metadata["group"]
        group = (
            groups.setdefault(heading, parser.add_argument_group(heading)) if heading not in groups else groups[heading]
        )
        _add_flag(group, item, hints[item.name])


def settings_among(values: Namespace, kind: type[S]) -> S:
    """Return the settings of a kind among all values of a verb."""
    return kind(**{name: getattr(values, name) for name in setting_fields(kind) if hasattr(values, name)})


def parse_run(
    verb: str, description: str, settings: type, argv: Sequence[str]
) -> tuple[Namespace, dict[str, str], dict[str, Any]]:
    """Parse the arguments of a verb that makes a run: one flag per setting, and what all runs have in common.

    Returns:
        All values, the origin of each that was given, and the settings among those.

    Raises:
        UserError: as `parse` does.
    """
    parser, known = new_parser(verb, description), {item.name: item for item in fields(settings)}
    add_data(parser, known["data"].metadata["help"])
    parser.add_argument(
        "--resume",
        nargs="?",
        const="runs",
        type=str | None,
        metavar="RUN",
        help="resume a stopped run; give DATA if its images have moved",
    )
    parser.hints["print_config"] = bool
    parser.add_argument("--print-config", action="store_true", help="print all settings with their reasons, and stop")
    add_settings(parser, settings, skip=["data"])
    values, given = parse(parser, argv)
    if given.pop("subject", None):
        if given.get("data") == "flag" and values.data != values.subject:
            raise UserError(f"DATA is {values.subject!r} and --data is {values.data!r}: give one of them.")
        values.data, given["data"] = values.subject, "flag"
    return values, given, {name: getattr(values, name) for name in given if name in known}


def add_data(parser: VerbParser, help_of_data: str) -> None:
    """Add DATA under both of its names, and `--config`."""
    parser.hints |= {"data": str, "resume": str, "config": str}
    # Two names for one value: a missing positional argument would hide the value of a config.
    parser.add_argument("subject", nargs="?", type=str | None, metavar="DATA", help=help_of_data)
    parser.add_argument("--data", type=str | None, metavar="DATA", help="the same, as in a config")
    parser.add_argument(
        "--config", type=str | None, metavar=TEXTS["config"], help="YAML file of settings; flags win over it"
    )


def _add_flag(group: Any, item: Field, hint: Any) -> None:
    flags = [flag(item.name), *(short for short, long in ALIASES.items() if long == flag(item.name))]
    keywords: dict[str, Any] = {"help": item.metadata["help"], "default": item.default}
    inner = without_none(hint)
    if inner is bool:
        keywords["action"] = "store_true"
    elif typing.get_origin(inner) is list:
        of = typing.get_args(inner)[0]
        keywords |= {"nargs": "+", "type": of, "metavar": NUMBERS.get(of) or _metavar(item.name)}
    else:
        keywords |= {"type": hint, "metavar": _choices(inner) or NUMBERS.get(inner) or _metavar(item.name)}
    group.add_argument(*flags, **keywords)


def _metavar(name: str) -> str:
    return TEXTS.get(name) or name.rsplit("_", 1)[-1].upper()


def _choices(hint: Any) -> str | None:
    members = [hint, *typing.get_args(hint)] if typing.get_origin(hint) is not typing.Literal else [hint]
    words = [w for m in members if typing.get_origin(m) is typing.Literal for w in typing.get_args(m)]
    words += [NUMBERS[kind] for kind in (int, float) if words and kind in members]
    return "{" + ",".join(map(str, words)) + "}" if words else None


def parse(parser: VerbParser, argv: Sequence[str]) -> tuple[Namespace, dict[str, str]]:
    """Parse arguments and an optional `--config` file.

    Returns:
        All values, and for each value that was given its origin, "config" or "flag".

    Raises:
        UserError: an unknown flag or key, or a value of the wrong kind.
    """
    if _showing.get():
        raise ParserShown(parser)
    arguments = [_canonical(word) for word in argv]
    config = _config_of(parser, arguments)
    try:
        values, flags = parser.parse_args(arguments), parser.parse_args(arguments, defaults=False)
    except Exception as problem:  # argparse and jsonargparse raise several types
        raise UserError(_sentence(parser, str(problem))) from problem
    flagged = [name for name, value in vars(flags).items() if name != "config" and value is not None]
    for name in config.keys() - set(flagged):
        setattr(values, name, config[name])
    _refuse_odd_words(parser, values)
    return values, {**dict.fromkeys(config, "config"), **dict.fromkeys(flagged, "flag")}


def _refuse_odd_words(parser: ArgumentParser, values: Namespace) -> None:
    positional = [action for action in parser._actions if not action.option_strings]
    shown = {action.dest: action.metavar or action.dest.upper() for action in positional}
    for name, value in vars(values).items():
        refuse_empty(str(shown.get(name, flag(name))), value)
        for word in value if isinstance(value, list) else [value]:
            if isinstance(word, str) and word.startswith("~"):
                named_path(word, flag(name))


def _config_of(parser: VerbParser, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the settings of the `--config` files; later files override earlier ones."""
    config: dict[str, Any] = {}
    for word, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name == "--config" and "config" in parser.hints:
            config |= read_config(value if equals else following, parser.hints, parser.prog.split()[-1])
    return config


def _canonical(word: str) -> str:
    """Accept underscores in the names of flags."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _sentence(parser: ArgumentParser, message: str) -> str:
    """Return a parser's message as one sentence with advice."""
    help_hint = f"see '{parser.prog} --help'."
    known = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
    if found := re.search(r"unrecognized arguments: (.*)", message):
        words = found[1].split() or [""]  # as of two empty words
        return f"unknown argument {words[0]!r}{did_you_mean(words[0], known)}; {help_hint}"
    if found := re.search(r"Option '([^']*)' is not accepted", message):
        near = did_you_mean(found[1], [option.lstrip("-").replace("-", "_") for option in known])
        return f"unknown key {found[1]!r} in the config{near}; {help_hint}"
    if found := re.search(r'Parser key "([^"]*)"', message):
        value = re.search(r"(?:Given value: |Got value: )(.*)", message)
        return f"{_as_given(parser, found[1])}: {_expectation(parser, found[1], message)}{_got(value)}; {help_hint}"
    return f"{' '.join(message.split())}; {help_hint}"


def _as_given(parser: ArgumentParser, key: str) -> str:
    """Return an argument as it is typed: as a flag, or in capitals for positional ones."""
    return next((key.upper() for one in parser._actions if one.dest == key and not one.option_strings), flag(key))


def _expectation(parser: ArgumentParser, key: str, message: str) -> str:
    if "File does not exist" in message:
        return "there is no such file: " + message.rpartition("File does not exist: ")[2]
    kinds = [kind for kind in KINDS if kind is not str and str(kind) in message]  # any word is text
    literal = re.search(r"typing\.Literal\[([^\]]*)\]", message)
    return expectation(kinds, literal[1] if literal else "")


def _got(value: re.Match[str] | None) -> str:
    return got(value[1]) if value else ""
