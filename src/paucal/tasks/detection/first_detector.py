"""The first detector of a run: only the new layers are trained; the backbone is frozen.

The backbone's feature maps are computed once per image, as in a linear probe of a classifier, so images are neither
mirrored nor resized in this stage. The maps are rounded to half precision and computed one image at a time, so that a
resumed run computes exactly the same maps again.
"""

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from lightning.pytorch import Callback
from torch import Tensor, nn
from torch.nn import functional as F

from paucal.backbones.stage_maps import StageMaps
from paucal.data.loader import TrainLoader, make_train_loader
from paucal.data.sampler import StepSampler
from paucal.memory import available_memory
from paucal.models.trained import save_trained
from paucal.objectives.finetuning import FineTuning
from paucal.runner.clock import start_time
from paucal.runner.console import Console
from paucal.runner.time_budget import seconds_per_step, trial_steps
from paucal.runs import RunFolder
from paucal.tasks.detection.assembly import DetectionSetup
from paucal.tasks.detection.batches import BoxBatch, BoxedDataset, collate_boxes
from paucal.tasks.detection.first_record import FirstDetector, save_layers
from paucal.tasks.detection.network.detector import Detector
from paucal.tasks.detection.objective import Detection
from paucal.tasks.detection.views import evaluation_view
from paucal.training import CosineWarmup, Optimization, Records, Watch, checkpoint_step, fit
from paucal.types import LossTerms, Progress

FOLDER = "first_detector"  # folder in the run for the checkpoints of the stage
SHARE = 0.2  # share of a run's time for the steps of the stage
PASSES = 12  # over the training images; more do not help while the backbone is frozen
MIN_STEPS = 20
WARMUP = 0.1  # share of the steps
RATE = 4.0  # factor on the learning rate of tuning
MEMORY_SHARE = 0.25  # share of the free memory for feature maps
TIMED_STEPS = 2  # after one warm-up step


class GridCache:
    """Feature maps of a frozen backbone for the images of a batch, kept while they fit in the memory."""

    def __init__(self, stages: StageMaps, max_bytes: int) -> None:
        self._stages, self._left = stages, max_bytes
        self._kept: dict[int, list[Tensor]] = {}

    def maps(self, batch: BoxBatch) -> list[Tensor]:
        """Return the maps of a batch; only layers after the backbone get a gradient."""
        images = batch.images
        per_image = [
            self._maps_of(key, image[:, :height, :width])
            for key, image, (height, width) in zip(batch.ids.tolist(), images, batch.image_sizes(), strict=True)
        ]
        levels = zip(*per_image, strict=True)
        grids = [_stack_maps([grid.to(images.device).float() for grid in level]) for level in levels]
        return self._stages.maps_of(grids, self._stages.padded_size(images.shape[-2], images.shape[-1]))

    @torch.no_grad()
    def _maps_of(self, key: int, image: Tensor) -> list[Tensor]:
        cached = self._kept.get(key)
        if cached is not None:
            return cached
        grids = [grid[0].half() for grid in self._stages.grids(image[None])]
        size = sum(grid.nbytes for grid in grids)
        if size <= self._left:
            grids = self._kept[key] = [grid.cpu() for grid in grids]
            self._left -= size
        return grids


def _stack_maps(grids: Sequence[Tensor]) -> Tensor:
    """Stack (channels, rows, columns) feature maps, padded with zeros to the most rows and columns."""
    rows, columns = (max(grid.shape[axis] for grid in grids) for axis in (1, 2))
    return torch.stack([F.pad(grid, (0, columns - grid.shape[2], 0, rows - grid.shape[1])) for grid in grids])


class FrozenBackboneDetection(Detection):
    """The losses of a detector with a frozen backbone, which sees each image once; `max_bytes` limits the kept maps."""

    def __init__(self, detector: Detector, max_bytes: int) -> None:
        super().__init__(detector, FineTuning(freeze="backbone", eval_mode=True))
        self._cache = GridCache(detector.stages, max_bytes)

    def forward(self, batch: BoxBatch, progress: Progress) -> LossTerms:  # type: ignore[override]
        """Return the losses of proposals and regions."""
        self.tuner.set_modes(progress)
        maps = self._cache.maps(batch)
        values = self.detector.losses(batch.images, batch.image_sizes(), batch.boxes, batch.labels, batch.masks, maps)
        return LossTerms(values, self.detector.loss_weights())


def frozen_backbone_detection(setup: DetectionSetup) -> FrozenBackboneDetection:
    """Return the objective of the stage, with a copy of the detector of a run."""
    with torch.random.fork_rng(devices=[]):
        detector = setup.card.build()
    detector.load_state_dict(setup.objective.deployable().state_dict())
    return FrozenBackboneDetection(detector, int(MEMORY_SHARE * available_memory()))


def loader(setup: DetectionSetup, steps: int, start: int = 0) -> TrainLoader:
    """Return the training images as a deployed detector sees them, from a forward pass on."""
    settings, preprocessing = setup.settings, setup.card.preprocessing
    view = evaluation_view(setup.card.resize_to, preprocessing.mean, preprocessing.std)
    dataset = BoxedDataset(setup.images, view, settings.seed, min_side=settings.least_box)
    indices, accumulate = setup.data.part("train"), settings.accumulate
    batch, passes = settings.images_per_pass, steps * accumulate
    sampler = StepSampler(indices, batch, passes, settings.seed, start, accumulate=accumulate)
    return make_train_loader(dataset, sampler, settings.workers, settings.device == "cuda", collate_boxes)


def fit_heads_steps(setup: DetectionSetup, seconds: float) -> int:
    """Return the steps of the stage that fit in some seconds; 0 if these are too few to be useful."""
    settings, objective, device = setup.settings, frozen_backbone_detection(setup), torch.device(setup.settings.device)
    batches, accumulate = loader(setup, TIMED_STEPS + 1), settings.accumulate
    with trial_steps(objective.train(), device):
        first = seconds_per_step(objective, batches, device, settings.precision, accumulate, threads=True)
        # Later steps read the cached feature maps.
        later_seconds = seconds_per_step(objective, batches, device, settings.precision, accumulate)
    each_pass = max(1, len(setup.data.part("train")) // settings.effective_batch)
    later_steps = max(0.0, seconds - each_pass * first) / later_seconds
    steps = min(int(min(seconds / first, each_pass) + later_steps), PASSES * each_pass)
    return steps if steps >= MIN_STEPS else 0


def train_first(
    run: RunFolder, setup: DetectionSetup, watch: Watch | None, console: Console, callbacks: Sequence[Callback] = ()
) -> FirstDetector | None:
    """Train the first detector, validate it and save it as the model of the run; continue a stopped stage.

    The stage keeps its checkpoints in a subfolder of the run. Returns None if a signal stopped it.
    """
    settings, steps = setup.settings, setup.settings.heads_steps
    assert steps is not None
    folder = RunFolder(run.path / FOLDER)
    (folder.path / "checkpoints").mkdir(parents=True, exist_ok=True)
    start = checkpoint_step(folder.last) * settings.accumulate if folder.last.exists() else 0

    def save(detector: nn.Module) -> None:
        save_layers(run, detector)
        save_trained(run, detector, setup.card)

    schedule = CosineWarmup(RATE * settings.lr, steps, math.ceil(WARMUP * steps))
    outcome = fit(
        frozen_backbone_detection(setup),
        lambda: loader(setup, steps, start),
        Optimization(schedule, settings.weight_decay, clip=settings.clip, average_decay=settings.average),
        replace(setup.plan, total_steps=steps, steps_per_epoch=steps),
        Records(folder, save, watch),
        [*console.callbacks(), *callbacks],
    )
    if not outcome.finished:
        return None
    ap, ap50 = (None if watch is None else outcome.rows[-1][name] for name in ("val_ap", "val_ap50"))
    first = FirstDetector(outcome.step, ap, ap50, time.monotonic() - start_time())
    first.write(run)
    shutil.rmtree(folder.path, ignore_errors=True)
    return first
