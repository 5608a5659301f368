"""`paucal convert`: a set written again in another layout."""

from collections.abc import Sequence

from paucal.cli.arguments import VerbParser, add_settings, parse, settings_among
from paucal.settings.groups import LABELLED
from paucal.verbs.convert.settings import ConvertSettings

DESCRIPTION = """Write a set in another layout, for other programs or for another verb, with its images and parts.
Boxes go to yolo, coco, voc, csv, label-studio or cvat, and with their outlines to masks; masks go to masks by number
or to coco; classes of images go to folders, csv, label-studio or cvat. What the layout cannot hold is counted and
said."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = VerbParser("convert", DESCRIPTION)
    parser.add_argument("data", type=str, help=f"images: {LABELLED}; images with masks, or with boxes")
    parser.add_argument("output", type=str, help="new or empty folder for the images and their labels")
    add_settings(parser, ConvertSettings, skip=["data", "output"])
    values, _ = parse(parser, argv)
    # Loaded only now, because it takes seconds and a mistyped flag should not.
    from paucal.runner.console import Console
    from paucal.verbs.convert.launch import convert_set

    convert_set(settings_among(values, ConvertSettings), Console())
    return 0
