"""Fetches the shards that a run will need next, so that training does not wait for each of them."""

import threading
from collections import deque

import numpy as np
from numpy.typing import NDArray

from paucal.data.shards.stream import Stream
from paucal.data.stores import EncodedStore, Store, locate

AHEAD = 4  # shards that are fetched before they are needed


class ShardsAhead:
    """Fetches shards in background threads, in the order in which an epoch needs them."""

    def __init__(self, store: Store, stream: Stream) -> None:
        self._store, self._shards = store, stream.shards
        self._epoch = np.zeros(0, dtype=np.int64)
        self._first_uses = np.zeros(0, dtype=np.int64)
        self._asked, self._threads = 0, 0
        self._waiting: deque[int] = deque()  # an image of each shard to fetch
        self._lock = threading.Lock()

    def reach(self, images: NDArray[np.int64], position: int) -> None:
        """Ask for the shards after those that an epoch has reached.

        Args:
            images: (n,) images of the epoch in order; the same array for all its steps.
            position: Position in `images` that the next step begins at.
        """
        if images is not self._epoch:
            self._epoch, self._asked = images, 0
            self._first_uses = position + np.sort(np.unique(self._shards[images[position:]], return_index=True)[1])
        last = int(np.searchsorted(self._first_uses, position, side="right")) + AHEAD
        wanted, self._asked = self._first_uses[self._asked : last], last
        for image in images[wanted].tolist():
            with self._lock:
                self._waiting.append(image)
                is_more = self._threads < AHEAD
                self._threads += is_more
            if is_more:
                threading.Thread(target=self._fetch, name="shards ahead", daemon=True).start()

    def _fetch(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                image = self._waiting.popleft()
            store, place = locate(self._store, image)
            if isinstance(store, EncodedStore):
                store.fetch_ahead(place)
