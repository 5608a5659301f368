"""The job that makes the runs of a grid, by verb."""

from typing import Any

from paucal.verbs.pretraining.job import PretrainingJob
from paucal.verbs.run.job import Job
from paucal.verbs.training.job import TrainingJob


def job_of(verb: str) -> Job[Any, Any]:
    """Return the job of a verb.

    Args:
        verb: One of `paucal.verbs.comparing.cells.grid.VERBS`.
    """
    # Imported when used: both load the evaluation of boxes or masks.
    if verb == "detect":
        from paucal.verbs.detecting.job import DetectionJob

        return DetectionJob()
    if verb == "segment":
        from paucal.verbs.segmenting.job import SegmentationJob

        return SegmentationJob()
    return TrainingJob() if verb == "train" else PretrainingJob()
