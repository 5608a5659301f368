"""`paucal label`: label maps from a teacher, or from published label maps."""

from collections.abc import Sequence

from paucal.cli.arguments import VerbParser, add_settings, parse, settings_among
from paucal.settings.groups import LABELLED
from paucal.verbs.label.settings import LabelSettings

DESCRIPTION = """Write label maps: the predictions of a trained classifier for every cell of every image.
'paucal train --method token-labeling --labels' learns from these maps. The teacher is first tested on labelled images.
To continue an interrupted call, repeat it. With --from-published, maps published by the authors of token labeling (one
file per image) are converted instead."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = VerbParser("label", DESCRIPTION)
    parser.add_argument("data", help=f"images: {LABELLED}")
    add_settings(parser, LabelSettings, skip=["data"])
    values, _ = parse(parser, argv)
    from paucal.runner.console import Console
    from paucal.verbs.label.launch import label_set

    label_set(settings_among(values, LabelSettings), Console())
    return 0
