"""`paucal convert`: write a data set in another layout."""

from collections.abc import Sequence

from paucal.cli.arguments import VerbParser, add_settings, parse, settings_among
from paucal.settings.groups import LABELLED_DATA_HELP
from paucal.verbs.convert.settings import ConvertSettings

DESCRIPTION = """Write a data set in another layout, for other programs or another verb, with its images and splits.
Boxes can be written as yolo, coco, voc, csv, label-studio or cvat, and as masks if they have outlines; masks as index
masks or coco; classes of images as folders, csv, label-studio or cvat. Whatever the layout cannot store is counted and
reported."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = VerbParser("convert", DESCRIPTION)
    parser.add_argument("data", help=f"images: {LABELLED_DATA_HELP}; images with masks, or with boxes")
    parser.add_argument("output", help="new or empty folder for the images and their labels")
    add_settings(parser, ConvertSettings, skip=["data", "output"])
    values, _ = parse(parser, argv)
    from paucal.runner.console import Console
    from paucal.verbs.convert.launch import convert_set

    convert_set(settings_among(values, ConvertSettings), Console())
    return 0
