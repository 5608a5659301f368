"""`paucal next`: choose the unlabelled images that are most worth labelling next."""

from collections.abc import Sequence

from paucal.cli.arguments import CommandParser, parse_with_settings
from paucal.verbs.next.settings import NextSettings

DESCRIPTION = """Choose the unlabelled images that are worth labelling next.
The command chooses images for which the model is uncertain and which resemble many other images, and some random
images. Duplicates and images that the run already has labels for are left out. --output writes a list of the chosen
images with predictions. --to writes the images and predictions for a labelling tool, in which you correct the
predictions; 'paucal train', 'detect' and 'segment' read the tool's exports."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    parser = CommandParser("next", DESCRIPTION)
    parser.add_argument("run", help="run folder of 'paucal train', 'detect' or 'segment'")
    parser.add_argument("data", help="unlabelled images: a folder, table, archive, Parquet file, ...")
    values, settings = parse_with_settings(parser, NextSettings, argv, skip=["data"])
    from paucal.runner.console import Console
    from paucal.verbs.next.launch import choose_next

    choose_next(values.run, settings, Console())
    return 0
