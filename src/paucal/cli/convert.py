"""`paucal convert`: write a data set in another layout."""

from collections.abc import Sequence

from paucal.cli.arguments import CommandParser, parse_with_settings
from paucal.settings.shared import DATA_HELP
from paucal.verbs.convert.settings import ConvertSettings

DESCRIPTION = """Write a data set, with its images and splits, in another layout for other programs or paucal commands.
Boxes can be written as yolo, coco, voc, csv, label-studio or cvat; boxes with outlines can also be written as masks.
Masks can be written as index masks or coco, and classes of images as folders, csv, label-studio or cvat. Annotations
that the layout cannot store are counted and reported."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    parser = CommandParser("convert", DESCRIPTION)
    parser.add_argument("data", help=f"images: {DATA_HELP}; images with masks, or with boxes")
    parser.add_argument("output", help="new or empty folder for the images and their labels")
    _, settings = parse_with_settings(parser, ConvertSettings, argv, skip=["data", "output"])
    from paucal.runner.console import Console
    from paucal.verbs.convert.launch import convert_set

    convert_set(settings, Console())
    return 0
