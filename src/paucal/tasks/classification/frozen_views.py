"""Train only the last stages of a network, on stored activations of its frozen stages (`--frozen-views`).

View v of an image is the image as augmented in epoch v. The activations of the first few views are computed once, and
the epochs of training cycle through these views. The activations are in a memory-mapped file, which is removed when the
process ends. A resumed run computes the activations again in the same batches, and so gets the same values.
"""

import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from paucal.backbones.frozen_stages import FrozenStages
from paucal.data.dataset import Sample, SampleKey, as_label, collate
from paucal.data.decoded.cache_folder import usable_disk_bytes
from paucal.data.images import Targets
from paucal.data.loader import TrainLoader, inference_batch_size, make_ordered_loader
from paucal.memory import read_available_memory
from paucal.methods.training_settings import TrainSettings
from paucal.models.preprocessing import Preprocessing
from paucal.objectives import Objective, Supervised
from paucal.runner.images import SplitImages, step_loader
from paucal.tasks.classification.trainer_inputs import make_view_dataset
from paucal.training import Plan
from paucal.types import Batch, Progress, UserError

# Maximum size of the activations, as a fraction of the free memory, so that the file stays in the page cache.
MAX_MEMORY_FRACTION = 0.25
# Relative tolerance for differences of logits. The absolute tolerance is this number times the logits' standard
# deviation.
LOGIT_TOLERANCE = 1e-2
_FIRST_STEP = Progress(0, 1, 1)

Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class FrozenViewActivations:
    """Activations of the frozen stages for V views of each of the N training images."""

    stages: FrozenStages  # the network can continue from their stored outputs
    activations: Tensor  # (V * N, ...), ordered by view, then by image
    rows: NDArray[np.int64]  # (M,) position of each image of the data set among the training images; -1 for others
    n_views: int  # number of views V

    def loader(self, data: SplitImages, settings: TrainSettings, plan: Plan, first_pass: int) -> TrainLoader:
        """Return a training loader of activations, starting at forward pass `first_pass`."""
        dataset, balanced = _ActivationDataset(self, data.images.targets), settings.sampling == "balanced"
        settings = replace(settings, workers=0)  # the activations need no processing that worker processes could share
        return step_loader(dataset, data, settings, plan, first_pass, settings.repeats, balanced)

    @contextmanager
    def feed_to(self, objective: Objective) -> Iterator[None]:
        """Within the block, let an objective take batches of activations and start after the frozen stages."""

        def prepare_resume(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            batch: Batch = inputs[0]
            return replace(batch, views=[self.stages.resume_from(batch.views[0])]), *inputs[1:]

        handles = (
            objective.register_forward_pre_hook(prepare_resume),
            objective.register_forward_hook(lambda *_: self.stages.forget_activations(), always_call=True),
        )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class _ActivationDataset(Dataset[Sample]):
    def __init__(self, views: FrozenViewActivations, targets: Targets) -> None:
        self._views, self._targets = views, targets

    def __getitems__(self, keys: list[SampleKey]) -> list[Sample]:  # called by `DataLoader`, once per batch
        stored = self._views
        views = torch.tensor([(key.epoch + key.repeat) % stored.n_views for key in keys])
        images = torch.from_numpy(stored.rows[[key.index for key in keys]])
        rows = stored.activations[views * (len(stored.activations) // stored.n_views) + images]
        labels = (as_label(self._targets[key.index]) for key in keys)
        return [Sample(key.index, [row], label, None, None) for key, row, label in zip(keys, rows, labels, strict=True)]


def why_unsupported(settings: TrainSettings, objective: Objective) -> str | None:
    """Return why `--frozen-views` is not supported with these settings, or what to change; None if it is supported."""
    if settings.freeze in (None, "backbone", "weights"):
        return "give the number of frozen stages with --freeze, with trained stages after them"
    if type(objective) is not Supervised or objective.names:
        return "use --method supervised without extra losses, since other methods and losses use the frozen stages"
    if settings.mixup or settings.cutmix:
        return "mixup and cutmix change the images in each step: give --mixup 0 --cutmix 0"
    if settings.processes > 1 or settings.compile:
        return "use a single process, without --compile"
    return None


@contextmanager
def compute_view_activations(
    folder: Path,
    data: SplitImages,
    images: NDArray[np.int64],
    preprocess: Preprocessing,
    settings: TrainSettings,
    objective: Objective,
    advance: Advance | None = None,
) -> Iterator[FrozenViewActivations]:
    """Compute the activations of `settings.frozen_views` views of some images, for use within the block.

    The activations are stored in a memory-mapped file in `folder`. `images` are the (N,) indices of the images in the
    data set. The objective is moved to the run's device.
    """
    n_views, rows = settings.frozen_views, np.full(len(data.images), -1, dtype=np.int64)
    rows[images] = np.arange(len(images))
    stages = FrozenStages(objective.deployable(), settings.freeze if isinstance(settings.freeze, int) else 0)
    dataset = make_view_dataset(data, preprocess, settings, objective.data_request)
    size = inference_batch_size(preprocess.image_size, settings.device)
    objective.to(settings.device)
    stored_activations: Tensor | None = None
    n_stored = 0
    try:
        for view in range(n_views):
            for batch in make_ordered_loader(dataset, images, size, collate, settings.workers, epoch=view):
                activations = _compute_activations(stages, objective, batch, settings)
                if stored_activations is None:
                    _check_frozen_stages(stages, objective, batch, activations, settings)
                    shape = (n_views * len(images), *activations.shape[1:])
                    stored_activations = _memory_mapped_tensor(folder, shape, activations.dtype)
                stored_activations[n_stored : n_stored + len(activations)] = activations.cpu()
                n_stored += len(activations)
                if advance is not None:
                    advance(n_stored, n_views * len(images))
        assert stored_activations is not None
        yield FrozenViewActivations(stages, stored_activations, rows, n_views)
    finally:
        stages.close()


def _compute_activations(stages: FrozenStages, objective: Objective, batch: Batch, settings: TrainSettings) -> Tensor:
    """Return the frozen stages' activations for a batch, in the precision and the train/eval modes of training."""
    assert isinstance(objective, Supervised)
    objective.train()
    objective.tuner.set_modes(_FIRST_STEP)  # frozen stages are always in evaluation mode
    with training_autocast(settings):
        return stages.activations(batch.views[0].to(settings.device))


def training_autocast(settings: TrainSettings) -> torch.autocast:
    """Return the autocast context of a training step."""
    dtype = torch.float16 if settings.precision == "16-mixed" else torch.bfloat16
    return torch.autocast(settings.device, dtype, enabled=settings.precision != "32-true")


def _check_frozen_stages(
    stages: FrozenStages, objective: Objective, batch: Batch, activations: Tensor, settings: TrainSettings
) -> None:
    """Refuse a network whose frozen stages draw random numbers, or output more than one tensor."""
    repeated = _compute_activations(stages, objective, batch, settings)
    model = objective.deployable().eval()
    images = batch.views[0].to(settings.device)
    with torch.no_grad(), training_autocast(settings):
        logits = model(images)
        resumed = model(stages.resume_from(activations))
        stages.forget_activations()
    logits, resumed = logits.float(), resumed.float()
    atol = LOGIT_TOLERANCE * float(logits.std(correction=0))  # the logits of an untrained head may be tiny
    if not torch.equal(activations, repeated) or not torch.allclose(logits, resumed, rtol=LOGIT_TOLERANCE, atol=atol):
        raise UserError(
            f"--frozen-views is not supported for {settings.model}, whose frozen stages output more than one "
            "tensor, or draw random numbers: remove --frozen-views."
        )


def max_activation_bytes(folder: Path) -> int:
    """Return a quarter of the free memory, or half of the free disk space if this is less."""
    return min(int(MAX_MEMORY_FRACTION * read_available_memory()), usable_disk_bytes(folder))


def _memory_mapped_tensor(folder: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor in a memory-mapped file that is removed together with the tensor."""
    n_bytes = math.prod(shape) * dtype.itemsize
    if n_bytes > max_activation_bytes(folder):
        raise UserError(
            f"--frozen-views needs {n_bytes / 1e9:.1f} GB, but may use at most a quarter of the free memory and half "
            "of the free disk: give fewer views, or remove --frozen-views."
        )
    file_descriptor, path = tempfile.mkstemp(prefix="activations-", suffix=".tmp", dir=folder)
    try:
        if hasattr(os, "posix_fallocate"):  # reserve the space now: a later write to a full disk would kill the process
            os.posix_fallocate(file_descriptor, 0, max(1, n_bytes))
        return torch.from_file(path, shared=True, size=math.prod(shape), dtype=dtype).view(shape)
    except OSError as problem:
        raise UserError(f"--frozen-views needs {n_bytes / 1e9:.1f} GB on the disk of {folder}: {problem}.") from problem
    finally:
        os.close(file_descriptor)
        with suppress(OSError):  # fails on Windows, where the file stays until the run folder is removed
            os.unlink(path)  # the mapping stays until the tensor is freed
