"""`paucal label`: make label maps with a teacher, or convert published label maps."""

from collections.abc import Sequence

from paucal.cli.arguments import VerbParser, add_settings, parse, settings_among
from paucal.settings.groups import LABELLED_DATA_HELP
from paucal.verbs.label.settings import LabelSettings

DESCRIPTION = """Write label maps: the predictions of a trained classifier for every cell of every image.
'paucal train --method token-labeling --labels' trains on these maps. The teacher is first evaluated on labelled images.
To continue an interrupted call, repeat it. With --from-published, maps published by the authors of token labeling (one
file per image) are converted instead."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = VerbParser("label", DESCRIPTION)
    parser.add_argument("data", help=f"images: {LABELLED_DATA_HELP}")
    add_settings(parser, LabelSettings, skip=["data"])
    values, _ = parse(parser, argv)
    from paucal.runner.console import Console
    from paucal.verbs.label.launch import label_set

    label_set(settings_among(values, LabelSettings), Console())
    return 0
