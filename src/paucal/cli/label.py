"""`paucal label`: label maps from a teacher, or from published label maps."""

from collections.abc import Sequence

from paucal.cli.arguments import VerbParser, add_settings, parse, settings_among
from paucal.settings.groups import LABELLED
from paucal.verbs.label.settings import LabelSettings

DESCRIPTION = """Ask a trained classifier what it sees in every part of every image.
The maps are what 'paucal train --method token-labeling --labels' learns from. The teacher is tried on labelled images
first. A call that was interrupted can be made again and goes on. With --from-published, maps that the authors of token
labeling have published (a file for each image) are converted instead."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = VerbParser("label", DESCRIPTION)
    parser.add_argument("data", type=str, help=f"images: {LABELLED}")
    add_settings(parser, LabelSettings, skip=["data"])
    values, _ = parse(parser, argv)
    # Loaded only now, because it takes seconds and a mistyped flag should not.
    from paucal.runner.console import Console
    from paucal.verbs.label.launch import label_set

    label_set(settings_among(values, LabelSettings), Console())
    return 0
