"""`paucal explain`: figures of attributions, attention and features."""

from collections.abc import Sequence

from paucal.cli.arguments import CommandParser, parse_with_settings
from paucal.verbs.explain.settings import ExplainSettings

DESCRIPTION = """Draw the attention of a trained model, attributions of its predictions, and its features.
IMAGES are files, folders (searched to any depth), Parquet files, or patterns such as 'photos/*.jpg'. --show matches
takes two images, or a single image, which is then compared with its mirror image. --show localization needs a run that
was trained with DrLoc."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    parser = CommandParser("explain", DESCRIPTION)
    parser.add_argument("model", help="run folder, or a timm model with published weights")
    parser.add_argument("images", nargs="+", help="images, folders or patterns")
    values, settings = parse_with_settings(parser, ExplainSettings, argv)
    from paucal.runner.console import Console
    from paucal.verbs.explain.launch import explain_all

    explain_all(values.model, values.images, settings, Console())
    return 0
