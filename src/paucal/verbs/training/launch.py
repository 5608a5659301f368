"""`paucal.train`: one training run from settings to report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from paucal.methods.training_settings import TrainSettings
from paucal.verbs.run import life
from paucal.verbs.run.life import Stopped
from paucal.verbs.run.voice import Voice
from paucal.verbs.training.conclusion import Result
from paucal.verbs.training.job import TrainingJob


def train(data: str | Path = "digits", **settings: Any) -> Result:
    """Train a model and judge it on the test images; the same as `paucal train`.

    Args:
        data: "digits" (the built-in images), a folder of images, Parquet in the Hugging Face layout, a list file, or
            the name of a published set such as "cifar10".
        **settings: any field of `paucal.methods.training_settings.TrainSettings`, such as `model`, `epochs` or
            `output`; what is left out is chosen from the data.

    Returns:
        The run folder and the report on the test images.

    Raises:
        UserError: the data or a setting does not do, and the message says what to change; or the run was stopped, by a
            signal or its time limit, and the message says how to go on.
        TypeError: a setting does not exist.

    Example:
        >>> result = paucal.train("photos/", model="resnet18", epochs=20)  # doctest: +SKIP
        >>> result.report.scores["top1"].value  # doctest: +SKIP
        0.93
    """
    return life.run_quietly(TrainingJob(), data, settings, name="paucal.train")


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
