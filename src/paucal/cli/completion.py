"""`paucal completion`: print a script for shell completion of commands, flags and values."""

import argparse
import os
import sys
import typing
from collections.abc import Sequence
from typing import Any, Literal

from paucal.cli.arguments import CommandParser, HelpWithDefaults, capture_parser, parse_arguments
from paucal.cli.recipes import recipes_by_command
from paucal.methods.names import EXTRA_LOSSES, PRETRAINING_METHODS, TRAINING_METHODS
from paucal.models.table import model_names
from paucal.tasks.detection.network.options import HEADS

DESCRIPTION = """Print a script with which your shell completes commands, flags and their values when you press Tab.
The script is for this version of paucal: generate it again after an update. Install it with

  bash        paucal completion bash > ~/.local/share/bash-completion/completions/paucal
  zsh         paucal completion zsh > ~/.zfunc/_paucal      (with fpath+=~/.zfunc before compinit)
  fish        paucal completion fish > ~/.config/fish/completions/paucal.fish

and open a new shell. The folder must exist; create it with mkdir -p."""
Shell = Literal["bash", "zsh", "fish", "tcsh"]
DEVICES = ("cpu", "cuda", "mps")
# Names of arguments whose values are completed although their type is text without fixed choices.
MODEL_ARGUMENTS, DEVICE_ARGUMENT, RECIPE_ARGUMENT = ("model", "models"), "device", "recipe"
_CHOICES_BY_VERB = {
    "train": {"method": tuple(TRAINING_METHODS), "add": tuple(EXTRA_LOSSES)},
    "pretrain": {"method": tuple(PRETRAINING_METHODS)},
    "detect": {"head": tuple(HEADS)},
}


def run(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    parser = CommandParser("completion", DESCRIPTION)
    parser.formatter_class = _UnwrappedHelp
    parser.hints["shell"] = Shell
    parser.add_argument("shell", metavar="{bash,zsh,fish,tcsh}", help="your shell")
    values, _ = parse_arguments(parser, argv)
    import shtab

    sys.stdout.write(shtab.complete(build_completion_parser(), values.shell) + os.linesep)
    return 0


class _UnwrappedHelp(HelpWithDefaults, argparse.RawDescriptionHelpFormatter):
    """Help that keeps the line breaks of the description."""


def build_completion_parser() -> argparse.ArgumentParser:
    """Return an argparse parser of all commands with their arguments, which is used only for completion.

    A value with a fixed set of choices is completed to one of the choices, any other text to a file name.
    """
    import shtab

    from paucal.cli.main import COMMAND_SUMMARIES, load_command

    models, recipes = tuple(model_names()), recipes_by_command()
    main_parser = argparse.ArgumentParser("paucal", allow_abbrev=False)
    main_parser.add_argument("--version", action="store_true", help="print the version")
    verbs = main_parser.add_subparsers(dest="verb")
    for verb, summary in COMMAND_SUMMARIES.items():
        verb_parser = verbs.add_parser(verb, help=summary.replace("%", "%%"), allow_abbrev=False)
        choices_by_name = {
            **dict.fromkeys(MODEL_ARGUMENTS, models),
            DEVICE_ARGUMENT: DEVICES,
            RECIPE_ARGUMENT: tuple(recipes.get(verb, ())),
            **_CHOICES_BY_VERB.get(verb, {}),
        }
        parser = capture_parser(load_command(verb))
        for action in parser._actions:
            if action.dest == "help" or action.help == argparse.SUPPRESS:
                continue
            keywords: dict[str, Any] = {"help": (action.help or "").replace("%", "%%")}
            if action.nargs == 0:
                verb_parser.add_argument(*action.option_strings, action="store_true", **keywords)
                continue
            hint = parser.hints.get(action.dest)
            choices = choices_by_name.get(action.dest) or _literal_choices(hint)
            keywords |= {"metavar": action.metavar, "nargs": action.nargs} | ({"choices": choices} if choices else {})
            copied_action = verb_parser.add_argument(*(action.option_strings or [action.dest]), **keywords)
            if not choices and _accepts_text(hint):
                copied_action.complete = shtab.FILE  # type: ignore[attr-defined]
    return main_parser


def _literal_choices(hint: Any) -> tuple[str, ...]:
    """Return the values of a Literal type as text, also of a Literal inside a union or a list."""
    if typing.get_origin(hint) is Literal:
        return tuple(map(str, typing.get_args(hint)))
    return tuple(choice for member in typing.get_args(hint) for choice in _literal_choices(member))


def _accepts_text(hint: Any) -> bool:
    return hint in (None, str) or any(
        _accepts_text(member) for member in typing.get_args(hint) if member is not type(None)
    )
