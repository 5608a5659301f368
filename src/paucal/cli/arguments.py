"""Command-line flags from the fields of settings dataclasses, and parsing of arguments and `--config` files."""

import typing
from argparse import SUPPRESS, Action, ArgumentParser, BooleanOptionalAction, HelpFormatter, Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import Field, fields
from itertools import zip_longest
from typing import Any, NamedTuple, NoReturn, TypeVar

from paucal.cli.config import read_config
from paucal.cli.given_flags import FLAG_ALIASES, note_given_flags
from paucal.reading import expand_user_path
from paucal.settings.options import (
    default_of,
    earlier_names,
    flag,
    help_heading,
    refuse_empty_text,
    rule_chosen_names,
    setting_fields,
    with_current_names,
)
from paucal.settings.values import convert_setting, strip_none
from paucal.types import UserError
from paucal.wording import did_you_mean

S = TypeVar("S")
_MISSING = object()
CHOSEN_NOTE = "'chosen': chosen from the images and the machine; a run prints the values with their reasons."
NUMBER_PLACEHOLDERS = {int: "INT", float: "FLOAT"}
# Placeholders for text values in the help; other flags use the last word of their name as placeholder.
TEXT_PLACEHOLDERS = {
    **dict.fromkeys(("output", "cache", "pictures"), "PATH"),
    **dict.fromkeys(("config", "classes", "split", "sheet", "picture", "real_labels"), "FILE"),
    **dict.fromkeys(("time", "time_limit", "hang_after"), "DURATION"),
    "data_root": "FOLDER",
    "group_by": "RULE",
}


class HelpWithDefaults(HelpFormatter):
    """Help formatter with a short usage line; each flag has a placeholder, a description and its default value."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=110)

    def add_usage(self, usage: Any, actions: Iterable[Action], groups: Any, prefix: Any = None) -> None:
        """Add a usage line without the flags, since there may be a hundred flags."""
        usages = [_positional_usage(action) for action in actions if not action.option_strings]
        super().add_usage(" ".join(("%(prog)s", *usages, "[--flags]")), [], [], prefix)

    def _expand_help(self, action: Action) -> str:
        """Return the help text followed by the default value; unlike argparse, without expanding % formats."""
        text = action.help or ""
        if getattr(action, "chosen", False):
            return f"{text} (default: chosen)"
        if action.default in (None, False, [], SUPPRESS) or not action.option_strings:
            return text
        default = " ".join(action.default) if isinstance(action.default, list) else action.default
        return f"{text} (default: {default})"


class CommandParser(ArgumentParser):
    """Argument parser of one command, which raises a UserError instead of exiting.

    All values are first parsed as text and then converted by `values.convert_setting`, as for Python calls and configs.

    Attributes:
        hints: Type hint of each argument, by name.
        flag_only_names: Names of arguments that are not allowed in a config.
        settings_types: Settings dataclasses whose fields are flags of the command.
    """

    def __init__(self, verb: str, description: str) -> None:
        super().__init__(
            f"paucal {verb}", description=description, formatter_class=HelpWithDefaults, allow_abbrev=False
        )
        self.hints: dict[str, Any] = {}
        self.flag_only_names = {"config"}
        self.settings_types: list[type] = []

    def add_argument(self, *names: Any, **options: Any) -> Action:
        """Add an argument; the help shows positional arguments in capitals."""
        display = {} if names[0].startswith("-") else {"metavar": names[0].upper()}
        return super().add_argument(*names, **(display | options))

    @property
    def verb(self) -> str:
        """The name of the command, such as "train"."""
        return self.prog.split()[-1]

    def error(self, message: str) -> NoReturn:
        """Raise a UserError with the message and a pointer to `--help`."""
        raise UserError(f"{' '.join(message.split())}; see '{self.prog} --help'.")


class ParserCaptured(BaseException):
    """Raised within `capturing_parsers` instead of running a command; carries the command's parser.

    The class derives from BaseException so that no `except Exception` catches it.
    """

    def __init__(self, parser: CommandParser) -> None:
        super().__init__()
        self.parser = parser


_is_capturing: ContextVar[bool] = ContextVar("is_capturing", default=False)


@contextmanager
def capturing_parsers() -> Iterator[None]:
    """Within the block, make every command raise `ParserCaptured` with its parser instead of running."""
    token = _is_capturing.set(True)
    try:
        yield
    finally:
        _is_capturing.reset(token)


def _positional_usage(action: Action) -> str:
    patterns = {"?": "[{0}]", "*": "[{0} ...]", "+": "{0} [{0} ...]"}
    return patterns.get(str(action.nargs), "{0}").format(action.metavar)


def add_settings(parser: CommandParser, settings: type, skip: Sequence[str] = ()) -> None:
    """Add a flag for each field of a settings dataclass that is not in `skip`, under the field's heading."""
    hints, chosen_names = typing.get_type_hints(settings), rule_chosen_names(settings)
    groups: dict[str, Any] = {}
    parser.settings_types.append(settings)
    for item in fields(settings):
        if item.name in skip:
            continue
        parser.hints[item.name] = hints[item.name]
        heading = help_heading(settings, item.name)
        if heading not in groups:
            groups[heading] = parser.add_argument_group(heading)
        action = _add_flag(groups[heading], item, hints[item.name], item.name in chosen_names)
        # A help text that contains "by default" already explains which value is chosen.
        action.chosen = item.name in chosen_names and "by default" not in action.help
        if action.chosen:
            parser.epilog = CHOSEN_NOTE
    for name, (_, earlier_name) in earlier_names(settings).items():
        parser.hints[name] = earlier_name.hint
        parser.add_argument(flag(name), help=SUPPRESS)


def build_settings(values: Namespace, settings_type: type[S]) -> S:
    """Build an instance of a settings dataclass from the parsed values of a command."""
    names = (name for name in setting_fields(settings_type) if hasattr(values, name))
    return settings_type(**{name: getattr(values, name) for name in names})


def parse_with_settings(
    parser: CommandParser, settings_type: type[S], argv: Sequence[str], skip: Sequence[str] = ()
) -> tuple[Namespace, S]:
    """Add a flag for each setting that is not in `skip`, and parse; return all values, and the settings."""
    add_settings(parser, settings_type, skip)
    values, _ = parse_arguments(parser, argv)
    return values, build_settings(values, settings_type)


class ParsedRun(NamedTuple):
    """The parsed arguments of a training command.

    Attributes:
        values: All values.
        given_origins: Origin ("flag" or "config") of each value that the user gave.
        given_settings: Settings that the user gave, by name.
    """

    values: Namespace
    given_origins: dict[str, str]
    given_settings: dict[str, Any]


def parse_run_arguments(verb: str, description: str, settings: type, argv: Sequence[str]) -> ParsedRun:
    """Parse a flag for each setting, and the arguments that all training commands have."""
    parser, fields_by_name = CommandParser(verb, description), {item.name: item for item in fields(settings)}
    add_data_arguments(parser, fields_by_name["data"].metadata["help"])
    parser.add_argument(
        "--resume",
        nargs="?",
        const="runs",
        metavar="RUN",
        help="resume a stopped run, by default the newest; give DATA if its images have been moved",
    )
    parser.hints["print_config"] = bool
    parser.add_argument("--print-config", action="store_true", help="print all settings with their reasons, and stop")
    _add_machine_flags(parser)
    add_settings(parser, settings, skip=["data"])
    values, given = parse_arguments(parser, argv)
    if given.pop("subject", None):
        if given.get("data") == "flag" and values.data != values.subject:
            raise UserError(f"DATA is {values.subject!r} and --data is {values.data!r}: remove DATA or --data.")
        values.data, given["data"] = values.subject, "flag"
    return ParsedRun(values, given, {name: getattr(values, name) for name in given if name in fields_by_name})


def _add_machine_flags(parser: CommandParser) -> None:
    clusters, scripts = typing.Literal["slurm", "ray"], typing.Literal["slurm", "kuberay"]
    parser.hints |= {"on": clusters, "slurm": list[str], "print_script": scripts}
    # If these flags were allowed in a config, the command that runs on the cluster would start another job.
    parser.flag_only_names |= {"on", "slurm", "print_script"}
    group = parser.add_argument_group("elsewhere")
    text = "run as a SLURM job or on a Ray cluster; resumed automatically when machines are lost"
    group.add_argument("--on", metavar=_format_choices(clusters), help=text)
    text = "options of the SLURM job by submitit's names, such as slurm_partition=gpu timeout_min=600"
    group.add_argument("--slurm", nargs="+", metavar="NAME=VALUE", help=text)
    text = "print a script for a run on a cluster, and stop"
    group.add_argument("--print-script", metavar=_format_choices(scripts), help=text)


def add_data_arguments(parser: CommandParser, data_help: str) -> None:
    """Add `--config`, and DATA as a positional argument and as a flag."""
    parser.hints |= {"data": str, "resume": str, "config": str}
    # The positional argument is not called "data": if it were missing, its default would override DATA of a config.
    parser.add_argument("subject", nargs="?", metavar="DATA", help=data_help)
    parser.add_argument("--data", metavar="DATA", help="same as DATA; its name in a config")
    parser.add_argument(
        "--config", metavar=TEXT_PLACEHOLDERS["config"], help="YAML file of settings; flags take precedence"
    )


def _add_flag(group: Any, item: Field, hint: Any, chosen: bool) -> Any:
    flags = [flag(item.name), *(short for short, long in FLAG_ALIASES.items() if long == flag(item.name))]
    keywords: dict[str, Any] = {"help": item.metadata["help"], "default": default_of(item)}
    inner = strip_none(hint)
    if inner is bool:
        if chosen:  # the help shows both --x and --no-x, since a rule may choose either value
            return group.add_argument(*flags, action=BooleanOptionalAction, **keywords)
        group.add_argument(flag(f"no_{item.name}"), action="store_false", dest=item.name, help=SUPPRESS)
        return group.add_argument(*flags, action="store_true", **keywords)
    choices = _format_choices(inner)
    if typing.get_origin(inner) is list:
        keywords["nargs"], inner, choices = "+", typing.get_args(inner)[0], None
    placeholder = TEXT_PLACEHOLDERS.get(item.name) or item.name.rsplit("_", 1)[-1].upper()
    metavar = choices or NUMBER_PLACEHOLDERS.get(inner) or placeholder
    return group.add_argument(*flags, metavar=metavar, **keywords)


def _format_choices(hint: Any) -> str | None:
    members = [hint, *typing.get_args(hint)] if typing.get_origin(hint) is not typing.Literal else [hint]
    choices = [w for m in members if typing.get_origin(m) is typing.Literal for w in typing.get_args(m)]
    choices += [NUMBER_PLACEHOLDERS[kind] for kind in (int, float) if choices and kind in members]
    return "{" + ",".join(map(str, choices)) + "}" if choices else None


def parse_arguments(parser: CommandParser, argv: Sequence[str]) -> tuple[Namespace, dict[str, str]]:
    """Parse the arguments and the config files that they name.

    Returns:
        All values, and the origin ("flag" or "config") of each value that the user gave.
    """
    if _is_capturing.get():
        raise ParserCaptured(parser)
    arguments = [_dashes_for_underscores(text) for text in argv]
    config = _read_configs(parser, arguments)
    # `_MISSING` marks arguments that were not given, since a given value may be equal to the default.
    defaults = {action.dest: action.default for action in parser._actions}
    values, unknown = parser.parse_known_args(arguments, Namespace(**dict.fromkeys(defaults, _MISSING)))
    if unknown:
        known_flags = [text for action in parser._actions for text in action.option_strings if text.startswith("--")]
        text = unknown[0].partition("=")[0] if unknown[0].startswith("--") else unknown[0]
        parser.error(f"unknown argument {text!r}{did_you_mean(text, known_flags)}")
    given = {name: value for name, value in vars(values).items() if value is not _MISSING and value is not None}
    note_given_flags(arguments, config, parser._option_string_actions.keys(), parser.settings_types)
    typed_values = {name: _convert_argument(parser, name, value) for name, value in given.items()}
    for settings_type in parser.settings_types:
        config = with_current_names(config, settings_type)
        typed_values = with_current_names(typed_values, settings_type)
        defaults = {name: value for name, value in defaults.items() if name not in earlier_names(settings_type)}
    values = Namespace(**{**defaults, **config, **typed_values})
    _refuse_invalid_texts(parser, values)
    flag_names = typed_values.keys() - {"config"}
    return values, {**dict.fromkeys(config, "config"), **dict.fromkeys(flag_names, "flag")}


def _convert_argument(parser: CommandParser, name: str, value: Any) -> Any:
    hint = parser.hints.get(name)
    if hint is None or isinstance(value, bool):
        return value
    is_positional = any(action.dest == name and not action.option_strings for action in parser._actions)
    shown_name = name.upper() if is_positional else flag(name)
    return convert_setting(name, value, hint, parser.verb, parse_text=True, shown=shown_name)


def _refuse_invalid_texts(parser: ArgumentParser, values: Namespace) -> None:
    """Raise a UserError for an empty argument, or a path such as ~bob/photos if there is no user bob."""
    positional_actions = [action for action in parser._actions if not action.option_strings]
    shown_names = {action.dest: action.metavar or action.dest.upper() for action in positional_actions}
    for name, value in vars(values).items():
        refuse_empty_text(str(shown_names.get(name, flag(name))), value)
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and text.startswith("~"):
                expand_user_path(text, flag(name))


def _read_configs(parser: CommandParser, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the settings of the `--config` files; later files override earlier ones."""
    config: dict[str, Any] = {}
    hints = {name: hint for name, hint in parser.hints.items() if name not in parser.flag_only_names}
    for argument, next_argument in zip_longest(arguments, arguments[1:], fillvalue=""):
        name, equals, value = argument.partition("=")
        if name == "--config" and "config" in parser.hints:
            config |= read_config(value if equals else next_argument, hints, parser.verb)
    return config


def _dashes_for_underscores(argument: str) -> str:
    """Replace underscores by dashes in the name of a flag; return any other argument unchanged."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value
