"""`paucal segment`: the training job of a segmentation model, and its Python function."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import Callback
from PIL import Image
from torch import nn

from paucal.cores import measure_slowdown
from paucal.data.loader import TrainLoader
from paucal.data.sampler import steps_per_epoch
from paucal.reading import expand_user_path
from paucal.recipes.recipe import fill_in, require_init
from paucal.recipes.segmentation import RECIPES
from paucal.runner import life
from paucal.runner.console import Console
from paucal.runner.frames import Data, takes_annotations
from paucal.runner.images import step_loader
from paucal.runner.initial_weights import with_absolute_init_path, without_none_init
from paucal.runner.job import Bars, EpochListener
from paucal.runner.outputs import output_path, refuse_inside_images
from paucal.runner.time_budget import (
    Pace,
    PlannedLength,
    TimedJob,
    choose_time_or_epochs,
    parse_duration,
    seconds_per_step,
)
from paucal.runs import RunFolder
from paucal.runs.folder import RUNS_FOLDER
from paucal.settings.options import check_ranges, flag, is_automatic, refuse_unsupported
from paucal.settings.values import with_settings_signature
from paucal.tasks.segmentation.assembly import (
    WARMUP_FRACTION,
    SegmentationSetup,
    assemble,
    crop_options,
    fast_inference_options,
    final_inference_options,
)
from paucal.tasks.segmentation.conclusion import SCORE_COLUMN, SegmentResult, conclude
from paucal.tasks.segmentation.crops import CropTransform, MaskedCrops
from paucal.tasks.segmentation.pictures import draw_crops
from paucal.tasks.segmentation.scores import count_pixels, scores_without_intervals
from paucal.tasks.segmentation.settings import SegmentSettings
from paucal.training import CosineWarmup, Optimization, Outcome, Validation
from paucal.training.schedules import LinearWarmup
from paucal.training.timed_steps import timed_steps
from paucal.types import UserError
from paucal.wording import counted, format_duration

PATHS = ("data", "images", "masks", "classes", "split")  # names of the settings whose values are paths
# Settings of other tasks that are not supported for images with masks.
UNSUPPORTED_SETTINGS = ("data_root", "download", "image_column", "channels")
LOSS_COLUMN = "val_loss"
WARMUP_START = 1e-6  # learning rate at the first step of the warm-up, relative to the peak, as in Swin's code
SCALE_RANGE = (0.05, 20.0)  # range of the factors by which images are scaled
TIMED_STEPS = 6  # number of timed steps, after one warm-up step
MIN_EPOCHS = 10  # minimum number of epochs of a run with a time budget, if the time allows
MAX_LENGTH_RATIO = 10  # maximum number of steps of a run that is faster than planned, relative to the planned steps
FINISH_SECONDS = 8.0  # seconds on an idle core for the start of training, the plots and the report


class SegmentationJob(TimedJob[SegmentSettings, SegmentationSetup, SegmentResult]):
    """Training of a segmentation model with `paucal segment`."""

    verb = "segment"
    settings_type = SegmentSettings
    reads = (*PATHS, "init")
    length_setting = "epochs"

    def check(self, settings: SegmentSettings, origins: Mapping[str, str]) -> tuple[SegmentSettings, dict[str, str]]:
        """Fill in the values of the recipe, and refuse settings that contradict each other."""
        settings = without_none_init(settings)
        settings, origins = fill_in(settings, origins, RECIPES, settings.recipe, ())
        require_init(RECIPES, settings.recipe, settings.init)
        check_ranges(settings)
        refuse_unsupported(settings, UNSUPPORTED_SETTINGS, "segmentation")
        if settings.epochs is not None and settings.freeze_epochs >= settings.epochs:
            raise UserError(
                f"--freeze-epochs {settings.freeze_epochs} leaves no epoch of {settings.epochs} for the backbone: "
                "give fewer --freeze-epochs, more --epochs, or --freeze backbone."
            )
        check_factors("scale", settings.scale, expected_count=2)
        check_factors("scales", settings.scales)
        if settings.resize_to is not None and len(settings.resize_to) != 2:
            text = " ".join(map(str, settings.resize_to))
            raise UserError(f"--resize-to is {text}; expected a shorter and a longer side, such as 512 2048.")
        return choose_time_or_epochs(settings, origins), origins

    def with_absolute_paths(self, settings: SegmentSettings) -> SegmentSettings:
        """Return settings with absolute paths, and refuse an output folder among the images or masks."""
        settings = with_absolute_init_path(settings)
        paths: dict[str, Any] = {}
        for name in PATHS:
            value = getattr(settings, name)
            if value is not None:
                paths[name] = os.path.realpath(expand_user_path(value, flag(name) if name != "data" else "DATA"))
        output = output_path(settings.output, RUNS_FOLDER)
        refuse_inside_images(output, {flag(name): paths.get(name) for name in ("images", "masks")})
        return replace(settings, **paths)

    def assemble(
        self, settings: SegmentSettings, origins: Mapping[str, str], bars: Bars, run: RunFolder | None = None
    ) -> SegmentationSetup:
        """Open images and masks, choose the settings that were not given and build the network."""
        return assemble(settings, origins, bars, run)

    def describe_images(self, setup: SegmentationSetup) -> str:
        """Return the name of the data, with the number of images and the number of classes."""
        images = setup.data.images
        return f"{images.name}, {len(images)} images with masks, {len(setup.card.classes)} classes"

    def draw_batch(self, setup: SegmentationSetup) -> Image.Image:
        """Draw training crops as the network will see them, with their masks."""
        return draw_crops(next(iter(self.loader(setup, 0))), setup.card)  # type: ignore[arg-type]

    def measure(self, setup: SegmentationSetup, tunes_threads: bool = False) -> Pace:
        """Measure the seconds of a training step, of a validation image and of a test image."""
        settings, objective = setup.settings, setup.objective
        device = torch.device(settings.device)
        plan = replace(setup.plan, total_steps=TIMED_STEPS + 1)
        short_setup = replace(setup, settings=replace(settings, workers=0), plan=plan)
        image = setup.data.split_indices("train")[:1].tolist()
        evaluations = []
        with timed_steps(objective.train(), device):
            batches: Any = self.loader(short_setup, 0)
            step = seconds_per_step(objective, batches, device, settings.precision, settings.accumulate, tunes_threads)
            for options in (fast_inference_options(settings), final_inference_options(settings)):
                start_time, network = time.perf_counter(), objective.deployable()
                count_pixels(network, setup.data, image, setup.card.preprocessing, options, device)
                evaluations.append(time.perf_counter() - start_time)
        val_image, test_image = evaluations
        return Pace(step, val_image, test_image, FINISH_SECONDS * measure_slowdown())

    def fit_length(self, setup: SegmentationSetup, pace: Pace, seconds_left: float) -> PlannedLength:
        """Return the number of epochs, and the number of crops per image and epoch, that fit in the time."""
        settings, counts = setup.settings, setup.data.counts()
        training_seconds = seconds_left - pace.closing_seconds(counts)
        crop_seconds = pace.step * counts["train"] / settings.effective_batch  # seconds per epoch, one crop per image
        eval_seconds = pace.evaluation(counts)
        crops_are_given = setup.origins["crops"] != "default" and not is_automatic(setup.origins["crops"])
        crops, epochs = plan_crops_and_epochs(
            training_seconds, crop_seconds, eval_seconds, settings.crops, crops_are_given
        )
        epoch_seconds = crops * crop_seconds + eval_seconds
        if epochs < 1:
            assert settings.time is not None  # the length is planned only for a time budget
            needed_seconds = parse_duration(settings.time, "--time") - training_seconds + epoch_seconds
            raise UserError(
                f"--time {settings.time} is too short: reading, one epoch and the test take about "
                f"{format_duration(needed_seconds)} on this machine; give a longer --time, fewer --crops or a "
                "smaller --img-size."
            )
        values: dict[str, Any] = {"epochs": epochs}
        duration = format_duration(epoch_seconds)
        reasons = {"epochs": f"{settings.time}: an epoch takes about {duration} here (a step {pace.step:.2f} s)"}
        if settings.warmup_epochs is None:
            values["warmup_epochs"], reasons["warmup_epochs"] = WARMUP_FRACTION * epochs, "a twentieth of the epochs"
        if crops != settings.crops:
            fills = "fills" if epochs == 1 else "fill"
            values["crops"], reasons["crops"] = crops, f"so that {counted(epochs, 'epoch')} {fills} the time"
        steps = epochs * steps_per_epoch(counts["train"] * crops, settings.effective_batch)
        text, seconds = f"{counted(epochs, 'epoch')} of {duration} each fit in {settings.time}", epochs * epoch_seconds
        return PlannedLength(values, reasons, text, seconds + pace.closing_seconds(counts), MAX_LENGTH_RATIO * steps)

    def loader(self, setup: SegmentationSetup, first_pass: int) -> TrainLoader:
        """Return the loader of training crops, starting at forward pass `first_pass`."""
        settings, preprocessing = setup.settings, setup.card.preprocessing
        transform = CropTransform(crop_options(settings), preprocessing.normalisation)
        crops = MaskedCrops(setup.data.images, setup.data.masks, transform, settings.seed)
        return step_loader(crops, setup.data, settings, setup.plan, first_pass)

    def optimization(self, setup: SegmentationSetup) -> Optimization:
        """Return the settings of AdamW and of the learning-rate schedule."""
        settings, plan = setup.settings, setup.plan
        warmup, start = round(settings.warmup_epochs * plan.steps_per_epoch), WARMUP_START * settings.lr
        schedule_type = LinearWarmup if settings.schedule == "linear" else CosineWarmup
        schedule = schedule_type(settings.lr, plan.total_steps, warmup, start, settings.min_lr)
        return Optimization(schedule, settings.weight_decay, clip=settings.clip, average_decay=settings.average)

    def validation(self, setup: SegmentationSetup) -> Validation | None:
        """Return the validation of the run; None without validation images, when the last epoch is kept."""
        indices = setup.data.split_indices("val").tolist()

        def validate(module: nn.Module, device: torch.device) -> Mapping[str, float]:
            options = fast_inference_options(setup.settings)
            counts = count_pixels(module, setup.data, indices, setup.card.preprocessing, options, device)
            scores = scores_without_intervals(counts)
            accuracy = scores["pixel_accuracy"]
            return {SCORE_COLUMN: scores["mean_iou"], "val_pixel_accuracy": accuracy, LOSS_COLUMN: scores["loss"]}

        return Validation(validate, SCORE_COLUMN, LOSS_COLUMN) if indices else None

    def conclude(
        self, run: RunFolder, setup: SegmentationSetup, outcome: Outcome, listener: EpochListener, console: Console
    ) -> SegmentResult:
        """Evaluate the best model on the test images and write the results."""
        return conclude(run, setup, outcome, console)


@with_settings_signature(SegmentSettings)
@takes_annotations
def segment(
    data: Data | None = None,
    *,
    resume: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback] | Callback | None = None,
    **settings: Any,
) -> SegmentResult:
    """Train a network that classifies every pixel, and evaluate it on the test images; the same as `paucal segment`.

    Args:
        data: Folder that contains a folder of images and a folder of masks, unless `images` and `masks` name these; or
            a table or DataFrame with a row per image, where `image=` and `mask=` name the columns of paths.
        resume: Folder of a stopped run to resume, or a folder of runs, whose newest run is resumed. The run uses its
            stored data and settings. Only settings that do not change the result may be given, and `data` if the
            images have moved.
        callbacks: Additional Lightning callbacks.
        **settings: Fields of `paucal.tasks.segmentation.settings.SegmentSettings`, such as `model`, `time` or
            `output`. Settings that are not given are chosen from the data.

    Returns:
        The run with its folder, its model and its test scores.

    Raises:
        UserError: The data or a setting is invalid, or a signal or the time limit stopped the run; the message says
            what to do.
        TypeError: A setting does not exist.

    Example:
        >>> run = paucal.segment("cells/", time="15m")  # doctest: +SKIP
        >>> run.metrics["mean_iou"], run.report.mean_iou  # doctest: +SKIP
        (0.83, Score(value=0.83, low=0.81, high=0.85))
        >>> run.model.mask(image)  # doctest: +SKIP
        array([[0, 0, 1, ...]], dtype=uint8)
    """
    return life.run_quietly(SegmentationJob(), data, resume, callbacks, settings)


def plan_crops_and_epochs(
    training_seconds: float, crop_seconds: float, eval_seconds: float, crops: int, crops_are_given: bool
) -> tuple[int, int]:
    """Return the number of crops per image and epoch, and the number of epochs, that fill a time.

    `crop_seconds` are the seconds of the training steps in an epoch with one crop per image. The number of crops is
    adjusted, unless the user gave it.

    Example:
        >>> plan_crops_and_epochs(100.0, crop_seconds=1.0, eval_seconds=1.0, crops=24, crops_are_given=True)
        (24, 4)
        >>> plan_crops_and_epochs(100.0, crop_seconds=1.0, eval_seconds=1.0, crops=24, crops_are_given=False)
        (9, 10)
    """
    if not crops_are_given:
        max_epochs = max(1, int(training_seconds / (crop_seconds + eval_seconds)))
        epochs = min(max_epochs, max(MIN_EPOCHS, round(training_seconds / (crops * crop_seconds + eval_seconds))))
        crops = max(1, int((training_seconds / epochs - eval_seconds) / crop_seconds))
    return crops, int(training_seconds / (crops * crop_seconds + eval_seconds))


def check_factors(name: str, values: list[float] | None, expected_count: int | None = None) -> None:
    """Refuse scale factors that are out of range, and 20 or more factors.

    If `expected_count` is given, also refuse another number of factors, and a first factor above the last.
    """
    if values is None:
        return
    low, high = SCALE_RANGE
    is_valid = (
        all(low <= value <= high for value in values)
        and len(values) == (expected_count or len(values))
        and len(values) < 20
    )
    if not is_valid or (expected_count and values[0] > values[-1]):
        expected = "the smallest and the largest factor" if expected_count else "up to 19 factors"
        raise UserError(
            f"{flag(name)} is {' '.join(f'{value:g}' for value in values)}; expected {expected}, each from {low:g} to "
            f"{high:g}."
        )
