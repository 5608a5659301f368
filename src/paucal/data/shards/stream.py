"""The training order of streamed images: shards, and blocks within them, in random order, then shuffled in windows.

Neighbours are read together, so that neither a disk nor a network has to seek for each image. The order depends on
(seed, epoch) alone and is known before any image is read: a run resumes at any step, with any number of workers and
processes, and no shuffle buffer has to be stored or filled again.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paucal.wording import counted

BLOCK = 256  # neighbouring images of a tar file that stay together until windows are shuffled
WINDOW_BYTES = 256 << 20  # approximate size of a window in encoded bytes
LEAST_WINDOW, MOST_WINDOW = 2048, 65536  # images
STREAMED_IMAGES, STREAMED_BYTES = 200_000, 8 << 30  # a set of at least either size is not decoded before a run
_RUNS = 32  # runs of neighbours in a sample


@dataclass(frozen=True, eq=False)
class Stream:
    """Positions of streamed images, which are read when needed instead of being decoded before a run begins.

    Attributes:
        shards: (N,) int32 shard of each image.
        blocks: (N,) int32 block of neighbours within the shards: a Parquet row group, or 256 images of a tar file.
        window: Number of images that are shuffled together.
    """

    shards: NDArray[np.int32]
    blocks: NDArray[np.int32]
    window: int

    def __len__(self) -> int:
        return len(self.shards)

    def take(self, indices: NDArray[np.int64]) -> "Stream":
        """Return the stream of some of the images."""
        return replace(self, shards=self.shards[indices], blocks=self.blocks[indices])

    def order(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return all (N,) positions: shards in random order, blocks within them in random order, then windows shuffled.

        Example:
            >>> stream = Stream(np.repeat([0, 1], 4), np.repeat([0, 1, 2, 3], 2), window=2)
            >>> sorted(stream.order(np.random.default_rng(0)).tolist())
            [0, 1, 2, 3, 4, 5, 6, 7]
        """
        if not len(self):
            return np.zeros(0, dtype=np.int64)
        shard_ranks = generator.permutation(int(self.shards.max()) + 1)
        block_ranks = generator.permutation(int(self.blocks.max()) + 1)
        order = np.lexsort((block_ranks[self.blocks], shard_ranks[self.shards]))
        for first in range(0, len(order), self.window):
            generator.shuffle(order[first : first + self.window])
        return order

    def sample(self, count: int) -> NDArray[np.int64]:
        """Return up to `count` positions in 32 runs spread over the shards, so that few seeks are needed."""
        if len(self) <= count:
            return np.arange(len(self), dtype=np.int64)
        runs = min(_RUNS, count)
        starts = np.arange(runs, dtype=np.int64) * len(self) // runs
        return np.unique(np.minimum(starts[:, None] + np.arange(count // runs), len(self) - 1))


def is_streamed(count: int, n_bytes: int) -> bool:
    """Return whether a set of `count` images in `n_bytes` encoded bytes is streamed.

    The answer depends on the data alone, since a resumed run must use the same images in the same steps.
    """
    return count >= STREAMED_IMAGES or n_bytes >= STREAMED_BYTES


def streaming_note(count: int, shards: int) -> str:
    """Return the note for the user that a set is streamed."""
    return (
        f"{count} images in {counted(shards, 'shard')} are streamed: they are not decoded before the run, and an "
        "unreadable one ends it"
    )


def window_for(mean_bytes: float) -> int:
    """Return the number of images in a window, from the mean size of an encoded image in bytes.

    Example:
        >>> window_for(110_000), window_for(2_000)
        (2440, 65536)
    """
    return int(min(MOST_WINDOW, max(LEAST_WINDOW, WINDOW_BYTES // max(1.0, mean_bytes))))


def blocks_of(counts: list[int]) -> NDArray[np.int32]:
    """Return the (N,) block of each image, from the number of images in each tar file."""
    blocks, first = [], 0
    for count in counts:
        blocks.append(np.arange(count) // BLOCK + first)
        first += -(-count // BLOCK)
    return np.concatenate(blocks).astype(np.int32) if blocks else np.zeros(0, dtype=np.int32)


def concatenate_streams(streams: list["Stream | None"], counts: list[int]) -> "Stream | None":
    """Return the stream of several sets as one; None if none of them is streamed.

    Args:
        streams: Stream of each set; None for a set that is decoded before a run, which counts as one shard here.
        counts: Number of images in each set.
    """
    if not any(stream is not None for stream in streams):
        return None
    shards, blocks, windows, first, block = [], [], [], 0, 0
    for stream, count in zip(streams, counts, strict=True):
        stream = stream or Stream(np.zeros(count, dtype=np.int32), blocks_of([count]), MOST_WINDOW)
        shards.append(stream.shards + first)
        blocks.append(stream.blocks + block)
        windows.append(stream.window)
        first, block = int(shards[-1].max()) + 1, int(blocks[-1].max()) + 1
    return Stream(np.concatenate(shards), np.concatenate(blocks), min(windows))
