"""The first stage of a detection run, which trains a first detector on the frozen backbone.

Feature maps of the backbone are computed once per image, so the images are not augmented in this stage. The maps are
rounded to half precision and computed one image at a time, so that a resumed run computes exactly the same maps again.
"""

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from paucal.backbones.stage_maps import PyramidBackbone
from paucal.data.loader import TrainLoader, make_train_loader
from paucal.data.sampler import StepSampler
from paucal.memory import read_available_memory
from paucal.models.trained import save_trained
from paucal.objectives.finetuning import FineTuning
from paucal.runner.clock import start_time
from paucal.runner.console import Console
from paucal.runner.time_budget import seconds_per_step
from paucal.runs import RunFolder
from paucal.tasks.detection.assembly import DetectionSetup
from paucal.tasks.detection.batches import BoxBatch, BoxedDataset, collate_boxes, stack_padded
from paucal.tasks.detection.model import FirstDetectorRecord, save_layers
from paucal.tasks.detection.network.detector import Detector
from paucal.tasks.detection.objective import DetectionObjective
from paucal.tasks.detection.views import make_evaluation_transform
from paucal.training import CosineWarmup, Optimization, RunHooks, Validation, checkpoint_step, fit
from paucal.training.timed_steps import timed_steps
from paucal.types import LossTerms, Progress

FOLDER = "first_detector"  # folder in the run for the checkpoints of this stage
TIME_FRACTION = 0.2  # fraction of the time budget for this stage
MAX_EPOCHS = 12  # more epochs do not help while the backbone is frozen
MIN_STEPS = 20  # this stage is left out if fewer steps fit in its part of the time budget
WARMUP_FRACTION = 0.1  # fraction of the steps with learning-rate warm-up
LR_FACTOR = 4.0  # learning rate of this stage, as a multiple of the run's learning rate
MAX_MEMORY_FRACTION = 0.25  # maximum fraction of the free memory for cached feature maps
TIMED_STEPS = 2  # number of timed steps after one warm-up step


class FeatureMapCache:
    """Computes feature maps of a frozen backbone, and caches the maps of each image, up to `max_bytes` in total."""

    def __init__(self, stages: PyramidBackbone, max_bytes: int) -> None:
        self._stages, self._free_bytes = stages, max_bytes
        self._cached: dict[int, list[Tensor]] = {}

    def maps(self, batch: BoxBatch) -> list[Tensor]:
        """Return the feature maps of a batch, one tensor per level, without gradients for the backbone."""
        images = batch.images
        per_image = [
            self._get_image_maps(key, image[:, :height, :width])
            for key, image, (height, width) in zip(batch.ids.tolist(), images, batch.image_sizes(), strict=True)
        ]
        levels = zip(*per_image, strict=True)
        grids = [stack_padded([grid.to(images.device).float() for grid in level]) for level in levels]
        return self._stages.maps_from_grids(grids, self._stages.padded_size(images.shape[-2], images.shape[-1]))

    @torch.no_grad()
    def _get_image_maps(self, key: int, image: Tensor) -> list[Tensor]:
        cached = self._cached.get(key)
        if cached is not None:
            return cached
        grids = [grid[0].half() for grid in self._stages.grids(image[None])]
        n_bytes = sum(grid.nbytes for grid in grids)
        if n_bytes <= self._free_bytes:
            grids = self._cached[key] = [grid.cpu() for grid in grids]
            self._free_bytes -= n_bytes
        return grids


class FrozenBackboneObjective(DetectionObjective):
    """The losses of a detector with a frozen backbone; up to `max_bytes` of the backbone's feature maps are cached."""

    def __init__(self, detector: Detector, max_bytes: int) -> None:
        super().__init__(detector, FineTuning(freeze="backbone", eval_mode=True))
        self._cache = FeatureMapCache(detector.stages, max_bytes)

    def forward(self, batch: BoxBatch, progress: Progress) -> LossTerms:  # type: ignore[override]
        """Return the losses of the proposal network and of the heads, with their weights."""
        self.tuner.set_modes(progress)
        maps = self._cache.maps(batch)
        values = self.detector.losses(batch.images, batch.image_sizes(), batch.boxes, batch.labels, batch.masks, maps)
        return LossTerms(values, self.detector.loss_weights())


def make_frozen_backbone_objective(setup: DetectionSetup) -> FrozenBackboneObjective:
    """Return the objective of the first stage, which trains a copy of the run's detector."""
    with torch.random.fork_rng(devices=[]):
        detector = setup.card.build()
    detector.load_state_dict(setup.objective.deployable().state_dict())
    return FrozenBackboneObjective(detector, int(MAX_MEMORY_FRACTION * read_available_memory()))


def make_unaugmented_loader(setup: DetectionSetup, steps: int, first_pass: int = 0) -> TrainLoader:
    """Return a loader of the training images without augmentation, which begins with forward pass `first_pass`."""
    settings, preprocessing = setup.settings, setup.card.preprocessing
    view = make_evaluation_transform(setup.card.resize_to, preprocessing.mean, preprocessing.std)
    dataset = BoxedDataset(setup.images, view, settings.seed, min_side=settings.least_box)
    indices, accumulate = setup.data.split_indices("train"), settings.accumulate
    # A single process trains the first stage, and `steps` is independent of the run's number of steps.
    sampler = StepSampler(
        indices, settings.batch_size_or_1, steps * accumulate, settings.seed, first_pass, accumulate=accumulate
    )
    return make_train_loader(dataset, sampler, settings.workers, settings.device == "cuda", collate_boxes)


def count_heads_steps(setup: DetectionSetup, seconds: float) -> int:
    """Return the number of steps of the first stage that fit in `seconds`; 0 if fewer than `MIN_STEPS` fit."""
    settings, objective, device = (
        setup.settings,
        make_frozen_backbone_objective(setup),
        torch.device(setup.settings.device),
    )
    batches, accumulate = make_unaugmented_loader(setup, TIMED_STEPS + 1), settings.accumulate
    with timed_steps(objective.train(), device):
        first_seconds = seconds_per_step(objective, batches, device, settings.precision, accumulate, tunes_threads=True)
        # Later steps read the cached feature maps.
        later_seconds = seconds_per_step(objective, batches, device, settings.precision, accumulate)
    steps_per_epoch = max(1, len(setup.data.split_indices("train")) // settings.effective_batch)
    later_steps = max(0.0, seconds - steps_per_epoch * first_seconds) / later_seconds
    steps = min(int(min(seconds / first_seconds, steps_per_epoch) + later_steps), MAX_EPOCHS * steps_per_epoch)
    return steps if steps >= MIN_STEPS else 0


def train_first_detector(
    run: RunFolder,
    setup: DetectionSetup,
    validation: Validation | None,
    console: Console,
    callbacks: Sequence[Callback] = (),
) -> FirstDetectorRecord | None:
    """Train the first detector, evaluate it on validation images, and save it as the model of the run.

    If this training was stopped before, it resumes from the checkpoints in a subfolder of the run. The result is None
    if a signal or the time limit stops the training.
    """
    settings, steps = setup.settings, setup.settings.heads_steps
    assert steps is not None
    folder = RunFolder(run.path / FOLDER)
    (folder.path / "checkpoints").mkdir(parents=True, exist_ok=True)
    first_pass = checkpoint_step(folder.last) * settings.accumulate if folder.last.exists() else 0

    def save(detector: nn.Module) -> None:
        save_layers(run, detector)
        save_trained(run, detector, setup.card)

    schedule = CosineWarmup(LR_FACTOR * settings.lr, steps, math.ceil(WARMUP_FRACTION * steps))
    outcome = fit(
        make_frozen_backbone_objective(setup),
        lambda: make_unaugmented_loader(setup, steps, first_pass),
        Optimization(schedule, settings.weight_decay, clip=settings.clip, average_decay=settings.average),
        replace(setup.plan, total_steps=steps, steps_per_epoch=steps),
        RunHooks(folder, save, validation),
        [*console.callbacks(), *callbacks],
    )
    if not outcome.finished:
        return None
    ap, ap50 = (None if validation is None else outcome.rows[-1][name] for name in ("val_ap", "val_ap50"))
    first_detector = FirstDetectorRecord(outcome.step, ap, ap50, time.monotonic() - start_time())
    first_detector.write(run)
    shutil.rmtree(folder.path, ignore_errors=True)
    return first_detector
