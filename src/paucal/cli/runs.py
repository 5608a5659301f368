"""`paucal runs`: a list of the runs and their results."""

from collections.abc import Sequence
from pathlib import Path

from paucal.cli.arguments import VerbParser, add_settings, parse, settings_among
from paucal.reading import named_path
from paucal.types import UserError
from paucal.verbs.runs.settings import RunsSettings

DESCRIPTION = """List runs with their settings, state and scores, those of comparisons too.
Columns in which all runs agree are told once, below the table. What can be deleted is named with the reason: runs that
saved nothing, that a newer run has repeated, or that were stopped long ago; nothing is deleted.
'paucal runs verify RUN' checks the ledger of a run instead; 'paucal runs fetch URL FOLDER' copies one from storage."""


FETCH = """Copy a run on object storage to a new folder of this machine, where every verb can use it."""

VERIFY = """Check the ledger of a run that was trained with --ledger: whether each training image was used once
per pass, none twice and none of validation or test, however often the run was killed and resumed on other processes."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code, 1 where a ledger shows that images were lost or used twice."""
    if list(argv[:1]) == ["verify"]:
        return _verify(argv[1:])
    if list(argv[:1]) == ["fetch"]:
        return _fetch(argv[1:])
    parser = VerbParser("runs", DESCRIPTION)
    parser.add_argument("folder", nargs="?", type=str, default="runs", metavar="FOLDER", help="that holds the runs")
    add_settings(parser, RunsSettings)
    values, _ = parse(parser, _joined(argv))
    # Loaded only now, because it takes seconds and a mistyped flag should not.
    from paucal.runner.console import Console
    from paucal.verbs.runs.launch import chosen_runs, show

    settings, folder = settings_among(values, RunsSettings), Path(values.folder)
    show(chosen_runs(folder, settings), folder, settings, Console())
    return 0


def _fetch(argv: Sequence[str]) -> int:
    parser = VerbParser("runs fetch", FETCH)
    parser.add_argument("url", type=str, metavar="URL", help="--output of the call that made the run")
    parser.add_argument("folder", type=str, metavar="FOLDER", help="new folder")
    values, _ = parse(parser, list(argv))
    # Loaded only now, as above.
    from paucal.runner.stored_runs import StoredRun
    from paucal.runs.folder import is_taken

    folder = named_path(values.folder)
    if is_taken(folder):
        raise UserError(f"{values.folder!r} exists already: choose a new folder.")
    part = folder.with_name(f".{folder.name}.part")
    StoredRun(values.url).fetch(part)  # a second call goes on with what is there
    part.replace(folder)
    print(f"the run is in {values.folder}")
    return 0


def _verify(argv: Sequence[str]) -> int:
    parser = VerbParser("runs verify", VERIFY)
    parser.add_argument("run", type=str, metavar="RUN", help="run folder")
    values, _ = parse(parser, list(argv))
    # Loaded only now, as above.
    from paucal.runner.console import Console
    from paucal.verbs.runs.verify import verify_run

    verdict, console = verify_run(values.run), Console()
    for line in [*verdict.lines(), "nothing lost, nothing doubled" if verdict.clean else "NOT as it should be"]:
        console.say(line)
    return 0 if verdict.clean else 1


def _joined(argv: Sequence[str]) -> list[str]:
    """Join "--sort -test" into one word: argparse takes a word that begins with a dash for a flag."""
    words: list[str] = []
    for word in argv:
        if words and words[-1] == "--sort" and word.startswith("-") and not word.startswith("--"):
            words[-1] = f"--sort={word}"
        else:
            words.append(word)
    return words
