"""Command-line flags from the fields of settings dataclasses, and parsing of arguments and `--config` files."""

import typing
from argparse import SUPPRESS, Action, ArgumentParser, BooleanOptionalAction, HelpFormatter, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import Field, fields
from itertools import zip_longest
from typing import Any, NoReturn, TypeVar

from paucal.cli.given_flags import FLAG_ALIASES, note_given_flags
from paucal.reading import MAX_CONFIG_BYTES, expand_user_path, parse_yaml, read_decoded
from paucal.settings.options import (
    default_of,
    earlier_names,
    flag,
    help_heading,
    is_automatic,
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
# Settings in a run's `config.yaml` that are ignored when the file is given to `--config` to repeat the run.
_IGNORED_ON_REPEAT = ("output", "overwrite", "time_limit")


class HelpWithDefaults(HelpFormatter):
    """Help formatter with a short usage line; each flag has a placeholder, a description and its default value."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=110)

    def add_usage(self, usage: Any, actions: Iterable[Action], groups: Any, prefix: Any = None) -> None:
        """Add a usage line without the flags, since there may be a hundred flags."""
        patterns = {"?": "[{0}]", "*": "[{0} ...]", "+": "{0} [{0} ...]"}
        positional = [action for action in actions if not action.option_strings]
        usages = [patterns.get(str(action.nargs), "{0}").format(action.metavar) for action in positional]
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
    """

    def __init__(self, verb: str, description: str) -> None:
        super().__init__(
            f"paucal {verb}", description=description, formatter_class=HelpWithDefaults, allow_abbrev=False
        )
        self.hints: dict[str, Any] = {}  # type hint of each argument
        self.flag_only_names = {"config"}  # names of arguments that are not allowed in a config
        self.settings_types: list[type] = []  # settings dataclasses whose fields are flags of the command

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


# Not a subclass of Exception, so that `except Exception` in a command does not catch it.
class _ParserCaptured(BaseException):
    def __init__(self, parser: CommandParser) -> None:
        super().__init__()
        self.parser = parser


_is_capturing: ContextVar[bool] = ContextVar("is_capturing", default=False)


def capture_parser(run: Callable[[Sequence[str]], int]) -> CommandParser:
    """Return the parser of a command; the command is called, but stops when it parses its arguments."""
    token = _is_capturing.set(True)
    try:
        run([])
    except _ParserCaptured as captured:
        return captured.parser
    finally:
        _is_capturing.reset(token)
    raise AssertionError("the command did not parse its arguments")


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
    choices = format_choices(inner)
    if typing.get_origin(inner) is list:
        keywords["nargs"], inner, choices = "+", typing.get_args(inner)[0], None
    placeholder = TEXT_PLACEHOLDERS.get(item.name) or item.name.rsplit("_", 1)[-1].upper()
    metavar = choices or NUMBER_PLACEHOLDERS.get(inner) or placeholder
    return group.add_argument(*flags, metavar=metavar, **keywords)


def format_choices(hint: Any) -> str | None:
    """Return the valid values of a Literal type, or of a union with one, as "{a,b}"; None if any value is valid."""
    members = [hint, *typing.get_args(hint)] if typing.get_origin(hint) is not typing.Literal else [hint]
    literals = [member for member in members if typing.get_origin(member) is typing.Literal]
    choices = [choice for literal in literals for choice in typing.get_args(literal)]
    choices += [NUMBER_PLACEHOLDERS[kind] for kind in (int, float) if choices and kind in members]
    return "{" + ",".join(map(str, choices)) + "}" if choices else None


def parse_arguments(parser: CommandParser, argv: Sequence[str]) -> tuple[Namespace, dict[str, str]]:
    """Parse arguments and config files; return all values, and the origin ("flag" or "config") of each given value."""
    if _is_capturing.get():
        raise _ParserCaptured(parser)
    arguments = []
    for text in argv:  # the name of a flag may have underscores
        name, equals, value = text.partition("=")
        arguments.append(name.replace("_", "-") + equals + value if text.startswith("--") else text)
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
    positional_names = {action.dest for action in parser._actions if not action.option_strings}
    typed_values = dict(given)
    for name, value in given.items():
        if name in parser.hints and not isinstance(value, bool):
            shown_name, hint = name.upper() if name in positional_names else flag(name), parser.hints[name]
            typed_values[name] = convert_setting(name, value, hint, parser.verb, parse_text=True, shown=shown_name)
    for settings_type in parser.settings_types:
        config = with_current_names(config, settings_type)
        typed_values = with_current_names(typed_values, settings_type)
        defaults = {name: value for name, value in defaults.items() if name not in earlier_names(settings_type)}
    values = Namespace(**{**defaults, **config, **typed_values})
    _refuse_invalid_texts(parser, values)
    flag_names = typed_values.keys() - {"config"}
    return values, {**dict.fromkeys(config, "config"), **dict.fromkeys(flag_names, "flag")}


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


def read_config(name: str, hints: Mapping[str, Any], verb: str) -> dict[str, Any]:
    """Return the settings in a config file, converted to the types in `hints`, which has all valid settings.

    Settings without a value are left out. If the file is the `config.yaml` of a run, settings for which the run itself
    chose None stay None.
    """
    settings = {}
    content, chosen_by_run = _read_settings(name)
    for key, value in content.items():
        setting = str(key).replace("-", "_")
        if setting not in hints:
            suggestion = did_you_mean(setting, hints)
            raise UserError(f"unknown key {str(key)!r} in the config{suggestion}; see 'paucal {verb} --help'.")
        if value is not None:
            settings[setting] = convert_setting(setting, value, hints[setting], verb, parse_text=True)
        elif key in chosen_by_run:
            settings[setting] = None
    return settings


def _read_settings(name: str) -> tuple[dict[Any, Any], set[Any]]:
    """Return the settings in a config file and, for the `config.yaml` of a run, the names of settings the run chose.

    In the `config.yaml` of a run, the settings are below the key "settings".
    """
    path = expand_user_path(name, "--config")
    try:
        content = parse_yaml(read_decoded(path, MAX_CONFIG_BYTES).text, as_text=True)
    except FileNotFoundError:
        raise UserError(f"--config: the file {name!r} does not exist; check the path.") from None
    except ValueError as problem:
        raise UserError(f"--config: {name!r} cannot be read ({problem}); correct the file.") from None
    if not content or not isinstance(content, dict):
        raise UserError(f"--config: {name!r} contains no settings; expected lines such as 'epochs: 30'.")
    if not isinstance(content.get("settings"), dict) or not isinstance(content.get("origin"), dict):
        return content, set()
    settings = {key: value for key, value in content["settings"].items() if key not in _IGNORED_ON_REPEAT}
    # A run without `init` started from random weights. A repetition of the run must not choose pretrained weights.
    if content.get("verb", "train") in ("train", "segment", "detect") and settings.get("init") is None:
        settings["init"] = "none"
    return settings, {key for key, origin in content["origin"].items() if is_automatic(str(origin))}
