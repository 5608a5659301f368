"""`paucal runs`: list runs with their results, verify the ledger of a run, or fetch a run from object storage."""

from collections.abc import Sequence
from pathlib import Path

from paucal.cli.arguments import CommandParser, parse_arguments, parse_with_settings
from paucal.reading import expand_user_path
from paucal.types import UserError
from paucal.verbs.runs.settings import RunsSettings

DESCRIPTION = """List runs, including the runs of comparisons, with their settings, state and scores.
A setting that is the same in all runs is printed once, below the table. Runs that you may want to delete are listed
with the reason: the run saved nothing, was repeated by a newer run, or was stopped long ago. Nothing is deleted.
'paucal runs verify RUN' checks the ledger of a run; 'paucal runs fetch URL FOLDER' copies a run from object storage."""
FETCH_DESCRIPTION = "Copy a run from object storage to a new folder on this machine, where every command can use it."
VERIFY_DESCRIPTION = """Check the ledger of a run that was trained with --ledger.
However often the run was killed and resumed, each epoch must use every training image exactly once, and no validation
or test image."""


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code, which is 1 if a ledger shows lost or repeated images."""
    if list(argv[:1]) == ["verify"]:
        return _verify_run(argv[1:])
    if list(argv[:1]) == ["fetch"]:
        return _fetch_run(argv[1:])
    parser = CommandParser("runs", DESCRIPTION)
    parser.add_argument("folder", nargs="?", default="runs", help="folder of the runs")
    values, settings = parse_with_settings(parser, RunsSettings, _join_sort_flag(argv))
    from paucal.runner.console import Console
    from paucal.verbs.runs.launch import list_selected_runs, show

    folder = Path(values.folder)
    show(list_selected_runs(folder, settings), folder, settings, Console())
    return 0


def _fetch_run(argv: Sequence[str]) -> int:
    parser = CommandParser("runs fetch", FETCH_DESCRIPTION)
    parser.add_argument("url", help="URL of the run, as given to --output")
    parser.add_argument("folder", help="new folder")
    values, _ = parse_arguments(parser, list(argv))
    from paucal.runner.stored_runs import StoredRun
    from paucal.runs.folder import is_nonempty

    folder = expand_user_path(values.folder)
    if is_nonempty(folder):
        raise UserError(f"{values.folder!r} exists already: choose a new folder.")
    partial_copy = folder.with_name(f".{folder.name}.part")
    StoredRun(values.url).fetch(partial_copy)  # a repeated command continues an interrupted copy
    partial_copy.replace(folder)
    print(f"the run is in {values.folder}")
    return 0


def _verify_run(argv: Sequence[str]) -> int:
    """Check the ledger of a run, and print the result; return the exit code, 1 if images were lost or repeated."""
    parser = CommandParser("runs verify", VERIFY_DESCRIPTION)
    parser.add_argument("run", help="run folder")
    values, _ = parse_arguments(parser, list(argv))
    from paucal.runner.console import Console
    from paucal.verbs.runs.verify import verify_run

    verdict, console = verify_run(values.run), Console()
    for line in (*verdict.lines(), f"{'no image was' if verdict.clean else 'images were'} lost or repeated"):
        console.say(line)
    return 0 if verdict.clean else 1


def _join_sort_flag(argv: Sequence[str]) -> list[str]:
    """Join "--sort" and "-test" to the single word "--sort=-test", since argparse would take "-test" for a flag."""
    arguments: list[str] = []
    for argument in argv:
        if arguments and arguments[-1] == "--sort" and argument.startswith("-") and not argument.startswith("--"):
            arguments[-1] = f"--sort={argument}"
        else:
            arguments.append(argument)
    return arguments
