"""`paucal study`: reproduce a table of a paper."""

import shlex
from collections.abc import Sequence
from typing import Any

from paucal.cli.arguments import CommandParser, add_settings, parse_arguments
from paucal.settings.options import setting_fields
from paucal.studies.settings import StudySettings
from paucal.types import UserError

DESCRIPTION = """Reproduce a table or figure of the DrLoc, EsViT, DHVT or token labeling papers, and print published and
measured numbers side by side. 'paucal study list' lists all studies. 'paucal study show NAME' prints one study with the
settings of each row. Finished runs are not repeated: the same command resumes a study that was stopped."""


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code, which is 1 if a run has failed and 130 if the study was stopped."""
    parser = CommandParser("study", DESCRIPTION)
    parser.add_argument("name", help="name of a study, or 'list', or 'show'")
    parser.add_argument("shown", nargs="?", help="after 'show': name of the study to show")
    add_settings(parser, StudySettings)
    values, given = parse_arguments(parser, argv)
    study_values = {name: getattr(values, name) for name in given if name in setting_fields(StudySettings)}
    if values.name in ("list", "show"):
        if study_values:
            raise UserError(f"'paucal study {values.name}' takes no flags: remove --{next(iter(study_values))}.")
        if values.name == "show":
            return _show_study(values.shown)
        if values.shown is not None:
            advice = f"to see one study use 'paucal study show {values.shown}'"
            raise UserError(f"unknown word {values.shown!r} after 'list'; {advice}.")
        from paucal.studies.descriptions import list_studies

        _print_table(*list_studies())
        return 0
    if values.shown is not None:
        raise UserError(f"unknown word {values.shown!r} after {values.name!r}; expected flags, or 'show NAME'.")
    from paucal.studies.reading import find_study

    if find_study(values.name).kind == "facts":
        if study_values:
            raise UserError(
                f"{values.name} is a reference table with nothing to run: remove --{next(iter(study_values))}."
            )
        return _show_study(values.name)
    from paucal.runner.console import Console
    from paucal.studies.launch import run_study

    command = shlex.join(["paucal", "study", *argv])
    result = run_study(values.name, StudySettings(**study_values), command, Console())
    return 130 if values.jobs and not result.settled else int(bool(result.failed))


def _show_study(name: str | None) -> int:
    if name is None:
        raise UserError("'paucal study show' needs the NAME of a study: 'paucal study list' lists all studies.")
    from paucal.studies.descriptions import show

    table, sentences = show(name)
    _print_table(None, sentences[:1])
    _print_table(table, sentences[1:])
    return 0


def _print_table(table: Any, sentences: Sequence[str]) -> None:
    from paucal.runner.plain_console import PlainConsole

    console = PlainConsole(soft_wrap=True)
    if table is not None:
        PlainConsole().print(table)
    for line in sentences:
        console.print(line, markup=False)
