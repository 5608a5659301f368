"""Data loaders for training, which can start at any step, and for evaluation, which reads each image once."""

import errno
import gc
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from paucal.data.dataset import Sample, SampleKey, ViewDataset, collate
from paucal.data.images import ImageSet
from paucal.data.processes import require_main_guard, start_method
from paucal.data.sampler import StepSampler
from paucal.data.views.transforms import ViewTransform
from paucal.signals import ignore_stop_signals
from paucal.types import Batch, UserError
from paucal.wording import counted

MAX_INFERENCE_BATCH = 256  # largest number of images per batch during inference
MAX_CPU_BATCH_PIXELS = 16 * 224 * 224  # largest number of pixels in a batch during inference on a CPU
# Errors that mean that a resource of the system is used up; ENOSPC means that the shared memory is full.
_RESOURCE_ERRORS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC)
MAX_CACHED_BYTES = 512 << 20  # largest total size of the batches that `CachedBatches` keeps in memory


class WorkerLoader(DataLoader[Sample]):
    """A loader that raises a UserError if its processes cannot be started."""

    def __iter__(self) -> Any:
        """Return an iterator over the batches; start the loader processes unless they are running."""
        require_main_guard(self.num_workers)
        if self.num_workers and self._iterator is None:
            # A forked process inherits unreachable objects, and would abort if it freed pinned memory among them.
            gc.collect()
        try:
            return super().__iter__()
        except (OSError, RuntimeError, MemoryError) as problem:
            is_resource_limit = not isinstance(problem, OSError) or problem.errno in _RESOURCE_ERRORS
            if isinstance(problem, RuntimeError):
                is_resource_limit = "can't start new thread" in str(problem)  # Python's message
            if self.num_workers == 0 or not is_resource_limit:
                raise
            _terminate_workers(problem)
            reason = getattr(problem, "strerror", None) or str(problem)
            raise UserError(
                f"{counted(self.num_workers, 'loader process', 'loader processes')} could not be started ({reason}): "
                "reduce --workers, or use --workers 0."
            ) from problem


class TrainLoader(WorkerLoader):
    """A loader that resumes at the sampler's `start`; Lightning requires the two methods of a resumable loader."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignore the state."""


def make_train_loader(
    dataset: Dataset[Any],
    sampler: StepSampler,
    workers: int = 0,
    pin_memory: bool = False,
    collate_fn: Callable[[list[Any]], Any] = collate,
) -> TrainLoader:
    """Return a loader of one batch per forward pass of the whole run, which begins at the sampler's `start`."""
    return TrainLoader(dataset, batch_sampler=sampler, **_loader_options(workers, pin_memory, collate_fn))


def make_ordered_loader(
    dataset: Dataset[Any],
    indices: NDArray[np.int64],
    batch_size: int,
    collate_fn: Callable[[list[Any]], Any],
    workers: int = 0,
    pin_memory: bool = False,
    epoch: int = 0,
) -> DataLoader[Any]:
    """Return a loader that reads the samples at `indices` once, in order, augmented as in the training `epoch`."""
    batches = _OrderedBatches(indices, batch_size, epoch)
    workers = min(workers, len(batches))
    return WorkerLoader(dataset, batch_sampler=batches, **_loader_options(workers, pin_memory, collate_fn))


def inference_batch_size(image_size: tuple[int, int], device: str, requested: int | None = None) -> int:
    """Return the batch size for inference: `requested` unless None, else a size that suits the device."""
    if requested is not None:
        return requested
    if device != "cpu":
        return MAX_INFERENCE_BATCH
    # A CPU is slower with many large images, whose activations (gigabytes for an EfficientNet) do not fit in its cache.
    return min(MAX_INFERENCE_BATCH, max(1, MAX_CPU_BATCH_PIXELS // (image_size[0] * image_size[1])))


def make_eval_loader(
    image_set: ImageSet,
    indices: NDArray[np.int64],
    transform: ViewTransform,
    batch_size: int,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
    pin_memory: bool = False,
) -> DataLoader[Sample]:
    """Return a loader that reads each image once, in order; process `rank` gets every `world_size`-th image."""
    rank_indices = np.asarray(indices, dtype=np.int64)[rank::world_size]
    # `Batch.labels` is None if any image has no label.
    has_labels = bool(image_set.classes) and bool((image_set.labels[indices] >= 0).all())
    dataset = ViewDataset(
        image_set, [(transform, 1)], seed=0, with_labels=has_labels or image_set.multi_hot is not None
    )
    return make_ordered_loader(dataset, rank_indices, batch_size, collate, workers, pin_memory)


class _OrderedBatches(Sampler[list[SampleKey]]):
    """Sampler of batches of positions in order; sample keys are created lazily, since there may be millions."""

    def __init__(self, positions: NDArray[np.int64], batch_size: int, epoch: int = 0) -> None:
        self._positions, self._size, self._epoch = positions, batch_size, epoch

    def __len__(self) -> int:
        return -(-len(self._positions) // self._size)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        for first in range(0, len(self._positions), self._size):
            positions = self._positions[first : first + self._size].tolist()
            yield [SampleKey(self._epoch, position) for position in positions]


def _terminate_workers(problem: BaseException) -> None:
    """Terminate the worker processes that already run; torch leaves them running if it fails to start another."""
    for frame, _ in traceback.walk_tb(problem.__traceback__):
        iterator = frame.f_locals.get("self")
        if isinstance(iterator, _BaseDataLoaderIter):
            iterator._shutdown = True  # type: ignore[attr-defined]
            for process in getattr(iterator, "_workers", ()):
                process.terminate()
                process.join()


def _loader_options(workers: int, pin_memory: bool, collate_fn: Callable[[list[Any]], Any]) -> dict[str, Any]:
    return {
        "num_workers": workers,
        "collate_fn": collate_fn,
        "pin_memory": pin_memory,
        "persistent_workers": workers > 0,
        "worker_init_fn": _prepare_worker,
        "multiprocessing_context": start_method() if workers else None,
        # Without this generator, the loader would draw the seeds of its workers from torch's global generator.
        "generator": torch.Generator().manual_seed(0),
    }


def _prepare_worker(_: int) -> None:
    """Limit a worker to one thread, ignore stop signals, and never free objects inherited from the main process."""
    gc.freeze()  # see `WorkerLoader.__iter__`
    torch.set_num_threads(1)
    ignore_stop_signals()


class CachedBatches:
    """Batches that are the same in every epoch; if they take up at most 512 MiB, they are read once and kept in memory.

    `make_batches` returns the batches, given a number of loader processes. It is called in the first epoch, because the
    process group does not exist earlier. If the batches are kept and the model is trained on a CPU, no process is
    started: forking during training would slow the next steps, which must copy each memory page before writing to it
    (an epoch takes 1.2 times as long, `benchmarks/training.py --workers 2`).
    """

    def __init__(self, make_batches: Callable[[int], Iterable[Batch]], n_bytes: int, workers: int, device: str) -> None:
        self._make_batches, self._are_kept = make_batches, n_bytes <= MAX_CACHED_BYTES
        self._workers = 0 if self._are_kept and device == "cpu" else workers
        self._batches: Iterable[Batch] | None = None

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the batches."""
        if self._batches is None:
            batches = self._make_batches(self._workers)
            self._batches = list(batches) if self._are_kept else batches
        return iter(self._batches)
