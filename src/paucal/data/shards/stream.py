"""The training order of images that are streamed from shards, and background downloads of the next shards.

Shards are read in random order, and so are the blocks of neighbouring images within a shard. Then the images are
shuffled within windows. Neighbouring images are thus read together, which saves seeks and requests. The order depends
only on the seed and the epoch, and is known before any image is read. A run can therefore be resumed at any step, with
any number of workers and processes, without a shuffle buffer that would have to be stored or filled again.
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paucal.data.stores import EncodedStore, Store, locate
from paucal.wording import counted

BLOCK_IMAGES = 256  # number of neighbouring images of a tar file that stay together until windows are shuffled
WINDOW_BYTES = 256 << 20  # approximate size of the encoded images in a window
MIN_WINDOW, MAX_WINDOW = 2048, 65536  # limits of the number of images in a window
STREAMED_IMAGES, STREAMED_BYTES = 200_000, 8 << 30  # a set with at least that many images or bytes is streamed
# Number of download threads, and minimum number of shards that are downloaded in advance; 16 threads were slower.
PREFETCHED_SHARDS = 4
_SAMPLED_RUNS = 32  # number of runs of neighbouring images in a sample


@dataclass(frozen=True, eq=False)
class Stream:
    """Order in storage of N images that are read when needed instead of being decoded before training.

    Consecutive images of the same block (a Parquet row group, or 256 neighbouring images of a tar file) form a run.
    Only the R runs are stored, since there may be a billion images.
    """

    ends: NDArray[np.int64]  # (R,) positions after the last images of the runs
    shards: NDArray[np.int32]  # (R,) number of the shard of each run
    blocks: NDArray[np.int32]  # (R,) number of the block of each run
    window: int  # number of images that are shuffled together

    @classmethod
    def from_blocks(cls, shards: NDArray[np.int32], blocks: NDArray[np.int32], window: int) -> "Stream":
        """Return the stream of N images, from the (N,) numbers of their shards and of their blocks."""
        last = np.flatnonzero(np.append(np.diff(blocks), 1)[: len(blocks)])
        return cls(last + 1, shards[last], blocks[last], window)

    @classmethod
    def from_shards(cls, counts: Sequence[int], window: int) -> "Stream":
        """Return the stream of all images in tar shards, from the number of images in each shard."""
        images = np.asarray(counts, dtype=np.int64)
        n_blocks = -(-images // BLOCK_IMAGES)
        shards = np.repeat(np.arange(len(images), dtype=np.int32), n_blocks)
        blocks = np.arange(len(shards), dtype=np.int32)
        block_numbers = blocks - (np.cumsum(n_blocks) - n_blocks)[shards]  # number of each block within its shard
        ends = (np.cumsum(images) - images)[shards] + np.minimum((block_numbers + 1) * BLOCK_IMAGES, images[shards])
        return cls(ends, shards, blocks, window)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def take(self, indices: NDArray[np.int64]) -> "Stream":
        """Return the stream of the images at the given positions."""
        ends, runs = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for first in range(0, len(indices), MAX_WINDOW):  # in chunks, since arrays with all images need much memory
            runs_of_images = np.searchsorted(self.ends, indices[first : first + MAX_WINDOW], side="right")
            last = np.flatnonzero(np.append(np.diff(self.blocks[runs_of_images]), 1))
            ends.append(first + last + 1)
            runs.append(runs_of_images[last])
        run_numbers = np.concatenate(runs)
        return Stream(np.concatenate(ends), self.shards[run_numbers], self.blocks[run_numbers], self.window)

    def sample(self, count: int) -> NDArray[np.int64]:
        """Return up to `count` positions in 32 evenly spaced runs of neighbouring images, to save seeks."""
        if len(self) <= count:
            return np.arange(len(self), dtype=np.int64)
        runs = min(_SAMPLED_RUNS, count)
        starts = np.arange(runs, dtype=np.int64) * len(self) // runs
        return np.unique(np.minimum(starts[:, None] + np.arange(count // runs), len(self) - 1))


class StreamOrder:
    """The random order of a stream's N images in one epoch: their positions, indexed like an (N,) array.

    Shards are shuffled, then the blocks within each shard, then the images within each window. Only the positions in
    one window are in memory.
    """

    def __init__(self, stream: Stream, seed: int) -> None:
        self.window, self._stream, self._seed = stream.window, stream, seed
        self._draw_shards_and_blocks()

    def _draw_shards_and_blocks(self) -> None:
        """Draw the order of shards and blocks; `__getitem__` draws the windows later, with the same generator."""
        stream, self._generator = self._stream, np.random.default_rng(self._seed)
        n_shards, n_blocks = (int(numbers.max(initial=-1)) + 1 for numbers in (stream.shards, stream.blocks))
        shard_ranks, block_ranks = self._generator.permutation(n_shards), self._generator.permutation(n_blocks)
        run_order = np.lexsort((block_ranks[stream.blocks], shard_ranks[stream.shards]))
        lengths = np.diff(stream.ends, prepend=0)[run_order]
        self._run_ends = np.cumsum(lengths)
        # For each run, the difference between an image's position in the stream and its index in the order before
        # windows are shuffled.
        self._offsets = stream.ends[run_order] - self._run_ends
        last = np.flatnonzero(np.append(np.diff(stream.shards[run_order]), 1)[: len(run_order)])
        # (S,) numbers of the shards in the order in which they are read, and of images up to the end of each shard.
        self.shards, self.ends = stream.shards[run_order[last]], self._run_ends[last]
        self.shard_images = stream.ends[run_order[last]] - 1  # (S,) position of one image of each shard in the stream
        # Number of windows drawn so far, and positions of the images in the last drawn window.
        self._n_drawn, self._last_window = 0, np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._stream)

    def __getitem__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of the images at some indices of the order; ascending indices are the fastest."""
        windows, positions = indices // self.window, np.empty_like(indices)
        for number in dict.fromkeys(windows.tolist()):
            # The windows are drawn one after the other, and drawn again from the first to return to an earlier window.
            if number < self._n_drawn - 1:
                self._draw_shards_and_blocks()
            while self._n_drawn <= number:
                window = np.arange(self._n_drawn * self.window, min((self._n_drawn + 1) * self.window, len(self)))
                self._last_window = window + self._offsets[np.searchsorted(self._run_ends, window, side="right")]
                self._generator.shuffle(self._last_window)
                self._n_drawn += 1
            is_in_window = windows == number
            positions[is_in_window] = self._last_window[indices[is_in_window] - number * self.window]
        return positions


def is_streamed(count: int, n_bytes: int) -> bool:
    """Return whether a set is streamed; the same on every machine, since a resumed run must repeat the steps."""
    return count >= STREAMED_IMAGES or n_bytes >= STREAMED_BYTES


def streaming_note(count: int, shards: int) -> str:
    """Return a note for the user that a set of `count` images in `shards` shards is streamed."""
    images = f"{count} images in {counted(shards, 'shard')}"
    return f"{images} are streamed: they are not decoded before the run, and an unreadable image ends the run"


def window_size(mean_bytes: float) -> int:
    """Return the number of images in a window for encoded images with a mean size of `mean_bytes`."""
    return int(min(MAX_WINDOW, max(MIN_WINDOW, WINDOW_BYTES // max(1.0, mean_bytes))))


def concatenate_streams(streams: list["Stream | None"], counts: list[int]) -> "Stream | None":
    """Return the stream of joined sets, with one shard for each set that is not streamed; None if none is streamed."""
    if not any(stream is not None for stream in streams):
        return None
    n_images, n_shards, n_blocks, shifted = 0, 0, 0, []
    for stream, count in zip(streams, counts, strict=True):
        stream = stream or Stream.from_shards([count], MAX_WINDOW)
        ends, shards, blocks = stream.ends + n_images, stream.shards + n_shards, stream.blocks + n_blocks
        shifted.append(replace(stream, ends=ends, shards=shards, blocks=blocks))
        n_images += count
        n_shards, n_blocks = int(shifted[-1].shards.max()) + 1, int(shifted[-1].blocks.max()) + 1
    ends, shards, blocks = (
        np.concatenate([getattr(stream, name) for stream in shifted]) for name in ("ends", "shards", "blocks")
    )
    return Stream(ends, shards, blocks, min(stream.window for stream in shifted))


class ShardPrefetcher:
    """Downloads the shards of training images in background threads, in the order in which an epoch needs them."""

    def __init__(self, store: Store, images: NDArray[np.int64]) -> None:
        self._store, self._images = store, images
        self._order: StreamOrder | None = None
        self._n_requested, self._n_threads = 0, 0  # requested shards of `_order`, and running threads
        self._queue: deque[int] = deque()  # for each shard to download, the position of one of its images
        self._lock = threading.Lock()

    def request_shards(self, order: StreamOrder, index: int) -> None:
        """Request the shards for a window and the next; all steps of an epoch must pass the same object as `order`."""
        window_start = index // order.window * order.window
        if order is not self._order:
            self._order, self._n_requested = order, int(np.searchsorted(order.ends, window_start, side="right"))
        # Number of shards that are needed up to the end of this window, and up to the end of the next window.
        window_ends = [window_start + order.window, window_start + 2 * order.window]
        n_for_window, n_for_next = 1 + np.searchsorted(order.ends, window_ends)
        n_wanted = max(self._n_requested, n_for_window + PREFETCHED_SHARDS, n_for_next)
        requested, self._n_requested = order.shard_images[self._n_requested : n_wanted], n_wanted
        for image in self._images[requested].tolist():
            with self._lock:
                self._queue.append(image)
                needs_thread = self._n_threads < PREFETCHED_SHARDS
                self._n_threads += needs_thread
            if needs_thread:
                threading.Thread(target=self._download_requested, name="shard prefetching", daemon=True).start()

    def _download_requested(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._n_threads -= 1
                    return
                image = self._queue.popleft()
            store, position = locate(self._store, image)
            if isinstance(store, EncodedStore):
                store.prefetch(position)
