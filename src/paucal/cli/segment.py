"""`paucal segment`: from images and masks to an evaluated segmentation model."""

from collections.abc import Sequence

from paucal.cli.arguments import parse_run
from paucal.cli.elsewhere import run_elsewhere
from paucal.runner.clock import command_start
from paucal.tasks.segmentation.settings import SegmentSettings

DESCRIPTION = """Train a network that gives every pixel of an image a class, and judge it on images it has not seen.
DATA has a folder of images and one of masks in it, whose files have the same names (images/ and masks/).
Everything that is not given is chosen from the data, and the choice is printed with its reason."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code, 130 where the run was stopped before its end."""
    parsed = parse_run("segment", DESCRIPTION, SegmentSettings, argv)
    if (code := run_elsewhere("segment", parsed[0], argv)) is not None:
        return code
    # Loaded only now, because it takes seconds and a mistyped flag should not.
    from paucal.cli.job import run_job
    from paucal.tasks.segmentation.job import SegmentationJob

    return run_job(SegmentationJob(), SegmentSettings, parsed, command_start())
