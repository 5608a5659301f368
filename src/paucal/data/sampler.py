"""The order of training samples as a function of the step, so that a run can start at any step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from paucal.data.dataset import SampleKey
from paucal.data.randomness import derive_seed
from paucal.data.shards.stream import Stream, StreamOrder


def steps_per_epoch(n_images: int, global_batch: int) -> int:
    """Return the number of batches per epoch; an incomplete last batch is dropped unless it is the only batch."""
    return max(1, n_images // global_batch)


@dataclass(frozen=True, eq=False)
class StepSampler(Sampler[list[SampleKey]]):
    """Yields the sample keys of each forward pass of a run, starting at any forward pass.

    An epoch is a permutation of the images that depends on (seed, epoch). The permutation of streamed images keeps
    neighbours close (`shards.stream`). A forward pass takes the next `world_size` x `batch_size` images and gives each
    process `batch_size` images, so two processes see the same images as one process with twice the batch size. If the
    set is smaller than the batch, images are repeated with new augmentation to fill the batch.

    With `repeats`, each image is drawn several times in a row, each time with new augmentation (repeated augmentation,
    arXiv:1902.05509). An epoch then has the same number of steps, but `repeats` times fewer different images.

    With `labels`, every epoch is balanced: images of small classes are repeated with new augmentation, and a new random
    subset of the images of each large class is drawn.
    """

    indices: NDArray[np.int64]  # (n,) positions of the training images
    batch_size: int  # images per process and forward pass
    steps: int  # forward passes of the whole run on each process
    seed: int
    start: int = 0  # forward passes that are already done
    rank: int = 0
    world_size: int = 1
    shuffle: bool = True  # False keeps the order of `indices` in every epoch
    repeats: int = 1
    accumulate: int = 1  # forward passes per optimizer step; an epoch is a whole number of optimizer steps
    labels: NDArray[np.integer] | None = None  # (n,) classes for balanced epochs; None draws each image once
    stream: Stream | None = None  # storage order of the images at `indices`; None if they are not streamed
    # Called before each forward pass over streamed images, with the order of the epoch and the position in it.
    on_pass: Callable[[StreamOrder, int], None] | None = None

    def __post_init__(self) -> None:
        if len(self.indices) == 0 or min(self.batch_size, self.world_size, self.repeats, self.accumulate) < 1:
            raise ValueError(
                f"expected images and positive counts, got {len(self.indices)} images, batch size "
                f"{self.batch_size}, {self.world_size} processes, {self.repeats} repeats"
            )
        if not (0 <= self.rank < self.world_size and 0 <= self.start <= self.steps):
            raise ValueError(
                f"rank {self.rank} of {self.world_size} or start {self.start} of {self.steps} is out of range"
            )

    def __len__(self) -> int:
        """Return the number of forward passes of the whole run, regardless of `start`."""
        return self.steps

    def __iter__(self) -> Iterator[list[SampleKey]]:
        per_epoch = self.accumulate * steps_per_epoch(len(self.indices), self._global_batch * self.accumulate)
        epoch, batch_offsets = self.start // per_epoch, self.rank * self.batch_size + np.arange(self.batch_size)
        order, earlier_draws = self._epoch_order(epoch)
        # The highest repeat number of an epoch occurs in its last draws.
        count = len(self.indices)
        n_draws = max(count, self._global_batch * self.accumulate)
        last = np.arange(max(0, n_draws - self.repeats), n_draws)
        max_repeats = int((last // self.repeats // count * self.repeats + last % self.repeats).max())
        for step in range(self.start, self.steps):
            if step // per_epoch != epoch:
                epoch = step // per_epoch
                order, earlier_draws = self._epoch_order(epoch)
            first = step % per_epoch * self._global_batch
            if self.on_pass is not None and isinstance(order, StreamOrder):
                self.on_pass(order, first // self.repeats % len(order))
            # Draw d of an epoch is image d // repeats, modulo the number of images.
            draws = first + batch_offsets
            rounds, positions = np.divmod(draws // self.repeats, count)
            repeats = rounds * self.repeats + draws % self.repeats  # higher once the draws start over
            if earlier_draws is not None:  # an image that was drawn before gets higher repeat numbers than before
                repeats = repeats + earlier_draws[positions] * (max_repeats + 1)
            pairs = zip(self.indices[order[positions]].tolist(), repeats.tolist(), strict=True)
            yield [SampleKey(epoch, *pair) for pair in pairs]

    def _epoch_order(self, epoch: int) -> tuple[NDArray[np.int64] | StreamOrder, NDArray[np.int64] | None]:
        """Return the order of an epoch and, if balanced, how often the image of each draw was drawn before."""
        seed = derive_seed(self.seed, epoch)
        if self.labels is not None:
            return balanced_order(self.labels, np.random.default_rng(seed))
        if not self.shuffle:
            return np.arange(len(self.indices)), None
        if self.stream is not None:
            return StreamOrder(self.stream, seed), None
        return np.random.default_rng(seed).permutation(len(self.indices)), None

    @property
    def _global_batch(self) -> int:
        return self.batch_size * self.world_size


def balanced_order(
    labels: NDArray[np.integer], generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (n,) positions balanced over the classes, in random order, and how often each image was drawn before."""
    classes = np.unique(labels)
    # Each of the K classes gets n // K of the n draws, and the remaining draws go to random classes.
    class_draws = np.full(len(classes), len(labels) // len(classes))
    class_draws[generator.permutation(len(classes))[: len(labels) % len(classes)]] += 1
    order, earlier_draws = [], []
    for label, n_draws in zip(classes, class_draws.tolist(), strict=True):
        members = generator.permutation(np.flatnonzero(labels == label))
        # The random order repeats after the last image, so the draws per image differ by at most one.
        rounds, positions = np.divmod(np.arange(n_draws), len(members))
        order.append(members[positions])
        earlier_draws.append(rounds)
    shuffle_order = generator.permutation(len(labels))
    return np.concatenate(order)[shuffle_order], np.concatenate(earlier_draws)[shuffle_order]
