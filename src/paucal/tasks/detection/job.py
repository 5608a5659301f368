"""`paucal detect`: the training job of a detector, and its Python function."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Callback
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from paucal.cores import measure_slowdown
from paucal.data.loader import TrainLoader
from paucal.recipes.detection import LENGTH_SETTINGS, RECIPES
from paucal.recipes.recipe import fill_in, require_init
from paucal.runner import life
from paucal.runner.console import Console, result_line
from paucal.runner.frames import Data, takes_annotations
from paucal.runner.images import step_loader
from paucal.runner.initial_weights import without_none_init
from paucal.runner.job import Bars, EpochListener
from paucal.runner.resuming import store_changes
from paucal.runner.time_budget import Pace, PlannedLength, TimedJob, parse_duration, seconds_per_step
from paucal.runs import RunFolder
from paucal.settings.options import check_ranges, list_origins
from paucal.settings.values import with_settings_signature
from paucal.tasks.detection.assembly import DetectionSetup, assemble, check
from paucal.tasks.detection.batches import BoxedDataset, collate_boxes, evaluation_loader
from paucal.tasks.detection.conclusion import SCORE_COLUMN, DetectResult, conclude
from paucal.tasks.detection.detections import detect_all
from paucal.tasks.detection.evaluation import MASK_PREFIX, coco_scores
from paucal.tasks.detection.first_detector import TIME_FRACTION as FIRST_FRACTION
from paucal.tasks.detection.first_detector import count_heads_steps, train_first_detector
from paucal.tasks.detection.model import load_layers
from paucal.tasks.detection.pictures import draw_training_batch
from paucal.tasks.detection.settings import DetectSettings
from paucal.tasks.detection.views import CopyPaste, make_training_transform
from paucal.training import CosineWarmup, Optimization, Outcome, Validation
from paucal.training.fit import advise_on_memory_errors
from paucal.training.schedules import WarmupThenSteps
from paucal.training.timed_steps import timed_steps
from paucal.types import UserError
from paucal.wording import counted, format_duration

MISSED_COLUMN = "val_missed"  # fraction of missed objects, which ranks the epochs with equal AP
WARMUP_START = 1e-3  # learning rate at the first step of the published warm-up, as a fraction of the peak
TIMED_STEPS = 4  # number of timed steps after one warm-up step
TIMED_IMAGES = 4  # number of images whose evaluation is timed
MAX_EVALUATION_FRACTION = 0.15  # maximum fraction of the remaining time for validation
MAX_EVALUATIONS = 12  # maximum number of validations
MIN_STEPS = 10  # minimum number of training steps
MAX_EPOCHS, MAX_SCRATCH_EPOCHS = 60, 300  # maximum epochs with pretrained and with random initial weights
FINISH_SECONDS = 12.0  # time for the final scores, intervals and plots on an idle core
PLANNING_RESERVE = 0.02  # fraction of the time kept for unforeseen work


class DetectionListener(EpochListener[DetectionSetup]):
    """Prints the losses and scores after each validation, with the number of passes over the training images."""

    def on_epoch(self, epoch: int, epochs: int, row: Mapping[str, float]) -> None:
        """Print the losses and scores of a row of `metrics.csv`."""
        passes = row["step"] * self.setup.settings.effective_batch / len(self.setup.data.split_indices("train"))
        shown = {name: value for name, value in row.items() if name != MISSED_COLUMN}
        self.console.say(result_line(f"{epoch}/{epochs}: step {row['step']:.0f} ({passes:.1f} passes)", shown))


class StepPlan(NamedTuple):
    """The planned length of the rest of a run."""

    steps: int  # number of training steps; 0 if the time is too short
    judge_every: int  # number of steps between two evaluations
    seconds: float  # seconds of training, validation and final work; of the final work only if `steps` is 0


class DetectionJob(TimedJob[DetectSettings, DetectionSetup, DetectResult]):
    """Training of a detector with `paucal detect`."""

    verb = "detect"
    settings_type = DetectSettings
    reads = ("data", "init")
    length_setting = "steps"

    def check(self, settings: DetectSettings, origins: Mapping[str, str]) -> tuple[DetectSettings, dict[str, str]]:
        """Fill in the values of the recipe, and refuse invalid settings."""
        settings = without_none_init(settings)
        timed = settings.time is not None or settings.steps is not None
        settings, origins = fill_in(settings, origins, RECIPES, settings.recipe, LENGTH_SETTINGS if timed else ())
        check(settings)
        require_init(RECIPES, settings.recipe, settings.init)
        check_ranges(settings)
        return settings, origins

    def assemble(
        self, settings: DetectSettings, origins: Mapping[str, str], bars: Bars, run: RunFolder | None = None
    ) -> DetectionSetup:
        """Open the images, choose the settings that were not given and build the detector."""
        return assemble(settings, origins, bars, run)

    def describe_images(self, setup: DetectionSetup) -> str:
        """Return the name of the image set with the numbers of images, boxes and classes."""
        boxed = setup.images
        counts = counted(len(boxed.images), "image"), counted(boxed.count_boxes(), "box", "boxes")
        return f"{boxed.images.name}, {', '.join(counts)} of {counted(len(boxed.classes), 'class', 'classes')}"

    def draw_batch(self, setup: DetectionSetup) -> Image.Image:
        """Draw the first training images and boxes after augmentation."""
        preprocessing = setup.card.preprocessing
        batch = next(iter(self.loader(setup, 0)))
        return draw_training_batch(batch, setup.images.classes, preprocessing.mean, preprocessing.std)

    def needs_preliminary_work(self, setup: DetectionSetup) -> bool:
        """Return whether the first detector must still be trained, or the length of the run must still be planned."""
        return (bool(setup.settings.heads_steps) and setup.first is None) or super().needs_preliminary_work(setup)

    def run_preliminary_work(self, run: RunFolder, setup: DetectionSetup, console: Console) -> bool:
        """Train the first detector on the frozen backbone, then choose the number of steps for the remaining time."""
        setup = self._plan_first_detector(run, setup, console)
        if setup.settings.heads_steps and setup.first is None:
            console.say(f"first detector: {counted(setup.settings.heads_steps, 'step')} with a frozen backbone")
            with advise_on_memory_errors(setup.plan):
                first_detector = train_first_detector(run, setup, self.validation(setup), console)
            if first_detector is None:
                return False
            setup = replace(setup, first=first_detector)
            load_layers(run, setup.objective.deployable())
            ap = first_detector.score
            ap_text = "" if ap is None else f"AP {ap:.3f} on the validation images; "
            seconds_text = format_duration(first_detector.seconds)
            console.say(f"first detector after {seconds_text}: {ap_text}it is ready for use in {run.path}")
        return super().run_preliminary_work(run, setup, console) if super().needs_preliminary_work(setup) else True

    def _plan_first_detector(self, run: RunFolder, setup: DetectionSetup, console: Console) -> DetectionSetup:
        """Choose and store the steps of the first detector: a fifth of `--time`, or none."""
        settings = setup.settings
        if settings.heads_steps is not None or settings.time is None or settings.steps is not None:
            return setup
        steps, reason = 0, "the backbone starts from random weights"
        if settings.processes > 1:
            reason = "this stage is not supported with several processes"
        elif settings.init is not None:
            console.say("timing a few steps with a frozen backbone")
            with advise_on_memory_errors(setup.plan):
                steps = count_heads_steps(setup, FIRST_FRACTION * parse_duration(settings.time, "--time"))
            reason = f"a fifth of {settings.time}" if steps else f"a fifth of {settings.time} is too short"
        new_settings = replace(settings, heads_steps=steps)
        origins = list_origins(new_settings, setup.origins, {"heads_steps": reason})
        store_changes(run, new_settings, origins)
        return replace(setup, settings=new_settings, origins=origins)

    def measure(self, setup: DetectionSetup, tunes_threads: bool = False) -> Pace:
        """Measure the seconds per training step and per evaluated image."""
        settings, objective = setup.settings, setup.objective
        device = torch.device(settings.device)
        short_setup = replace(setup, plan=replace(setup.plan, total_steps=TIMED_STEPS + 1, accumulate=1))
        indices = setup.data.split_indices("val" if len(setup.data.split_indices("val")) else "test")[:TIMED_IMAGES]
        with timed_steps(objective.train(), device):
            batches: Any = self.loader(short_setup, 0)
            accumulate = setup.plan.accumulate
            step_seconds = seconds_per_step(objective, batches, device, settings.precision, accumulate, tunes_threads)
            start = time.perf_counter()
            score = _detect_for_scores(setup, objective.deployable(), indices, device)
            image_seconds = (time.perf_counter() - start) / max(len(indices), 1)
            score()  # not timed, since the first call imports packages
            if settings.masks == "on":  # without masks, the time for computing scores is negligible
                start = time.perf_counter()
                score()
                image_seconds += (time.perf_counter() - start) / max(len(indices), 1)
        return Pace(step_seconds, image_seconds, image_seconds, FINISH_SECONDS * measure_slowdown())

    def fit_length(self, setup: DetectionSetup, pace: Pace, seconds_left: float) -> PlannedLength:
        """Return the number of steps that fit in the time, and the number of steps between validations."""
        settings, counts = setup.settings, setup.data.counts()
        epochs_per_step = settings.effective_batch / max(counts["train"], 1)
        max_epochs = MAX_EPOCHS if settings.init is not None else MAX_SCRATCH_EPOCHS
        plan = plan_steps_for_time(pace, seconds_left, counts, epochs_per_step, max_epochs)
        if not plan.steps:
            assert settings.time is not None  # the length is planned only for a time budget
            seconds_spent = parse_duration(settings.time, "--time") - seconds_left
            needed_seconds = seconds_spent + plan.seconds + MIN_STEPS * pace.step + pace.evaluation(counts)
            raise UserError(
                f"--time is {settings.time}, but a step takes {pace.step:.1f} s here, and evaluating an image "
                f"{pace.val_image:.1f} s: give --time {int(1.2 * needed_seconds // 60) + 1}m or more, or a smaller "
                "--img-size."
            )
        passes = plan.steps * epochs_per_step
        text = f"{plan.steps} steps of {pace.step:.2f} s ({passes:.1f} passes) fit in {settings.time}"
        reasons = {"steps": text, "judge_every": "validation takes at most a seventh of the time"}
        values = {"steps": plan.steps, "judge_every": plan.judge_every}
        return PlannedLength(values, reasons, text, plan.seconds, int(max_epochs / epochs_per_step))

    def loader(self, setup: DetectionSetup, first_pass: int) -> TrainLoader:
        """Return the training loader of this process, which begins with forward pass `first_pass`."""
        settings, preprocessing, sides = setup.settings, setup.card.preprocessing, setup.card.resize_to
        view = make_training_transform(sides, preprocessing.mean, preprocessing.std, settings.hflip, settings.jitter)
        train_indices = [int(index) for index in setup.data.split_indices("train")]
        pasting = CopyPaste(settings.copy_paste, train_indices) if settings.copy_paste else None
        dataset = BoxedDataset(setup.images, view, settings.seed, pasting, settings.least_box)
        return step_loader(dataset, setup.data, settings, setup.plan, first_pass, collate_fn=collate_boxes)

    def optimization(self, setup: DetectionSetup) -> Optimization:
        """Return the settings of AdamW and its learning-rate schedule."""
        settings, plan = setup.settings, setup.plan
        steps_per_epoch = max(1, len(setup.data.split_indices("train")) // settings.effective_batch)
        warmup = min(round(settings.warmup_epochs * steps_per_epoch), plan.total_steps // 2)
        schedule = make_schedule(settings, plan.total_steps, warmup, steps_per_epoch)
        return Optimization(schedule, settings.weight_decay, clip=settings.clip, average_decay=settings.average)

    def validation(self, setup: DetectionSetup) -> Validation | None:
        """Return the validation of the run; None if there are no validation images to select a model."""
        indices = setup.data.split_indices("val")

        def evaluate(detector: nn.Module, device: torch.device) -> Mapping[str, float]:
            scores = _detect_for_scores(setup, detector, indices, device)()
            names = [name for name in ("ap", "ap50", f"{MASK_PREFIX}ap") if name in scores]
            return {**{f"val_{name}": scores[name] for name in names}, MISSED_COLUMN: 1 - scores["recall"]}

        floor = None if setup.first is None else setup.first.score
        return Validation(evaluate, SCORE_COLUMN, MISSED_COLUMN, floor) if len(indices) else None

    def listener(self, run: RunFolder, setup: DetectionSetup, console: Console) -> DetectionListener:
        """Return the object that prints losses and scores."""
        return DetectionListener(setup, console)

    def conclude(
        self, run: RunFolder, setup: DetectionSetup, outcome: Outcome, listener: EpochListener, console: Console
    ) -> DetectResult:
        """Evaluate the best detector on the test images and write the results."""
        return conclude(run, setup, outcome, console)


@with_settings_signature(DetectSettings)
@takes_annotations
def detect(
    data: Data | None = None,
    *,
    resume: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback] | Callback | None = None,
    **settings: Any,
) -> DetectResult:
    """Train a detector on images with boxes and evaluate it on the test images; the same as `paucal detect`.

    Args:
        data: Folder, archive or annotation file in a layout that `paucal detect --help` lists, such as COCO or YOLO;
            or a DataFrame with a row for each box (the settings `image` and `label` name its columns).
        resume: Folder of a stopped run to resume, or a folder of runs, whose newest run is resumed. With `resume`,
            `data` is needed only if the images have moved.
        callbacks: Additional Lightning callbacks, which are called during training.
        **settings: Fields of `paucal.tasks.detection.settings.DetectSettings`, such as `time`, `model` or `output`;
            settings that are not given are chosen from the data and the machine.

    Returns:
        The run with its folder and its test scores.

    Raises:
        UserError: The data or a setting is invalid, or the run was stopped; the message says what to do.
        TypeError: A setting does not exist.

    Example:
        >>> run = paucal.detect("bccd/", time="20m")  # doctest: +SKIP
        >>> run.scores["ap50"].value, run.per_class["RBC"]  # doctest: +SKIP
        (0.871, 0.561)
    """
    return life.run_quietly(DetectionJob(), data, resume, callbacks, settings)


def plan_steps_for_time(
    pace: Pace, seconds_left: float, counts: Mapping[str, int], epochs_per_step: float, max_epochs: int
) -> StepPlan:
    """Return the longest plan that fits in the remaining time; `counts` are the numbers of images by split."""
    ending_seconds, eval_seconds = pace.closing_seconds(counts), pace.evaluation(counts)
    usable_seconds = seconds_left * (1 - PLANNING_RESERVE) - ending_seconds
    max_evaluations = MAX_EVALUATIONS
    if eval_seconds > 0:
        max_evaluations = int(MAX_EVALUATION_FRACTION * usable_seconds / eval_seconds)
    evaluations = max(1, min(MAX_EVALUATIONS, max_evaluations))
    steps = min(int((usable_seconds - evaluations * eval_seconds) / pace.step), int(max_epochs / epochs_per_step))
    if steps < MIN_STEPS:
        return StepPlan(0, 1, ending_seconds)
    seconds = steps * pace.step + evaluations * eval_seconds + ending_seconds
    return StepPlan(steps, -(-steps // evaluations), seconds)


def make_schedule(
    settings: DetectSettings, steps: int, warmup: int, steps_per_epoch: int
) -> CosineWarmup | WarmupThenSteps:
    """Return a schedule that drops the learning rate to a tenth at `--milestones`, or else a half-cosine schedule."""
    peak = settings.lr
    if not settings.milestones:
        return CosineWarmup(peak, steps, warmup, floor=settings.min_lr)
    milestone_steps = tuple(epochs * steps_per_epoch for epochs in settings.milestones)
    return WarmupThenSteps(peak, milestone_steps, warmup, WARMUP_START * peak)


def _detect_for_scores(
    setup: DetectionSetup, detector: nn.Module, indices: NDArray[np.int64], device: torch.device
) -> Callable[[], dict[str, Any]]:
    """Detect objects in the images at `indices`, and return a function that computes COCO's scores for these images."""
    loader = evaluation_loader(setup.images, indices, setup.card, setup.settings.workers)
    detections = detect_all(detector, loader, device)
    order = [int(index) for index in indices]
    truth = [setup.images.boxes_of(index) for index in order]
    return lambda: coco_scores([detections[index] for index in order], truth, len(setup.images.classes))
