"""`paucal compare`: compare training settings over several seeds."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paucal.cli.arguments import CommandParser, add_data_arguments, add_settings, parse_arguments
from paucal.methods.training_settings import TrainSettings
from paucal.settings.options import setting_fields
from paucal.types import UserError
from paucal.verbs.compare.settings import SET_BY_COMPARISON, UNSUPPORTED, GridSettings

DESCRIPTION = """Train with every combination of settings and seed, and test whether differences are more than chance.
If you repeat the command with the same --output, finished runs are kept and stopped runs are resumed; you may add
methods, models, training-set fractions or seeds. All other flags are those of 'paucal train' and apply to all runs."""


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code, which is 1 if a run has failed and 130 if the comparison was stopped."""
    parser = CommandParser("compare", DESCRIPTION)
    train_fields = setting_fields(TrainSettings)
    add_data_arguments(parser, train_fields["data"].metadata["help"])
    parser.add_argument("--resume", metavar="FOLDER", help="resume a stored comparison")
    add_settings(parser, GridSettings)
    add_settings(parser, TrainSettings, skip=[*SET_BY_COMPARISON, *UNSUPPORTED])
    values, given = parse_arguments(parser, argv)
    grid_values = {name: getattr(values, name) for name in given if name in setting_fields(GridSettings)}
    run_settings = {name: getattr(values, name) for name in given if name in train_fields and name not in grid_values}
    if values.subject is not None:
        if run_settings.get("data", values.subject) != values.subject:
            raise UserError(f"DATA is {values.subject!r} and --data is {values.data!r}: remove DATA or --data.")
        run_settings["data"] = values.subject
    from paucal.runner.console import Console
    from paucal.verbs.compare.launch import compare_all, resume_comparison

    grid_settings = GridSettings(**grid_values)
    if values.resume is not None:
        if run_settings:
            raise UserError(
                "--resume uses the settings of the stored comparison: remove DATA and the flags of 'paucal train'."
            )
        result = resume_comparison(Path(values.resume), grid_settings, Console())
    else:
        command = shlex.join(["paucal", "compare", *argv])
        result = compare_all(grid_settings, run_settings, parse_arms(grid_settings.arms or ()), command, Console())
    return 130 if grid_settings.jobs and not result.settled else int(bool(result.failed))


def parse_arms(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse --arms words of the form 'NAME: FLAGS of paucal train'; return the settings of each arm, by arm name."""
    arms: dict[str, dict[str, Any]] = {}
    for arm_text in words:
        name, colon, flags = arm_text.partition(":")
        name = name.strip()
        if not colon or not name:
            raise UserError(f"--arms: expected 'NAME: FLAGS of paucal train', got {arm_text[:80]!r}.")
        if name in arms:
            raise UserError(f"--arms: there are two arms called {name!r}: rename one of them.")
        parser = CommandParser("train", "")
        add_settings(parser, TrainSettings, skip=["data", "seed", "output", "overwrite", *UNSUPPORTED])
        try:
            values, given = parse_arguments(parser, shlex.split(flags))
        except ValueError as problem:
            raise UserError(f"--arms: the flags of {name!r} cannot be read ({problem}): check the quotes.") from problem
        except UserError as problem:
            raise UserError(f"--arms: {name!r}: {problem}") from problem
        arms[name] = {flag: getattr(values, flag) for flag in given}
    return arms
