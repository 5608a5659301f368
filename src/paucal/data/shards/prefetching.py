"""Background downloads of the shards that a run will need next, so that training does not wait for downloads."""

import threading
from collections import deque

import numpy as np
from numpy.typing import NDArray

from paucal.data.shards.stream import StreamOrder
from paucal.data.stores import EncodedStore, Store, locate

# Number of download threads, and minimum number of shards that are downloaded in advance; 16 threads were slower.
PREFETCHED_SHARDS = 4


class ShardPrefetcher:
    """Downloads shards in background threads, in the order in which an epoch needs them.

    Args:
        store: Store of all images.
        images: (n,) int64 positions of the training images in the store; the positions in a `StreamOrder` are indices
            into this array.
    """

    def __init__(self, store: Store, images: NDArray[np.int64]) -> None:
        self._store, self._images = store, images
        self._order: StreamOrder | None = None
        self._n_requested, self._n_threads = 0, 0  # requested shards of `_order`, and running threads
        self._queue: deque[int] = deque()  # for each shard to download, the position of one of its images
        self._lock = threading.Lock()

    def request_shards(self, order: StreamOrder, index: int) -> None:
        """Request the shards that an epoch needs for the current window and for the next window.

        The next step begins at the position `index` of `order`. All steps of an epoch must pass the same object as
        `order`.
        """
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
