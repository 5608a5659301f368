"""`paucal check`: report the content of a data set and its problems."""

import json
from collections.abc import Sequence

from paucal.cli.arguments import CommandParser, parse_with_settings
from paucal.settings.shared import DATA_HELP
from paucal.verbs.check.settings import CheckSettings

DESCRIPTION = """Read every image once, and report the content of the data set and its problems.
The content is the number of images per class and split, image sizes, channels and brightness. Problems are unreadable,
duplicate (also across splits), blank and small images, labels missing in a split, and file names that suggest groups.
The exit code is 1 if scores on these images would be misleading or training could not begin. --labels also lists labels
that are probably wrong, which takes minutes."""


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code, which is 1 if scores on this data set would be misleading."""
    parser = CommandParser("check", DESCRIPTION)
    parser.add_argument(
        "data", nargs="?", default="digits", help=f"images: {DATA_HELP}; images with masks, or with boxes"
    )
    _, settings = parse_with_settings(parser, CheckSettings, argv, skip=["data"])
    from paucal.runner.console import Console
    from paucal.runner.plain_console import PlainConsole
    from paucal.verbs.check.launch import check_set, show

    as_json = settings.format == "json"
    console = Console(PlainConsole(stderr=as_json))
    result = check_set(settings, console)
    if as_json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        show(result, console)
    return 1 if result.misleads else 0
