"""The job that makes the runs of a grid, by verb."""

from paucal.runner.job import AnyJob
from paucal.tasks.classification.job import TrainingJob
from paucal.tasks.pretraining.job import PretrainingJob


def job_of(verb: str) -> AnyJob:
    """Return the job of a verb.

    Args:
        verb: One of `paucal.verbs.compare.cells.grid.VERBS`.
    """
    # Imported when used: both load the evaluation of boxes or masks.
    if verb == "detect":
        from paucal.tasks.detection.job import DetectionJob

        return DetectionJob()
    if verb == "segment":
        from paucal.tasks.segmentation.job import SegmentationJob

        return SegmentationJob()
    return TrainingJob() if verb == "train" else PretrainingJob()
