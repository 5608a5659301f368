"""`paucal.pretrain`: one pre-training run from settings to report."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from paucal.methods.pretraining_settings import PretrainSettings
from paucal.settings.values import shows_settings
from paucal.verbs.pretraining.conclusion import PretrainResult
from paucal.verbs.pretraining.job import PretrainingJob
from paucal.verbs.run import life
from paucal.verbs.run.life import Stopped
from paucal.verbs.run.voice import Voice


@shows_settings(PretrainSettings)
def pretrain(
    data: str | os.PathLike[str] | None = None, *, resume: str | os.PathLike[str] | None = None, **settings: Any
) -> PretrainResult:
    """Pre-train a backbone without labels; the same as `paucal pretrain`.

    Args:
        data: "digits" (the built-in images, which are the default), a folder of images of any depth, Parquet, or the
            name of a published set.
        resume: the folder of a run that was stopped and shall go on, or a folder of runs, whose newest is taken. It
            has its own data and settings; of these only what does not change the result may be given anew,
            and `data` where the images have moved.
        **settings: any field of `paucal.methods.pretraining_settings.PretrainSettings`; what is left out is chosen
            from the images.

    Returns:
        The run: its folder, its model, which is the trained backbone, and what the run has shown of itself.

    Raises:
        UserError: the images or a setting do not do, the networks collapsed with `on_collapse="stop"`, or the run was
            stopped; the message says what to do.
        TypeError: a setting does not exist.

    Example:
        >>> run = paucal.pretrain("unlabelled/", model="vit_mini", epochs=50)  # doctest: +SKIP
        >>> paucal.train("photos/", init=run.folder)  # doctest: +SKIP
    """
    given = settings if data is None else {**settings, "data": data}
    return life.run_quietly(PretrainingJob(), given, None if resume is None else os.fspath(resume), "paucal.pretrain")


def pretrain_run(
    settings: PretrainSettings, given: Mapping[str, str], voice: Voice, callbacks: Sequence[Callback] = ()
) -> PretrainResult | Stopped:
    """Pre-train from the beginning; see `life.begin`."""
    return life.begin(PretrainingJob(), settings, given, voice, callbacks)


def resume_pretraining(
    path: str | Path, voice: Voice, changes: Mapping[str, Any] | None = None, callbacks: Sequence[Callback] = ()
) -> PretrainResult | Stopped:
    """Go on with a run that was stopped; see `life.resume`."""
    return life.resume(PretrainingJob(), path, voice, changes, callbacks)
