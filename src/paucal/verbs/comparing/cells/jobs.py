"""Which job makes the runs of a grid."""

from typing import Any

from paucal.verbs.pretraining.job import PretrainingJob
from paucal.verbs.run.job import Job
from paucal.verbs.training.job import TrainingJob


def job_of(verb: str) -> Job[Any, Any]:
    """Return the job of a verb.

    Args:
        verb: of those in `paucal.verbs.comparing.cells.grid.VERBS`.
    """
    # Loaded where they are used, because they bring what counts boxes and masks.
    if verb == "detect":
        from paucal.verbs.detecting.job import DetectionJob

        return DetectionJob()
    if verb == "segment":
        from paucal.verbs.segmenting.job import SegmentationJob

        return SegmentationJob()
    return TrainingJob() if verb == "train" else PretrainingJob()
