"""The tasks of models, and the task of a stored model."""

import os
from pathlib import Path

from paucal.runs import RunFolder, open_model_folder
from paucal.runs.folder import MARKER

CLASSIFICATION, DETECTION, SEGMENTATION, REGRESSION = "classification", "detection", "segmentation", "regression"
# The verb that trains for each task.
VERBS = {CLASSIFICATION: "train", DETECTION: "detect", SEGMENTATION: "segment", REGRESSION: "train --target"}


def task_of(model: str | os.PathLike[str]) -> str:
    """Return the task of a run's model: "classification", or the task that its `model.json` names.

    Anything other than a run (an exported model, a missing path) counts as a classifier; opening it then reports any
    problem.
    """
    path = Path(model)
    marker_files = (MARKER, f"*/{MARKER}", RunFolder(path).card.name)
    if not path.is_dir() or not any(next(path.glob(name), None) for name in marker_files):
        return CLASSIFICATION
    run = open_model_folder(path)
    return str(run.read_json(run.card.name).get("task", CLASSIFICATION)) if run.card.is_file() else CLASSIFICATION
