"""`paucal.train`: one training run from settings to report."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from paucal.methods.training_settings import TrainSettings
from paucal.runner import life
from paucal.runner.console import Console, SilentConsole
from paucal.runner.life import Stopped
from paucal.settings.values import from_python, given_names, shows_settings
from paucal.tasks.classification.conclusion import Result
from paucal.tasks.classification.folds import CrossValidated
from paucal.tasks.classification.folds import cross_validate as train_folds
from paucal.tasks.classification.job import TrainingJob
from paucal.types import UserError


@shows_settings(TrainSettings)
def train(
    data: str | os.PathLike[str] | None = None, *, resume: str | os.PathLike[str] | None = None, **settings: Any
) -> Result:
    """Train a model and evaluate it on the test images; the same as `paucal train`.

    Args:
        data: "digits" (the built-in images, the default), a folder of images, Parquet in the Hugging Face layout, a
            list file, or the name of a published data set such as "cifar10".
        resume: Folder of a stopped run to resume, or a folder of runs, whose newest run is resumed. It uses its stored
            data and settings; only settings that do not change the result may be given, and `data` if the images have
            moved.
        **settings: Fields of `paucal.methods.training_settings.TrainSettings`, such as `model`, `epochs` or `output`;
            the others are chosen from the data.

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
    given = settings if data is None else {**settings, "data": data}
    return life.run_quietly(TrainingJob(), given, None if resume is None else os.fspath(resume), "paucal.train")


@shows_settings(TrainSettings)
def cross_validate(data: str | os.PathLike[str] | None = None, *, folds: int = 5, **settings: Any) -> CrossValidated:
    """Train once per fold, each time tested on another fold; the same as `paucal train --folds`.

    Args:
        data: Images, as in `paucal.train`; their own parts are ignored.
        folds: Number of folds.
        **settings: Settings as in `paucal.train`; `output` is the folder of all runs.

    Returns:
        The scores of every fold, their mean (`metrics`) and standard deviation (`spread`).

    Raises:
        UserError: The data or a setting is invalid, or a run was stopped.
        TypeError: A setting does not exist.

    Example:
        >>> found = paucal.cross_validate("photos/", folds=5, group_by="patient[0-9]+")  # doctest: +SKIP
        >>> found.metrics["top1"], found.spread["top1"]  # doctest: +SKIP
        (0.91, 0.02)
    """
    values = {**settings, "folds": folds} if data is None else {**settings, "folds": folds, "data": data}
    typed = from_python(TrainSettings, values, "paucal.cross_validate", "train")
    result = train_folds(typed, dict.fromkeys(given_names(values), "given"), SilentConsole())
    if isinstance(result, Stopped):
        raise UserError(f"{result}.")
    return result


def train_run(
    settings: TrainSettings, given: Mapping[str, str], console: Console, callbacks: Sequence[Callback] = ()
) -> Result | Stopped:
    """Start a training run; see `life.begin`."""
    return life.begin(TrainingJob(), settings, given, console, callbacks)


def resume_run(
    path: str | Path, console: Console, changes: Mapping[str, Any] | None = None, callbacks: Sequence[Callback] = ()
) -> Result | Stopped:
    """Resume a stopped run; see `life.resume`."""
    return life.resume(TrainingJob(), path, console, changes, callbacks)
