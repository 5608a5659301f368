"""Several stores of images as one."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from paucal.data.images import Nested, Store


class JoinedStore(Nested):
    """Several stores, one after the other."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self._stores = list(stores)
        self._ends = np.cumsum([len(store) for store in stores])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, index: int) -> Image.Image:
        """Return the image at a position of the whole."""
        store, inside = self.locate(index)
        return store.read(inside)

    def size(self, index: int) -> tuple[int, int]:
        """Return its (height, width)."""
        store, inside = self.locate(index)
        return store.size(inside)

    def check(self, index: int) -> None:
        """Raise if it cannot be read."""
        store, inside = self.locate(index)
        store.check(inside)

    def locate(self, index: int) -> tuple[Store, int]:
        """Return the store that has an image, and its position there."""
        number = int(np.searchsorted(self._ends, index, side="right"))
        return self._stores[number], index - (int(self._ends[number - 1]) if number else 0)
