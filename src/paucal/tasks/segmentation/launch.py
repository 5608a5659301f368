"""`paucal.segment`: one run of segmentation from settings to report."""

import os
from typing import Any

from paucal.runner import life
from paucal.settings.values import shows_settings
from paucal.tasks.segmentation.conclusion import SegmentResult
from paucal.tasks.segmentation.job import SegmentationJob
from paucal.tasks.segmentation.settings import SegmentSettings


@shows_settings(SegmentSettings)
def segment(
    data: str | os.PathLike[str] | None = None, *, resume: str | os.PathLike[str] | None = None, **settings: Any
) -> SegmentResult:
    """Train a network that gives every pixel a class, and judge it on the test images; the same as `paucal segment`.

    Args:
        data: a folder with a folder of images and one of masks in it; `images` and `masks` may name them instead.
        resume: the folder of a run that was stopped and shall go on, or a folder of runs, whose newest is taken. It
            has its own data and settings; of these only what does not change the result may be given anew,
            and `data` where the images have moved.
        **settings: any field of `paucal.tasks.segmentation.settings.SegmentSettings`, such as `model`, `time` or
            `output`; what is left out is chosen from the data.

    Returns:
        The run: its folder, its model and what it has reached on the test images.

    Raises:
        UserError: the data or a setting does not do, and the message says what to change; or the run was stopped, by a
            signal or its time limit, and the message says how to go on.
        TypeError: a setting does not exist.

    Example:
        >>> run = paucal.segment("cells/", time="15m")  # doctest: +SKIP
        >>> run.metrics["mean_iou"], run.report.mean_iou  # doctest: +SKIP
        (0.83, Score(value=0.83, low=0.81, high=0.85))
        >>> run.model.mask(image)  # doctest: +SKIP
        array([[0, 0, 1, ...]], dtype=uint8)
    """
    given = settings if data is None else {**settings, "data": data}
    return life.run_quietly(SegmentationJob(), given, None if resume is None else os.fspath(resume), "paucal.segment")
