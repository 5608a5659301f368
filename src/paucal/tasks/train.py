"""`paucal.train`: train a classifier or, with `target`, a regression model."""

import os
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback

from paucal.data.shards.folders import is_remote
from paucal.methods.training_settings import TrainSettings
from paucal.runner import life
from paucal.runner.frames import Data, takes_frames
from paucal.runner.job import AnyJob
from paucal.runner.stored_runs import StoredRun
from paucal.runs import open_run
from paucal.settings.values import with_settings_signature
from paucal.tasks.classification.job import TrainingJob
from paucal.tasks.regression.job import RegressionJob
from paucal.types import UserError


def select_job(target: object) -> AnyJob:
    """Return a regression job if there is a target column, or else a classification job."""
    return TrainingJob() if target is None else RegressionJob()


def read_target(path: str) -> object:
    """Return the `target` setting of a stopped run; None for a classifier.

    Also returns None if the run cannot be read, since a later step reports that error.
    """
    try:
        settings = StoredRun(path).read_settings() if is_remote(path) else open_run(path).settings
        return settings.get("target")
    except UserError:
        return None


@with_settings_signature(TrainSettings)
@takes_frames
def train(
    data: Data | None = None,
    *,
    resume: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback] | Callback | None = None,
    **settings: Any,
) -> Any:
    """Train a model and evaluate it on the test images; the same as `paucal train`.

    Args:
        data: "digits" (the built-in images, the default), a folder of images, Parquet in the Hugging Face layout, a
            list file, or the name of a published data set such as "cifar10"; or a DataFrame (pandas, Polars, Arrow)
            with a row per image, where `image=` names the column of paths or images and `label=` the column of labels.
            The run folder keeps a copy of a DataFrame.
        resume: Folder of a stopped run to resume, or a folder of runs, whose newest run is resumed. The run uses its
            stored data and settings. Only settings that do not change the result may be given, and `data` if the
            images have moved.
        callbacks: Additional Lightning callbacks.
        **settings: Fields of `paucal.methods.training_settings.TrainSettings`, such as `model`, `epochs` or `output`.
            Settings that are not given are chosen from the data.

    Returns:
        The run with its folder, its model and its test scores.

    Raises:
        UserError: The data or a setting is invalid, or a signal or the time limit stopped the run; the message says
            what to do.
        TypeError: A setting does not exist.

    Example:
        >>> run = paucal.train("photos/", model="resnet18", epochs=20)  # doctest: +SKIP
        >>> run.metrics["top1"], run.report.scores["top1"]  # doctest: +SKIP
        (0.93, Score(value=0.93, low=0.91, high=0.95))
        >>> run.model.probabilities([image])  # doctest: +SKIP
        tensor([[0.0312, 0.9688]])
    """
    target = settings.get("target") if resume is None else read_target(os.fspath(resume))
    return life.run_quietly(select_job(target), data, resume, callbacks, settings)
