"""`paucal.pretrain`: a pre-training run from settings to report."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from paucal.methods.pretraining_settings import PretrainSettings
from paucal.runner import life
from paucal.runner.console import Console
from paucal.runner.life import Stopped
from paucal.settings.values import shows_settings
from paucal.tasks.pretraining.conclusion import PretrainResult
from paucal.tasks.pretraining.job import PretrainingJob


@shows_settings(PretrainSettings)
def pretrain(
    data: str | os.PathLike[str] | None = None, *, resume: str | os.PathLike[str] | None = None, **settings: Any
) -> PretrainResult:
    """Pre-train a backbone without labels; the same as `paucal pretrain`.

    Args:
        data: "digits" (the built-in images, the default), a folder of images of any depth, Parquet, or the name of a
            published data set.
        resume: Folder of a stopped run to resume, or a folder of runs, whose newest run is resumed. It uses its stored
            data and settings; only settings that do not change the result may be given, and `data` if the images have
            moved.
        **settings: Fields of `paucal.methods.pretraining_settings.PretrainSettings`; the others are chosen from the
            images.

    Returns:
        The run with its folder, its model (the trained backbone), its metrics and its health.

    Raises:
        UserError: The images or a setting are invalid, the networks collapsed with `on_collapse="stop"`, or the run was
            stopped; the message says what to do.
        TypeError: A setting does not exist.

    Example:
        >>> run = paucal.pretrain("unlabelled/", model="vit_mini", epochs=50)  # doctest: +SKIP
        >>> paucal.train("photos/", init=run.folder)  # doctest: +SKIP
    """
    given = settings if data is None else {**settings, "data": data}
    return life.run_quietly(PretrainingJob(), given, None if resume is None else os.fspath(resume), "paucal.pretrain")


def pretrain_run(
    settings: PretrainSettings, given: Mapping[str, str], console: Console, callbacks: Sequence[Callback] = ()
) -> PretrainResult | Stopped:
    """Start a pre-training run; see `life.begin`."""
    return life.begin(PretrainingJob(), settings, given, console, callbacks)


def resume_pretraining(
    path: str | Path, console: Console, changes: Mapping[str, Any] | None = None, callbacks: Sequence[Callback] = ()
) -> PretrainResult | Stopped:
    """Resume a stopped run; see `life.resume`."""
    return life.resume(PretrainingJob(), path, console, changes, callbacks)
