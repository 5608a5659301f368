"""`paucal segment`: train and evaluate a segmentation model on images and masks."""

from collections.abc import Sequence

from paucal.cli.arguments import parse_run_arguments
from paucal.cli.elsewhere import run_elsewhere
from paucal.tasks.segmentation.settings import SegmentSettings

DESCRIPTION = """Train a network that classifies every pixel, and evaluate the network on held-out test images.
DATA is a folder that contains a folder of images and a folder of masks with the same file names (images/ and masks/).
Settings that you do not give are chosen from the data, and printed with the reason."""


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code, which is 130 if the run was stopped before its end."""
    parsed = parse_run_arguments("segment", DESCRIPTION, SegmentSettings, argv)
    if (code := run_elsewhere("segment", parsed.values, argv)) is not None:
        return code
    from paucal.cli.job import run_job
    from paucal.tasks.segmentation.job import SegmentationJob

    return run_job(SegmentationJob(), parsed)
