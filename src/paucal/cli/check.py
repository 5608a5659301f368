"""`paucal check`: what a data set holds and what is wrong with it."""

import json
from collections.abc import Sequence

from paucal.cli.arguments import VerbParser, add_settings, parse, settings_among
from paucal.settings.groups import LABELLED
from paucal.verbs.check.settings import CheckSettings

DESCRIPTION = """Look at every image once and say what the set holds and what is wrong with it.
Counts, classes, sizes, channels and brightness; images that cannot be read, that are there twice (also between parts),
blank or small; labels that are missing in a part, and file names that suggest groups. The exit code is 1 where training
on the set would mislead or could not begin. --labels lists labels that are probably wrong, which takes minutes."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code, 1 where training would mislead."""
    parser = VerbParser("check", DESCRIPTION)
    parser.add_argument(
        "data", nargs="?", type=str, default="digits", help=f"images: {LABELLED}; images with masks, or with boxes"
    )
    add_settings(parser, CheckSettings, skip=["data"])
    values, _ = parse(parser, argv)
    # Loaded only now, because it takes seconds and a mistyped flag should not.
    from paucal.runner.console import Console
    from paucal.runner.plain_console import PlainConsole
    from paucal.verbs.check.launch import check_set, show

    settings = settings_among(values, CheckSettings)
    as_json = settings.format == "json"
    console = Console(PlainConsole(stderr=as_json))
    result = check_set(settings, console)
    if as_json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        show(result, console)
    return 1 if result.misleads else 0
