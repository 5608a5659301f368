"""`paucal pretrain`: the task-specific steps of a run, and the function for Python."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightning.pytorch import Callback
from PIL import Image

from paucal.data.dataset import ViewDataset
from paucal.data.loader import TrainLoader
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.sheets import crop_sheet
from paucal.methods.pretraining import check_used, method_of, with_recipe
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.runner import life
from paucal.runner.console import Console
from paucal.runner.frames import Data, takes_frames
from paucal.runner.images import pin_data, step_loader
from paucal.runner.job import Bars, Job
from paucal.runner.processes import is_first
from paucal.runner.starts import plain_init
from paucal.runs import RunFolder
from paucal.settings.groups import DataSettings
from paucal.settings.options import check_ranges
from paucal.settings.values import shows_settings
from paucal.tasks.pretraining.assembly import PretrainingSetup, assemble
from paucal.tasks.pretraining.conclusion import PretrainResult, conclude
from paucal.tasks.pretraining.crops import views
from paucal.tasks.pretraining.stage_watch import StageWatch
from paucal.tasks.pretraining.stages import add_parameters, lacks_parameters
from paucal.training import Optimization, Outcome, WarmupThenCosine, Watch


class PretrainingJob(Job[PretrainSettings, PretrainingSetup, PretrainResult]):
    """Pre-training, with any of its methods."""

    verb = "pretrain"
    kind = PretrainSettings
    reads = ("data", "data_root", "monitor", "init")

    def check(self, settings: PretrainSettings, given: Mapping[str, str]) -> tuple[PretrainSettings, dict[str, str]]:
        """Fill in the recipe and refuse settings that contradict each other."""
        method_of(settings)
        settings, origin = with_recipe(plain_init(settings), given)
        check_used(settings, origin)
        check_ranges(settings)
        return settings, origin

    def pin(self, settings: PretrainSettings) -> PretrainSettings:
        """Return settings with absolute paths."""
        settings = super().pin(settings)
        if settings.monitor is None:
            return settings
        return replace(settings, monitor=pin_data(DataSettings(settings.monitor, settings.data_root)).data)

    def assemble(
        self, settings: PretrainSettings, given: Mapping[str, str], bars: Bars, run: RunFolder | None = None
    ) -> PretrainingSetup:
        """Open the images, choose the settings that were not given and build the objective of the run's stage."""
        setup = assemble(settings, given, bars, run)
        # The other processes do not know the path of the run yet.
        if run is not None and is_first() and lacks_parameters(run, setup.objective):
            add_parameters(run, setup.objective)
        return setup

    def describe_data(self, setup: PretrainingSetup) -> list[str]:
        """Return a line with the number of images and the part that is used."""
        images, split = setup.data.images, setup.data.split
        return [f"images: {images.name}, {len(setup.data.part('train'))} to learn from ({split.description})"]

    def draw_batch(self, setup: PretrainingSetup) -> Image.Image:
        """Draw the crops of a few images."""
        return crop_sheet(next(iter(self.loader(setup, 0))), _normalisation(setup))  # type: ignore[arg-type]

    def loader(self, setup: PretrainingSetup, start: int) -> TrainLoader:
        """Return the training loader of this process from forward pass `start` on."""
        settings, data = setup.settings, setup.data
        transforms = views(settings, _normalisation(setup))
        dataset = ViewDataset(data.images, transforms, settings.seed, labels=False)
        return step_loader(dataset, data, settings, setup.plan, start)

    def optimization(self, setup: PretrainingSetup) -> Optimization:
        """Return the optimizer with its schedule in steps; a method's own schedules are in its objective."""
        settings, plan, method = setup.settings, setup.plan, method_of(setup.settings)
        warmup = round(settings.warmup_epochs * plan.steps_per_epoch)
        schedule = WarmupThenCosine(settings.lr, plan.total_steps, warmup, settings.min_lr)
        decay, clip = method.weight_decay(settings), method.clip(settings)
        return Optimization(schedule, decay, clip=clip, optimizer=settings.optimizer)

    def validation(self, setup: PretrainingSetup) -> Watch | None:
        """Return the monitor of labelled images; None without one."""
        return None if setup.monitor is None else Watch(setup.monitor)

    def watcher(self, run: RunFolder, setup: PretrainingSetup, console: Console) -> StageWatch:
        """Return the watcher for collapse and for the next stage."""
        return StageWatch(run, setup, console)

    def conclude(
        self, run: RunFolder, setup: PretrainingSetup, outcome: Outcome, watcher: StageWatch, console: Console
    ) -> PretrainResult:
        """Draw the curves and write the results."""
        return conclude(run, setup, outcome, watcher, console)


@shows_settings(PretrainSettings)
@takes_frames
def pretrain(
    data: Data | None = None,
    *,
    resume: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback] | Callback | None = None,
    **settings: Any,
) -> PretrainResult:
    """Pre-train a backbone without labels; the same as `paucal pretrain`.

    Args:
        data: "digits" (the built-in images, the default), a folder of images of any depth, Parquet, or the name of a
            published data set.
        resume: Folder of a stopped run to resume, or a folder of runs, whose newest run is resumed. It uses its stored
            data and settings; only settings that do not change the result may be given, and `data` if the images have
            moved.
        callbacks: Lightning callbacks that watch the training, in addition to those of the run.
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
    return life.run_quietly(PretrainingJob(), data, resume, callbacks, settings)


def _normalisation(setup: PretrainingSetup) -> Normalisation:
    return Normalisation(setup.card.preprocessing.mean, setup.card.preprocessing.std)
