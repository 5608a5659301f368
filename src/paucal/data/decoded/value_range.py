"""The range of values in a set whose images have more than 8 bits: measured once, then stored with the model.

A 12-bit camera writes 0 to 4,095 into files that could hold 65,535, a microscope or a depth sensor writes floats; what
is dark and what is bright only the set as a whole can say.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from paucal.data.decode import UnreadableImage, raw_values
from paucal.data.images import ImageSet, locate, spread
from paucal.data.sources.stores import EncodedStore

_IMAGES = 32
_LOOKED_AT = 256
_VALUES = 1 << 16  # of each image
# So many of all values lie below, and above, the range: dead and hot pixels do not stretch it.
_OUTSIDE = 1e-4


def measure_range(images: ImageSet) -> tuple[float, float] | None:
    """Return the (low, high) that a set's deep images become 0 and 255 with; None where it has none.

    Up to 32 of its deep images, spread over the set, are looked at, with evenly spaced values of each; a ten-thousandth
    of the values may lie beyond on either side. Labels and parts play no role. Images that cannot be read are left out.
    """
    found = list(_deep(images))
    if not found:
        return None
    values = np.concatenate(found)
    if not len(values):
        return None
    low, high = (float(edge) for edge in np.quantile(values, (_OUTSIDE, 1 - _OUTSIDE)))
    return (low, high) if high > low else (low, low + 1)


def _deep(images: ImageSet) -> Iterator[NDArray[np.float64]]:
    """Yield finite values of up to 32 deep images."""
    looked = [int(index) for index in images.sample(_LOOKED_AT) if _may_be_deep(images, int(index))]
    count = 0
    for index in [looked[place] for place in spread(len(looked), _LOOKED_AT)]:
        store, place = locate(images.store, index)
        assert isinstance(store, EncodedStore)
        try:
            values = raw_values(store.source(place), store.name(place))
        except UnreadableImage:
            continue
        if values is None:
            continue
        flat = values.reshape(-1)
        flat = flat[:: max(1, len(flat) // _VALUES)].astype(np.float64)
        yield flat[np.isfinite(flat)]
        count += 1
        if count == _IMAGES:
            return


def _may_be_deep(images: ImageSet, index: int) -> bool:
    return isinstance(locate(images.store, index)[0], EncodedStore)
