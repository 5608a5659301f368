"""`paucal next`: the unlabelled images that are worth labelling next."""

from collections.abc import Sequence

from paucal.cli.arguments import VerbParser, add_settings, parse, settings_among
from paucal.verbs.next.settings import NextSettings

DESCRIPTION = """Choose the unlabelled images that are worth labelling next: of which the model is unsure, that stand
for many others, and some at random. Images that the run has labels of and copies are left out. --output lists them with
the model's answers; --to writes them for a tool in which people correct the answers, and 'paucal train', 'detect' and
'segment' read what it exports."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = VerbParser("next", DESCRIPTION)
    parser.add_argument("run", type=str, help="run folder of 'paucal train', 'detect' or 'segment'")
    parser.add_argument("data", type=str, help="unlabelled images: a folder, table, archive, Parquet, ...")
    add_settings(parser, NextSettings, skip=["data"])
    values, _ = parse(parser, argv)
    # Loaded only now, because it takes seconds and a mistyped flag should not.
    from paucal.runner.console import Console
    from paucal.verbs.next.launch import choose_next

    choose_next(values.run, settings_among(values, NextSettings), Console())
    return 0
