"""`paucal shard`: write images as shards."""

from collections.abc import Sequence

from paucal.cli.arguments import CommandParser, parse_with_settings
from paucal.settings.shared import DATA_HELP
from paucal.verbs.shard.settings import ShardSettings

DESCRIPTION = """Write the images of a data set into shards: a few large files instead of millions of small files.
Each split gets its own shards, with its images in random order. Image files are stored unchanged, and unreadable images
are reported. An index lets a run on a million images begin in seconds, on this machine or from object storage. Data
sets of up to a few hundred thousand images on a local disk do not need shards: paucal decodes these images once and
caches the result."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    parser = CommandParser("shard", DESCRIPTION)
    parser.add_argument("data", help=f"images: {DATA_HELP}")
    parser.add_argument("output", help="new or empty folder for the shards, or a URL such as s3://bucket/set")
    _, settings = parse_with_settings(parser, ShardSettings, argv, skip=["data", "output"])
    from paucal.runner.console import Console
    from paucal.verbs.shard.launch import shard_set

    shard_set(settings, Console())
    return 0
