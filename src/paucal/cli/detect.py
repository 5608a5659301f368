"""`paucal detect`: train and evaluate a detector on images with boxes."""

from collections.abc import Sequence

from paucal.cli.arguments import parse_run_arguments
from paucal.cli.elsewhere import run_elsewhere
from paucal.tasks.detection.settings import DetectSettings

DESCRIPTION = """Train a detector on images with boxes and evaluate it on images that it has not seen.
DATA is a folder, archive or annotation file in the format of COCO, Pascal VOC, YOLO, LabelMe or CVAT, or a CSV file
of boxes. Settings that you do not give are chosen from the images and the machine, and printed with the reason.
'paucal predict RUN IMAGES' finds objects with the trained detector."""


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code, which is 130 if the run was stopped before its end."""
    parsed = parse_run_arguments("detect", DESCRIPTION, DetectSettings, argv)
    if (code := run_elsewhere("detect", parsed.values, argv)) is not None:
        return code
    from paucal.cli.job import run_job
    from paucal.tasks.detection.job import DetectionJob

    return run_job(DetectionJob(), parsed)
