"""The commands that train, and the settings and the job of each, which are imported only when they are used."""

from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paucal.runner.job import AnyJob

# The class of the settings and the class of the job. `train` with a target column is a `RegressionJob` instead.
TRAINING_TASKS = {
    "train": ("methods.training_settings:TrainSettings", "tasks.classification.job:TrainingJob"),
    "pretrain": ("methods.pretraining_settings:PretrainSettings", "tasks.pretraining.job:PretrainingJob"),
    "segment": ("tasks.segmentation.settings:SegmentSettings", "tasks.segmentation.job:SegmentationJob"),
    "detect": ("tasks.detection.settings:DetectSettings", "tasks.detection.job:DetectionJob"),
}


def settings_of(verb: str) -> type:
    """Return the settings class of a training command, without importing torch."""
    return resolve_name(f"paucal.{TRAINING_TASKS[verb][0]}")


def job_of(verb: str) -> "AnyJob":
    """Return a job of a training command."""
    return resolve_name(f"paucal.{TRAINING_TASKS[verb][1]}")()
