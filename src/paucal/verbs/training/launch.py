"""`paucal.train`: one training run from settings to report."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from paucal.methods.training_settings import TrainSettings
from paucal.settings.values import from_python, given_names, shows_settings
from paucal.types import UserError
from paucal.verbs.run import life
from paucal.verbs.run.life import Stopped
from paucal.verbs.run.voice import Quiet, Voice
from paucal.verbs.training.conclusion import Result
from paucal.verbs.training.folds import CrossValidated
from paucal.verbs.training.folds import cross_validate as train_folds
from paucal.verbs.training.job import TrainingJob


@shows_settings(TrainSettings)
def train(
    data: str | os.PathLike[str] | None = None, *, resume: str | os.PathLike[str] | None = None, **settings: Any
) -> Result:
    """Train a model and judge it on the test images; the same as `paucal train`.

    Args:
        data: "digits" (the built-in images, which are the default), a folder of images, Parquet in the Hugging Face
            layout, a list file, or the name of a published set such as "cifar10".
        resume: the folder of a run that was stopped and shall go on, or a folder of runs, whose newest is taken. It
            has its own data and settings; of these only what does not change the result may be given anew,
            and `data` where the images have moved.
        **settings: any field of `paucal.methods.training_settings.TrainSettings`, such as `model`, `epochs` or
            `output`; what is left out is chosen from the data.

    Returns:
        The run: its folder, its model and what it has reached on the test images.

    Raises:
        UserError: the data or a setting does not do, and the message says what to change; or the run was stopped, by a
            signal or its time limit, and the message says how to go on.
        TypeError: a setting does not exist.

    Example:
        >>> run = paucal.train("photos/", model="resnet18", epochs=20)  # doctest: +SKIP
        >>> run.metrics["top1"], run.report.scores["top1"]  # doctest: +SKIP
        (0.93, Score(value=0.93, low=0.91, high=0.95))
        >>> run.model.probabilities([image])  # doctest: +SKIP
        tensor([[0.0312, 0.9688]])
    """
    given = settings if data is None else {**settings, "data": data}
    return life.run_quietly(TrainingJob(), given, None if resume is None else os.fspath(resume), "paucal.train")


@shows_settings(TrainSettings)
def cross_validate(data: str | os.PathLike[str] | None = None, *, folds: int = 5, **settings: Any) -> CrossValidated:
    """Train once for every fold, each time tested on another one; the same as `paucal train --folds`.

    Args:
        data: as in `paucal.train`; parts of its own are not looked at.
        folds: how many.
        **settings: as in `paucal.train`; `output` is the folder of all runs.

    Returns:
        The scores of every fold, their mean (`metrics`) and standard deviation (`spread`).

    Raises:
        UserError: the data or a setting does not do, or a run was stopped.
        TypeError: a setting does not exist.

    Example:
        >>> found = paucal.cross_validate("photos/", folds=5, group_by="patient[0-9]+")  # doctest: +SKIP
        >>> found.metrics["top1"], found.spread["top1"]  # doctest: +SKIP
        (0.91, 0.02)
    """
    values = {**settings, "folds": folds} if data is None else {**settings, "folds": folds, "data": data}
    made = from_python(TrainSettings, values, "paucal.cross_validate", "train")
    result = train_folds(made, dict.fromkeys(given_names(values), "given"), Quiet())
    if isinstance(result, Stopped):
        raise UserError(f"{result}.")
    return result


def train_run(
    settings: TrainSettings, given: Mapping[str, str], voice: Voice, callbacks: Sequence[Callback] = ()
) -> Result | Stopped:
    """Train from the beginning; see `life.begin`."""
    return life.begin(TrainingJob(), settings, given, voice, callbacks)


def resume_run(
    path: str | Path, voice: Voice, changes: Mapping[str, Any] | None = None, callbacks: Sequence[Callback] = ()
) -> Result | Stopped:
    """Go on with a run that was stopped; see `life.resume`."""
    return life.resume(TrainingJob(), path, voice, changes, callbacks)
