"""Pixels of decoded images as arrays, where they are kept as such."""

import numpy as np
from numpy.typing import NDArray

from paucal.data.cache import CachedStore
from paucal.data.decoded.entry import MappedStore
from paucal.data.decoded.read_as import ReadAs
from paucal.data.images import Nested, Store


def kept_pixels(store: Store, index: int) -> NDArray[np.uint8] | None:
    """Return the (H, W, C) pixels that `store.read` would give, not a copy; None where it would have to decode them."""
    while isinstance(store, Nested) and not isinstance(store, ReadAs):  # which changes what it hands over
        store, index = store.locate(index)
    if isinstance(store, MappedStore):
        return store.entry.view(index)
    return store.view(index) if isinstance(store, CachedStore) else None
