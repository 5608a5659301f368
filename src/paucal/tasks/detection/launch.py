"""`paucal.detect`: one run of a detector from settings to scores."""

import os
from typing import Any

from paucal.runner import life
from paucal.settings.values import shows_settings
from paucal.tasks.detection.conclusion import DetectResult
from paucal.tasks.detection.job import DetectionJob
from paucal.tasks.detection.settings import DetectSettings


@shows_settings(DetectSettings)
def detect(
    data: str | os.PathLike[str] | None = None, *, resume: str | os.PathLike[str] | None = None, **settings: Any
) -> DetectResult:
    """Train a detector on images with boxes and judge it on the test images; the same as `paucal detect`.

    Args:
        data: Folder, archive or annotation file of COCO, Pascal VOC, YOLO, LabelMe or CVAT, or a CSV of boxes.
        resume: Folder of a run that was stopped and shall go on, or a folder of runs, whose newest is taken; `data`
            then names images that have moved.
        **settings: any field of `paucal.tasks.detection.settings.DetectSettings`, such as `time`, `model` or `output`;
            what is left out is chosen from the data and the machine.

    Returns:
        The run: its folder and what it has reached on the test images.

    Raises:
        UserError: the data or a setting does not do, or the run was stopped; the message says what to do.
        TypeError: a setting does not exist.

    Example:
        >>> run = paucal.detect("bccd/", time="20m")  # doctest: +SKIP
        >>> run.scores["ap50"].value, run.per_class["RBC"]  # doctest: +SKIP
        (0.871, 0.561)
    """
    given = settings if data is None else {**settings, "data": os.fspath(data)}
    return life.run_quietly(DetectionJob(), given, None if resume is None else os.fspath(resume), "paucal.detect")
