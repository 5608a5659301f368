"""Train only the last stages: the activations of the frozen stages are computed once for a few views.

A view is an image as augmented in one epoch: view v is that of epoch v, and later epochs cycle through the views. The
activations are in a memory-mapped file, which disappears with the process. A resumed run computes them again in the
same batches, and so continues with the same numbers.
"""

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
from paucal.data.decoded.cache_folder import free_bytes
from paucal.data.images import Targets
from paucal.data.loader import TrainLoader, inference_batch_size, make_ordered_loader
from paucal.memory import available_memory
from paucal.methods.training_settings import TrainSettings
from paucal.models.preprocessing import Preprocessing
from paucal.objectives import Objective, Supervised
from paucal.runner.images import SplitImages, step_loader
from paucal.tasks.classification.loaders import view_dataset
from paucal.training import Plan
from paucal.types import Batch, Progress, UserError

MEMORY_SHARE = 0.25  # largest share of the free memory, so that the file stays cached
TOLERANCE = 1e-2  # tolerance of logits, relative to their values and to their standard deviation
_START = Progress(0, 1, 1)

Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class FrozenViews:
    """Activations of the frozen stages for some views of each training image.

    Attributes:
        kept: (V * N, ...) activations, ordered by view, then by image.
        rows: (images of the set,) position of each training image among the N; -1 for others.
    """

    stages: FrozenStages
    kept: Tensor
    rows: NDArray[np.int64]
    count: int

    def loader(self, data: SplitImages, settings: TrainSettings, plan: Plan, start: int) -> TrainLoader:
        """Return a training loader of activations, from forward pass `start` on."""
        dataset, balanced = _ActivationDataset(self, data.images.targets), settings.sampling == "balanced"
        settings = replace(settings, workers=0)  # worker processes would only copy
        return step_loader(dataset, data, settings, plan, start, settings.repeats, balanced)

    def samples(self, keys: list[SampleKey], targets: Targets) -> list[Sample]:
        """Return the activations of some draws of images, with the targets of the images."""
        views = torch.tensor([(key.epoch + key.repeat) % self.count for key in keys])
        images = torch.from_numpy(self.rows[[key.index for key in keys]])
        rows = self.kept[views * (len(self.kept) // self.count) + images]
        labels = (as_label(targets[key.index]) for key in keys)
        return [Sample(key.index, [row], label, None, None) for key, row, label in zip(keys, rows, labels, strict=True)]

    @contextmanager
    def read_by(self, objective: Objective) -> Iterator[None]:
        """Within the block, let the batches of an objective contain activations in place of images.

        The objective then continues after the frozen stages.
        """

        def begin(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            batch: Batch = inputs[0]
            return replace(batch, views=[self.stages.resume_from(batch.views[0])]), *inputs[1:]

        handles = (
            objective.register_forward_pre_hook(begin),
            objective.register_forward_hook(lambda *_: self.stages.forget(), always_call=True),
        )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class _ActivationDataset(Dataset[Sample]):
    """Activations by sample key, in place of the images of a `ViewDataset`."""

    def __init__(self, views: FrozenViews, targets: Targets) -> None:
        self._views, self._targets = views, targets

    def __getitems__(self, keys: list[SampleKey]) -> list[Sample]:
        """Return several samples."""
        return self._views.samples(keys, self._targets)


def why_not_kept(settings: TrainSettings, objective: Objective) -> str | None:
    """Return why activations cannot be kept with these settings; None if they can."""
    if settings.freeze in (None, "backbone", "weights"):
        return "it needs frozen stages (--freeze with their number) and trained ones behind them"
    if type(objective) is not Supervised or objective.names:
        return "only --method supervised without extra losses never reads the frozen stages"
    if settings.mixup or settings.cutmix:
        return "mixup and cutmix make new images in each step: give --mixup 0 --cutmix 0"
    if settings.processes > 1 or settings.compile:
        return "it needs one process, without --compile"
    return None


@contextmanager
def keep_views(
    folder: Path,
    data: SplitImages,
    images: NDArray[np.int64],
    preprocess: Preprocessing,
    settings: TrainSettings,
    objective: Objective,
    advance: Advance | None = None,
) -> Iterator[FrozenViews]:
    """Compute the activations of `settings.frozen_views` views of some images, and remove them after the block.

    The objective has frozen stages, and is moved to the run's device. `advance` is called with (views done, all views).
    """
    count = settings.frozen_views
    rows = np.full(len(data.images), -1, dtype=np.int64)
    rows[images] = np.arange(len(images))
    stages = FrozenStages(objective.deployable(), settings.freeze if isinstance(settings.freeze, int) else 0)
    dataset = view_dataset(data, preprocess, settings, objective.data_request)
    size = inference_batch_size(preprocess.image_size, settings.device)
    objective.to(settings.device)
    stored_views: Tensor | None = None
    n_stored = 0
    try:
        for view in range(count):
            for batch in make_ordered_loader(dataset, images, size, collate, settings.workers, epoch=view):
                activations = _activations(stages, objective, batch, settings)
                if stored_views is None:
                    _check_frozen_stages(stages, objective, batch, activations, settings)
                    shape = (count * len(images), *activations.shape[1:])
                    stored_views = _memory_mapped_tensor(folder, shape, activations.dtype)
                stored_views[n_stored : n_stored + len(activations)] = activations.cpu()
                n_stored += len(activations)
                if advance is not None:
                    advance(n_stored, count * len(images))
        assert stored_views is not None
        yield FrozenViews(stages, stored_views, rows, count)
    finally:
        stages.close()


def _activations(stages: FrozenStages, objective: Objective, batch: Batch, settings: TrainSettings) -> Tensor:
    """Return the activations of a batch in the precision of training; frozen stages are always in evaluation mode."""
    assert isinstance(objective, Supervised)
    objective.train()
    objective.tuner.set_modes(_START)
    with autocast(settings):
        return stages.activations(batch.views[0].to(settings.device))


def autocast(settings: TrainSettings) -> torch.autocast:
    """Return the autocast context of a training step."""
    dtype = torch.float16 if settings.precision == "16-mixed" else torch.bfloat16
    return torch.autocast(settings.device, dtype, enabled=settings.precision != "32-true")


def _check_frozen_stages(
    stages: FrozenStages, objective: Objective, batch: Batch, activations: Tensor, settings: TrainSettings
) -> None:
    """Refuse networks whose frozen stages draw random numbers, or pass on more than one tensor."""
    repeated = _activations(stages, objective, batch, settings)
    model = objective.deployable().eval()
    images = batch.views[0].to(settings.device)
    with torch.no_grad(), autocast(settings):
        logits = model(images)
        resumed = model(stages.resume_from(activations))
        stages.forget()
    logits, resumed = logits.float(), resumed.float()
    atol = TOLERANCE * float(logits.std(correction=0))  # the logits of an untrained head may be tiny
    if not torch.equal(activations, repeated) or not torch.allclose(logits, resumed, rtol=TOLERANCE, atol=atol):
        raise UserError(
            f"--frozen-views is not supported for {settings.model}, whose frozen stages pass on more than one "
            "tensor, or draw random numbers: leave it out."
        )


def most_views(folder: Path, images: int, n_bytes: int) -> int:
    """Return how many views of `n_bytes` per image fit in a quarter of the free memory and half of the free disk."""
    free_space = min(int(MEMORY_SHARE * available_memory()), free_bytes(folder))
    return free_space // max(1, images * n_bytes)


def _memory_mapped_tensor(folder: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor in a memory-mapped file that is removed together with the tensor."""
    row_bytes = int(np.prod(shape[1:])) * dtype.itemsize
    size = shape[0] * row_bytes
    if not most_views(folder, shape[0], row_bytes):
        raise UserError(
            f"--frozen-views needs {size / 1e9:.1f} GB, but may use at most a quarter of the free memory and half "
            "of the free disk: give fewer views, or leave it out."
        )
    handle, name = tempfile.mkstemp(prefix="activations-", suffix=".tmp", dir=folder)
    try:
        if hasattr(os, "posix_fallocate"):  # a write to a full disk would kill the process later
            os.posix_fallocate(handle, 0, max(1, size))
        return torch.from_file(name, shared=True, size=int(np.prod(shape)), dtype=dtype).view(shape)
    except OSError as problem:
        raise UserError(f"--frozen-views needs {size / 1e9:.1f} GB on the disk of {folder}: {problem}.") from problem
    finally:
        os.close(handle)
        with suppress(OSError):  # Windows cannot remove an open file; it is removed with the run's folder
            os.unlink(name)  # the mapping stays until the tensor is freed
