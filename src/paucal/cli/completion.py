"""`paucal completion`: a script for shell completion of verbs, flags and values."""

import argparse
import importlib
import os
import sys
import typing
from collections.abc import Sequence
from typing import Any, Literal

from paucal.cli.arguments import ParserShown, PlainHelp, VerbParser, parse, showing_parsers
from paucal.cli.recipes import recipes_by_verb
from paucal.models.table import model_names

DESCRIPTION = """Print a script that lets your shell complete verbs, flags and their values with the Tab key.
It is specific to this version: generate it again after an update. Install it with

  bash        paucal completion bash > ~/.local/share/bash-completion/completions/paucal
  zsh         paucal completion zsh > ~/.zfunc/_paucal      (with fpath+=~/.zfunc before compinit)
  fish        paucal completion fish > ~/.config/fish/completions/paucal.fish

and open a new shell. The folder must exist (mkdir -p)."""
Shell = Literal["bash", "zsh", "fish", "tcsh"]
DEVICES = ("cpu", "cuda", "mps")
MODELS, DEVICE, RECIPE = ("model", "models"), "device", "recipe"


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = VerbParser("completion", DESCRIPTION)
    parser.formatter_class = _AsWritten
    parser.hints["shell"] = Shell
    parser.add_argument("shell", metavar="{bash,zsh,fish,tcsh}", help="the shell")
    values, _ = parse(parser, argv)
    import shtab

    sys.stdout.write(shtab.complete(whole_parser(), values.shell) + os.linesep)
    return 0


class _AsWritten(PlainHelp):
    """Help that keeps the line breaks of the description."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(indent + line for line in text.splitlines(keepends=True))


def whole_parser() -> argparse.ArgumentParser:
    """Return a plain argparse parser of all verbs with their arguments, for completion only.

    A value with a fixed set of words has them as its choices; any other text is completed with file names.
    """
    from paucal.cli.main import VERBS

    models, recipes = tuple(model_names()), recipes_by_verb()
    all_verbs = argparse.ArgumentParser("paucal", allow_abbrev=False)
    all_verbs.add_argument("--version", action="store_true", help="print the version")
    verbs = all_verbs.add_subparsers(dest="verb")
    for verb, purpose in VERBS.items():
        verb_parser = verbs.add_parser(verb, help=_escape_percent(purpose), allow_abbrev=False)
        choices_by_name = {**dict.fromkeys(MODELS, models), DEVICE: DEVICES, RECIPE: tuple(recipes.get(verb, ()))}
        parser = _parser_of(verb)
        for action in parser._actions:
            _copy_argument(verb_parser, action, parser.hints.get(action.dest), choices_by_name)
    return all_verbs


def _parser_of(verb: str) -> VerbParser:
    with showing_parsers():
        try:
            importlib.import_module(f"paucal.cli.{verb}").run([])
        except ParserShown as shown:
            return shown.parser
    raise AssertionError(f"paucal {verb} has parsed nothing")


def _copy_argument(
    parser: argparse.ArgumentParser, action: argparse.Action, hint: Any, choices_by_name: dict[str, tuple[str, ...]]
) -> None:
    """Add an argument of a verb, with its typed value, to the parser of all verbs."""
    import shtab

    if action.dest == "help" or action.help == argparse.SUPPRESS:
        return
    keywords: dict[str, Any] = {"help": _escape_percent(action.help or "")}
    if action.nargs == 0:
        parser.add_argument(*action.option_strings, action="store_true", **keywords)
        return
    choices = choices_by_name.get(action.dest) or _literal_words(hint)
    names = action.option_strings or [action.dest]
    keywords |= {"metavar": action.metavar, "nargs": action.nargs} | ({"choices": choices} if choices else {})
    added = parser.add_argument(*names, **keywords)
    if not choices and _is_text(hint):
        added.complete = shtab.FILE  # type: ignore[attr-defined]


def _literal_words(hint: Any) -> tuple[str, ...]:
    """Return the words of a Literal type, alone or in a union with other types."""
    if typing.get_origin(hint) is Literal:
        return tuple(map(str, typing.get_args(hint)))
    return tuple(choice for member in typing.get_args(hint) for choice in _literal_words(member))


def _is_text(hint: Any) -> bool:
    return hint in (None, str) or any(_is_text(member) for member in typing.get_args(hint) if member is not type(None))


def _escape_percent(text: str) -> str:
    """Return help text with % escaped for argparse."""
    return text.replace("%", "%%")
