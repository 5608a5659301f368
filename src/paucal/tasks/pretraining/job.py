"""`paucal pretrain`: the steps of a run that are specific to pre-training, and the Python function `pretrain`."""

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightning.pytorch import Callback
from PIL import Image

from paucal.data.dataset import ViewDataset
from paucal.data.loader import TrainLoader
from paucal.data.views.sheets import draw_crop_sheet
from paucal.distributed import rank
from paucal.evaluation.collapse import Verdict
from paucal.evaluation.curves import health_figure, save_curves
from paucal.evaluation.plots import save_figure
from paucal.methods.pretraining import check_used, method_of, with_recipe
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.report.pretraining import write_pretraining_report
from paucal.runner import life
from paucal.runner.console import Console
from paucal.runner.frames import Data, takes_frames
from paucal.runner.images import step_loader, with_absolute_data_paths
from paucal.runner.initial_weights import without_none_init
from paucal.runner.job import Bars, FinishedRun, Job
from paucal.runner.processes import is_rank_zero, wait_for_all
from paucal.runner.results import publish_results
from paucal.runs import RunFolder
from paucal.settings.options import check_ranges
from paucal.settings.shared import DataSettings
from paucal.settings.values import with_settings_signature
from paucal.tasks.pretraining.assembly import PretrainingSetup, assemble, describe_crops, make_crop_transforms
from paucal.tasks.pretraining.monitor import KNN_SCORE
from paucal.tasks.pretraining.stage_watch import StageWatch, add_missing_parameters
from paucal.training import Optimization, Outcome, Validation, WarmupThenCosine
from paucal.wording import counted, percent


@dataclass(frozen=True)
class PretrainResult(FinishedRun):
    """The result of a finished pre-training run, whose model is the teacher's backbone after the last epoch.

    `last` has the metrics of the last epoch, by name. `verdict` describes a collapse, and is None if the networks were
    healthy at the end.
    """

    last: Mapping[str, float]
    verdict: Verdict | None
    seconds: float

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last epoch: losses, health metrics, and "val_knn" if the run has a monitor."""
        return dict(self.last)


def summary(setup: PretrainingSetup, outcome: Outcome, stage_watch: StageWatch) -> dict[str, Any]:
    """Return the content of `summary.json` and of the report page, without the next steps."""
    settings, data, verdict = setup.settings, setup.data, stage_watch.watcher.verdict
    # None if the run has no monitor; NaN if features were not finite.
    knn_accuracy = outcome.rows[-1].get(KNN_SCORE)
    return {
        **setup.summarise(outcome),
        "title": f"{setup.card.backbone.name} pre-trained on {data.images.name}",
        "kind": "pretraining",
        "method": method_of(settings).title(settings),
        "data": f"{data.images.name}: {counted(len(data.split_indices('train')), 'image')}",
        "parts": {name: count for name, count in data.counts().items() if count},
        "grid": setup.grid_text,
        "crops": describe_crops(settings),
        "out_dim": method_of(settings).n_prototypes(settings),
        "feature_dim": setup.objective.backbones()[0].dim,
        "epochs": settings.epochs,
        "monitor": settings.monitor,
        "knn_start": stage_watch.load_start_score(),
        "knn_end": knn_accuracy if knn_accuracy is not None and math.isfinite(knn_accuracy) else None,
        "verdict": None if verdict is None else vars(verdict),
        "verdicts": stage_watch.history(),
        "rollbacks": len(stage_watch.rollbacks),
    }


class PretrainingJob(Job[PretrainSettings, PretrainingSetup, PretrainResult]):
    """The job of `paucal pretrain`, with any pre-training method."""

    verb = "pretrain"
    settings_type = PretrainSettings
    reads = ("data", "data_root", "monitor", "init")

    def check(self, settings: PretrainSettings, origins: Mapping[str, str]) -> tuple[PretrainSettings, dict[str, str]]:
        """Fill in the values of the recipe, and refuse settings that contradict each other."""
        method_of(settings)
        settings, origins = with_recipe(without_none_init(settings), origins)
        check_used(settings, origins)
        check_ranges(settings)
        return settings, origins

    def with_absolute_paths(self, settings: PretrainSettings) -> PretrainSettings:
        """Return settings with absolute paths."""
        settings = super().with_absolute_paths(settings)
        if settings.monitor is None:
            return settings
        return replace(
            settings, monitor=with_absolute_data_paths(DataSettings(settings.monitor, settings.data_root)).data
        )

    def assemble(
        self, settings: PretrainSettings, origins: Mapping[str, str], bars: Bars, run: RunFolder | None = None
    ) -> PretrainingSetup:
        """Open the images, choose the settings that were not given, and build the objective of the run's stage."""
        setup = assemble(settings, origins, bars, run)
        # Only the first process rewrites the checkpoint; the other processes do not have the path of the run yet.
        if run is not None and is_rank_zero() and run.last.exists():
            add_missing_parameters(run, setup.objective)
        return setup

    def describe_data(self, setup: PretrainingSetup) -> list[str]:
        """Return one line: the name of the data, the number of training images, and which images are left out."""
        images, split = setup.data.images, setup.data.split
        return [f"images: {images.name}, {len(setup.data.split_indices('train'))} to learn from ({split.description})"]

    def draw_batch(self, setup: PretrainingSetup) -> Image.Image:
        """Draw the crops of a few images."""
        return draw_crop_sheet(next(iter(self.loader(setup, 0))), setup.statistics)  # type: ignore[arg-type]

    def loader(self, setup: PretrainingSetup, first_pass: int) -> TrainLoader:
        """Return the training loader of this process, starting at forward pass `first_pass`."""
        settings, data = setup.settings, setup.data
        transforms = make_crop_transforms(settings, setup.statistics)
        dataset = ViewDataset(data.images, transforms, settings.seed, with_labels=False)
        return step_loader(dataset, data, settings, setup.plan, first_pass)

    def optimization(self, setup: PretrainingSetup) -> Optimization:
        """Return the settings of the optimizer and its learning-rate schedule; the objective keeps other schedules."""
        settings, plan, method = setup.settings, setup.plan, method_of(setup.settings)
        warmup = round(settings.warmup_epochs * plan.steps_per_epoch)
        schedule = WarmupThenCosine(settings.lr, plan.total_steps, warmup, settings.min_lr)
        decay, clip = method.weight_decay(settings), method.clip(settings)
        return Optimization(schedule, decay, clip=clip, optimizer=settings.optimizer)

    def validation(self, setup: PretrainingSetup) -> Validation | None:
        """Return the `Validation` that scores the backbone on labelled images; None if `--monitor` is not given."""
        return None if setup.monitor is None else Validation(setup.monitor)

    def listener(self, run: RunFolder, setup: PretrainingSetup, console: Console) -> StageWatch:
        """Return the listener that detects collapse and the end of a stage."""
        return StageWatch(run, setup, console)

    def conclude(
        self, run: RunFolder, setup: PretrainingSetup, outcome: Outcome, listener: StageWatch, console: Console
    ) -> PretrainResult:
        """Draw the curves and write the results on the first process, while the other processes wait."""
        settings, verdict, last = setup.settings, listener.watcher.verdict, outcome.rows[-1] if outcome.rows else {}
        if rank() == 0:
            chance = {f"train_{name}": value for name, value in setup.objective.chance_levels().items()}
            save_curves(run, outcome.rows, len(setup.data.split_indices("train")), chance=chance)
            prototypes, dim = method_of(settings).n_prototypes(settings), setup.objective.backbones()[0].dim
            save_figure(run.plots / "health.png", health_figure(outcome.rows, prototypes, dim, verdict))
            neighbours = ""
            if KNN_SCORE in last:
                neighbours = f"; nearest neighbours {percent(last[KNN_SCORE])} on {settings.monitor}"
            lines = [
                f"pre-trained: {setup.describe()}, epochs: {settings.epochs}, {outcome.seconds:.0f} s; kept: the "
                f"backbone after the last epoch{neighbours}",
                "the networks look healthy" if verdict is None else f"{verdict.sentence} {verdict.advice}",
            ]
            path = shlex.quote(str(run.path))
            steps = [
                f"paucal train photos/ --init {path}     # fine-tune the backbone on labelled images",
                f"paucal eval {path} photos/ --protocol knn linear     # evaluate the frozen features",
            ]
            content = {**summary(setup, outcome, listener), "next_steps": steps}
            publish_results(run, console, content, write_pretraining_report, lines, "metrics.csv, plots/", steps)
        wait_for_all()
        return PretrainResult(run.path, last, verdict, outcome.seconds)


@with_settings_signature(PretrainSettings)
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
        data: "digits" (the built-in images, the default), a folder of images (searched to any depth), Parquet, or
            the name of a published data set.
        resume: Folder of a stopped run to resume, or a folder of runs, whose newest run is resumed. The run uses its
            stored data and settings. Only settings that do not change the result may be given, and `data` if the
            images have moved.
        callbacks: Additional Lightning callbacks.
        **settings: Fields of `paucal.methods.pretraining_settings.PretrainSettings`. Settings that are not given are
            chosen from the images.

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
