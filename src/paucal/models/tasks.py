"""Names of the tasks, and the task of a stored model."""

import os
from pathlib import Path

from paucal.runs import RunFolder, open_model_folder
from paucal.runs.folder import CONFIG_FILE

CLASSIFICATION, DETECTION, SEGMENTATION, REGRESSION = "classification", "detection", "segmentation", "regression"
# The command that trains a model for each task.
TRAINING_COMMANDS = {
    CLASSIFICATION: "train",
    DETECTION: "detect",
    SEGMENTATION: "segment",
    REGRESSION: "train --target",
}


def task_of(model: str | os.PathLike[str]) -> str:
    """Return the task in the `model.json` of a run; "classification" if the file does not name a task.

    Other paths (an exported model, a missing file) also count as classifiers, since opening them later reports any
    problem.
    """
    path = Path(model)
    run_files = (CONFIG_FILE, f"*/{CONFIG_FILE}", RunFolder(path).card.name)
    if not path.is_dir() or not any(next(path.glob(name), None) for name in run_files):
        return CLASSIFICATION
    run = open_model_folder(path)
    return str(run.read_json(run.card.name).get("task", CLASSIFICATION)) if run.card.is_file() else CLASSIFICATION
