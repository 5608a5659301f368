"""`paucal runs`: a list of the runs and their results."""

from collections.abc import Sequence
from pathlib import Path

from paucal.cli.arguments import VerbParser, add_settings, parse, settings_among
from paucal.reading import named_path
from paucal.types import UserError
from paucal.verbs.runs.settings import RunsSettings

DESCRIPTION = """List runs, including those of comparisons, with their settings, state and scores.
Columns with the same value in all runs are printed once, below the table. Runs that can be deleted are named with the
reason: they saved nothing, were repeated by a newer run, or were stopped long ago. Nothing is deleted.
'paucal runs verify RUN' checks the ledger of a run; 'paucal runs fetch URL FOLDER' copies a run from storage."""
FETCH = "Copy a run from object storage to a new folder on this machine, where every verb can use it."
VERIFY = """Check the ledger of a run that was trained with --ledger.
Each training image must be used exactly once per pass, and no validation or test image, however often the run was
killed and resumed."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code, 1 if a ledger shows lost or repeated images."""
    if list(argv[:1]) == ["verify"]:
        return _verify_run(argv[1:])
    if list(argv[:1]) == ["fetch"]:
        return _fetch_run(argv[1:])
    parser = VerbParser("runs", DESCRIPTION)
    parser.add_argument("folder", nargs="?", default="runs", help="folder of the runs")
    add_settings(parser, RunsSettings)
    values, _ = parse(parser, _join_sort_flag(argv))
    from paucal.runner.console import Console
    from paucal.verbs.runs.launch import chosen_runs, show

    settings, folder = settings_among(values, RunsSettings), Path(values.folder)
    show(chosen_runs(folder, settings), folder, settings, Console())
    return 0


def _fetch_run(argv: Sequence[str]) -> int:
    parser = VerbParser("runs fetch", FETCH)
    parser.add_argument("url", help="--output of the run")
    parser.add_argument("folder", help="new folder")
    values, _ = parse(parser, list(argv))
    from paucal.runner.stored_runs import StoredRun
    from paucal.runs.folder import is_taken

    folder = named_path(values.folder)
    if is_taken(folder):
        raise UserError(f"{values.folder!r} exists already: choose a new folder.")
    part = folder.with_name(f".{folder.name}.part")
    StoredRun(values.url).fetch(part)  # a second call continues the copy
    part.replace(folder)
    print(f"the run is in {values.folder}")
    return 0


def _verify_run(argv: Sequence[str]) -> int:
    parser = VerbParser("runs verify", VERIFY)
    parser.add_argument("run", help="run folder")
    values, _ = parse(parser, list(argv))
    from paucal.runner.console import Console
    from paucal.verbs.runs.verify import verify_run

    verdict, console = verify_run(values.run), Console()
    for line in (*verdict.lines(), f"{'no image was' if verdict.clean else 'images were'} lost or repeated"):
        console.say(line)
    return 0 if verdict.clean else 1


def _join_sort_flag(argv: Sequence[str]) -> list[str]:
    """Join "--sort -test" into one word: argparse would parse the second word as a flag."""
    arguments: list[str] = []
    for argument in argv:
        if arguments and arguments[-1] == "--sort" and argument.startswith("-") and not argument.startswith("--"):
            arguments[-1] = f"--sort={argument}"
        else:
            arguments.append(argument)
    return arguments
