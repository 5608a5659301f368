"""`paucal label`: make label maps with a teacher, or convert published label maps."""

from collections.abc import Sequence

from paucal.cli.arguments import CommandParser, parse_with_settings
from paucal.settings.shared import DATA_HELP
from paucal.verbs.label.settings import LabelSettings

DESCRIPTION = """Write label maps: a trained classifier (the teacher) predicts classes for grid cells of every image.
'paucal train --method token-labeling --labels' trains on these maps. The teacher is first evaluated on labelled images.
To continue an interrupted command, repeat the command. With --from-published, maps that the authors of token labeling
published (one file per image) are converted instead."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    parser = CommandParser("label", DESCRIPTION)
    parser.add_argument("data", help=f"images: {DATA_HELP}")
    _, settings = parse_with_settings(parser, LabelSettings, argv, skip=["data"])
    from paucal.runner.console import Console
    from paucal.verbs.label.launch import label_set

    label_set(settings, Console())
    return 0
