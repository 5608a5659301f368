"""The training order of streamed images: shards, and blocks within them, in random order, then shuffled in windows.

Neighbours are read together, so that neither a disk nor a network has to seek for each image. The order depends on
(seed, epoch) alone and is known before any image is read: a run resumes at any step, with any number of workers and
processes, and no shuffle buffer has to be stored or filled again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paucal.wording import counted

BLOCK = 256  # neighbouring images of a tar file that stay together until windows are shuffled
WINDOW_BYTES = 256 << 20  # approximate size of a window in encoded bytes
MIN_WINDOW, MAX_WINDOW = 2048, 65536  # images
STREAMED_IMAGES, STREAMED_BYTES = 200_000, 8 << 30  # a set of at least either size is not decoded before a run
_RUNS = 32  # runs of neighbours in a sample


@dataclass(frozen=True, eq=False)
class Stream:
    """Positions of streamed images, which are read when needed instead of being decoded before a run begins.

    Images of one block that follow each other are a run. Only runs are kept, since there may be a billion images.

    Attributes:
        ends: (R,) int64 position after the last image of each run.
        shards: (R,) int32 shard of each run.
        blocks: (R,) int32 block of each run: a Parquet row group, or 256 neighbouring images of a tar file.
        window: Number of images that are shuffled together.
    """

    ends: NDArray[np.int64]
    shards: NDArray[np.int32]
    blocks: NDArray[np.int32]
    window: int

    @classmethod
    def in_blocks(cls, shards: NDArray[np.int32], blocks: NDArray[np.int32], window: int) -> "Stream":
        """Return the stream of images, given the (N,) shard and block of each image."""
        last = np.flatnonzero(np.append(np.diff(blocks), 1)[: len(blocks)])
        return cls(last + 1, shards[last], blocks[last], window)

    @classmethod
    def in_shards(cls, counts: Sequence[int], window: int) -> "Stream":
        """Return the stream of all images of tar shards, given the number of images in each shard.

        Example:
            >>> Stream.in_shards([300, 0, 256], window=64).ends.tolist()
            [256, 300, 556]
        """
        images = np.asarray(counts, dtype=np.int64)
        n_blocks = -(-images // BLOCK)
        shards = np.repeat(np.arange(len(images), dtype=np.int32), n_blocks)
        blocks = np.arange(len(shards), dtype=np.int32)
        numbers = blocks - (np.cumsum(n_blocks) - n_blocks)[shards]  # number of each block within its shard
        ends = (np.cumsum(images) - images)[shards] + np.minimum((numbers + 1) * BLOCK, images[shards])
        return cls(ends, shards, blocks, window)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def take(self, indices: NDArray[np.int64]) -> "Stream":
        """Return the stream of some of the images."""
        ends, runs = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for first in range(0, len(indices), MAX_WINDOW):  # arrays of all images would take much memory
            part = np.searchsorted(self.ends, indices[first : first + MAX_WINDOW], side="right")
            last = np.flatnonzero(np.append(np.diff(self.blocks[part]), 1))
            ends.append(first + last + 1)
            runs.append(part[last])
        run_numbers = np.concatenate(runs)
        return Stream(np.concatenate(ends), self.shards[run_numbers], self.blocks[run_numbers], self.window)

    def order(self, seed: int) -> "StreamOrder":
        """Return the order of one pass."""
        return StreamOrder(self, seed)

    def sample(self, count: int) -> NDArray[np.int64]:
        """Return up to `count` positions in 32 runs spread over the shards, so that few seeks are needed."""
        if len(self) <= count:
            return np.arange(len(self), dtype=np.int64)
        runs = min(_RUNS, count)
        starts = np.arange(runs, dtype=np.int64) * len(self) // runs
        return np.unique(np.minimum(starts[:, None] + np.arange(count // runs), len(self) - 1))


class StreamOrder:
    """Positions of a stream in a random order: shards, blocks within them, then windows of images are shuffled.

    One window at a time is in memory. It is indexed like an array of all (N,) positions.

    Args:
        stream: Stream of N images.
        seed: Seed of the order.

    Attributes:
        shards: (S,) int32 shards with images, in the order in which they are read.
        some_images: (S,) int64 position in the stream of an image of each shard.
        ends: (S,) int64 place in the order after the last image of each shard, before windows are shuffled.

    Example:
        >>> order = Stream.in_blocks(np.repeat([0, 1], 4), np.repeat([0, 1, 2, 3], 2), window=2).order(seed=0)
        >>> sorted(order[np.arange(8)].tolist())
        [0, 1, 2, 3, 4, 5, 6, 7]
    """

    def __init__(self, stream: Stream, seed: int) -> None:
        self.window, self._stream, self._seed = stream.window, stream, seed
        self._begin()

    def _begin(self) -> None:
        """Draw the order of the blocks; windows are drawn after it, from the first one on."""
        stream, self._generator = self._stream, np.random.default_rng(self._seed)
        n_shards, n_blocks = (int(numbers.max(initial=-1)) + 1 for numbers in (stream.shards, stream.blocks))
        shard_ranks, block_ranks = self._generator.permutation(n_shards), self._generator.permutation(n_blocks)
        runs = np.lexsort((block_ranks[stream.blocks], shard_ranks[stream.shards]))
        lengths = np.diff(stream.ends, prepend=0)[runs]
        self._run_ends = np.cumsum(lengths)
        self._offsets = (
            stream.ends[runs] - self._run_ends
        )  # added to a place (before windows are shuffled), gives its image
        last = np.flatnonzero(np.append(np.diff(stream.shards[runs]), 1)[: len(runs)])
        self.shards, self.ends = stream.shards[runs[last]], self._run_ends[last]
        self.some_images = stream.ends[runs[last]] - 1
        self._drawn, self._open = 0, np.zeros(0, dtype=np.int64)  # windows drawn, and the last one

    def __len__(self) -> int:
        return len(self._stream)

    def __getitem__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions at some places of the order; fast if the places ascend."""
        windows, positions = indices // self.window, np.empty_like(indices)
        for number in dict.fromkeys(windows.tolist()):
            is_in_window = windows == number
            positions[is_in_window] = self._positions(number)[indices[is_in_window] - number * self.window]
        return positions

    def _positions(self, number: int) -> NDArray[np.int64]:
        """Return the shuffled positions in a window; each window is drawn after the ones before it."""
        if number < self._drawn - 1:
            self._begin()
        while self._drawn <= number:
            positions = np.arange(self._drawn * self.window, min((self._drawn + 1) * self.window, len(self)))
            self._open = positions + self._offsets[np.searchsorted(self._run_ends, positions, side="right")]
            self._generator.shuffle(self._open)
            self._drawn += 1
        return self._open


def is_streamed(count: int, n_bytes: int) -> bool:
    """Return whether a set of `count` images in `n_bytes` encoded bytes is streamed.

    This depends on the data alone, since a resumed run must use the same images in the same steps.
    """
    return count >= STREAMED_IMAGES or n_bytes >= STREAMED_BYTES


def streaming_note(count: int, shards: int) -> str:
    """Return the note for the user that a set is streamed."""
    images = f"{count} images in {counted(shards, 'shard')}"
    return f"{images} are streamed: they are not decoded before the run, and an unreadable one ends it"


def window_for(mean_bytes: float) -> int:
    """Return the number of images in a window, from the mean size of an encoded image in bytes.

    Example:
        >>> window_for(110_000), window_for(2_000)
        (2440, 65536)
    """
    return int(min(MAX_WINDOW, max(MIN_WINDOW, WINDOW_BYTES // max(1.0, mean_bytes))))


def concatenate_streams(streams: list["Stream | None"], counts: list[int]) -> "Stream | None":
    """Return the stream of several sets as one; None if none of them is streamed.

    A set that is decoded before a run has no stream, and counts as one shard here.
    """
    if not any(stream is not None for stream in streams):
        return None
    total, shard, block, parts = 0, 0, 0, []
    for stream, count in zip(streams, counts, strict=True):
        part = stream or Stream.in_shards([count], MAX_WINDOW)
        parts.append(replace(part, ends=part.ends + total, shards=part.shards + shard, blocks=part.blocks + block))
        total, shard, block = total + count, int(parts[-1].shards.max()) + 1, int(parts[-1].blocks.max()) + 1
    ends, shards, blocks = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("ends", "shards", "blocks")
    )
    return Stream(ends, shards, blocks, min(part.window for part in parts))
