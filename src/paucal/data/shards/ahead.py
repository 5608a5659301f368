"""Fetches the shards that a run will need next, so that training does not wait for each of them."""

import threading
from collections import deque

import numpy as np
from numpy.typing import NDArray

from paucal.data.shards.stream import StreamOrder
from paucal.data.stores import EncodedStore, Store, locate

AHEAD = 4  # minimum number of shards fetched in advance, and number of threads; sixteen threads were slower


class ShardsAhead:
    """Fetches shards in background threads, in the order in which an epoch needs them.

    Args:
        store: Store of all images.
        images: (n,) int64 position in the store of each image that an order refers to.
    """

    def __init__(self, store: Store, images: NDArray[np.int64]) -> None:
        self._store, self._images = store, images
        self._order: StreamOrder | None = None
        self._asked, self._threads = 0, 0
        self._waiting: deque[int] = deque()  # an image of each shard to fetch
        self._lock = threading.Lock()

    def reach(self, order: StreamOrder, index: int) -> None:
        """Request the shards of the window that an epoch has reached, and of the next window.

        The next step begins at the position `index` of the order, which is the same object for all steps of an epoch.
        """
        begin = index // order.window * order.window
        if order is not self._order:
            self._order, self._asked = order, int(np.searchsorted(order.ends, begin, side="right"))
        end_of_window, soon = 1 + np.searchsorted(order.ends, [begin + order.window, begin + 2 * order.window])
        last = max(self._asked, end_of_window + AHEAD, soon)
        requested, self._asked = order.some_images[self._asked : last], last
        for image in self._images[requested].tolist():
            with self._lock:
                self._waiting.append(image)
                needs_thread = self._threads < AHEAD
                self._threads += needs_thread
            if needs_thread:
                threading.Thread(target=self._fetch, name="shards ahead", daemon=True).start()

    def _fetch(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                image = self._waiting.popleft()
            store, position = locate(self._store, image)
            if isinstance(store, EncodedStore):
                store.fetch_ahead(position)
