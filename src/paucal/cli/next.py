"""`paucal next`: choose the unlabelled images that are most worth labelling next."""

from collections.abc import Sequence

from paucal.cli.arguments import VerbParser, add_settings, parse, settings_among
from paucal.verbs.next.settings import NextSettings

DESCRIPTION = """Choose the unlabelled images that are worth labelling next.
These are images about which the model is uncertain and which represent many others, and some random images. Copies, and
images that the run has labels for, are left out. --output lists the images with predictions; --to writes them for a
labelling tool, in which you correct the predictions; 'paucal train', 'detect' and 'segment' read the tool's exports."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = VerbParser("next", DESCRIPTION)
    parser.add_argument("run", help="run folder of 'paucal train', 'detect' or 'segment'")
    parser.add_argument("data", help="unlabelled images: a folder, table, archive, Parquet file, ...")
    add_settings(parser, NextSettings, skip=["data"])
    values, _ = parse(parser, argv)
    from paucal.runner.console import Console
    from paucal.verbs.next.launch import choose_next

    choose_next(values.run, settings_among(values, NextSettings), Console())
    return 0
