"""The order in which images of shards are shown: shards, and runs within them, in random order, then a window.

Images that lie together are read together, so that neither a disk nor a network has to jump for each; and which image
comes when is known from (seed, epoch) alone, without having read any. So a run goes on at any step, with any number of
workers and processes, and nothing of a shuffle buffer has to be stored or filled again.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paucal.wording import counted

BLOCK = 256  # images of a tar that stay together until the window
WINDOW_BYTES = 256 << 20  # of encoded images that a window holds about
LEAST_WINDOW, MOST_WINDOW = 2048, 65536  # images
STREAMED_IMAGES, STREAMED_BYTES = 200_000, 8 << 30  # from which on a set is not decoded before a run
_RUNS = 32  # places that a sample is taken from


@dataclass(frozen=True, eq=False)
class Stream:
    """Where images lie that are read as they come, instead of being decoded before a run begins.

    Attributes:
        shards: (N,) int32, the shard of each image.
        blocks: (N,) int32, the run of neighbours within the shard: a row group of Parquet, 256 images of a tar.
        window: images among which the order is random in the end.
    """

    shards: NDArray[np.int32]
    blocks: NDArray[np.int32]
    window: int

    def __len__(self) -> int:
        return len(self.shards)

    def take(self, indices: NDArray[np.int64]) -> "Stream":
        """Return what is so of some of the images."""
        return replace(self, shards=self.shards[indices], blocks=self.blocks[indices])

    def order(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return (N,) positions, each once: shards in random order, in each its blocks, and then windows shuffled.

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
        """Return up to `count` positions in a few runs spread over the shards, so that few places are read."""
        if len(self) <= count:
            return np.arange(len(self), dtype=np.int64)
        runs = min(_RUNS, count)
        starts = np.arange(runs, dtype=np.int64) * len(self) // runs
        return np.unique(np.minimum(starts[:, None] + np.arange(count // runs), len(self) - 1))


def is_streamed(count: int, n_bytes: int) -> bool:
    """Return whether so many images, of so many bytes as they are stored, are read as they come.

    It depends on the data alone: a run that goes on must show the same images in the same steps.
    """
    return count >= STREAMED_IMAGES or n_bytes >= STREAMED_BYTES


def streaming_note(count: int, shards: int) -> str:
    """Return the sentence that tells so many images are not decoded before a run."""
    return (
        f"{count} images in {counted(shards, 'shard')} are read as they come: none is decoded before the run, and one "
        "that cannot be read ends it"
    )


def window_for(mean_bytes: float) -> int:
    """Return the images of a window, from the bytes that an encoded image takes on average.

    Example:
        >>> window_for(110_000), window_for(2_000)
        (2440, 65536)
    """
    return int(min(MOST_WINDOW, max(LEAST_WINDOW, WINDOW_BYTES // max(1.0, mean_bytes))))


def blocks_of(counts: list[int]) -> NDArray[np.int32]:
    """Return (N,) blocks of up to 256 neighbours of shards with so many images, numbered over all of them."""
    found, first = [], 0
    for count in counts:
        numbers = np.arange(count) // BLOCK
        found.append(numbers + first)
        first += -(-count // BLOCK)
    return np.concatenate(found).astype(np.int32) if found else np.zeros(0, dtype=np.int32)


def concatenate_streams(streams: list["Stream | None"], counts: list[int]) -> "Stream | None":
    """Return the stream of several sets as one; None where none of them is read as it comes.

    Args:
        streams: of each; None where a set is decoded before a run, and counts as one shard here.
        counts: images of each.
    """
    if not any(stream is not None for stream in streams):
        return None
    shards, blocks, windows, first, block = [], [], [], 0, 0
    for stream, count in zip(streams, counts, strict=True):
        one = stream or Stream(np.zeros(count, dtype=np.int32), blocks_of([count]), MOST_WINDOW)
        shards.append(one.shards + first)
        blocks.append(one.blocks + block)
        windows.append(one.window)
        first, block = int(shards[-1].max()) + 1, int(blocks[-1].max()) + 1
    return Stream(np.concatenate(shards), np.concatenate(blocks), min(windows))
