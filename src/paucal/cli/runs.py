"""`paucal runs`: a list of the runs and their results."""

from collections.abc import Sequence
from pathlib import Path

from paucal.cli.arguments import VerbParser, add_settings, parse, settings_among
from paucal.verbs.runs.settings import RunsSettings

DESCRIPTION = """List runs with their settings, state and scores, those of comparisons too.
Columns in which all runs agree are told once, below the table. What can be deleted is named with the reason: runs that
saved nothing, that a newer run has repeated, or that were stopped long ago; nothing is deleted."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
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


def _joined(argv: Sequence[str]) -> list[str]:
    """Join "--sort -test" into one word: argparse takes a word that begins with a dash for a flag."""
    words: list[str] = []
    for word in argv:
        if words and words[-1] == "--sort" and word.startswith("-") and not word.startswith("--"):
            words[-1] = f"--sort={word}"
        else:
            words.append(word)
    return words
