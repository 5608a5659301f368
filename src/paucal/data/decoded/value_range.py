"""The range of values in a set whose images have more than 8 bits: measured once, then stored with the model.

A 12-bit camera writes 0 to 4,095 into files that could hold 65,535, a microscope or a depth sensor writes floats; what
is dark and what is bright only the set as a whole can say.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paucal.data.channels.decoding import deep_channel_values, range_of
from paucal.data.channels.planes import RGB
from paucal.data.decode import Reading, UnreadableImage
from paucal.data.images import ImageSet, locate, spread
from paucal.data.sources.stores import EncodedStore

_IMAGES = 32
_LOOKED_AT = 256
_VALUES = 1 << 16  # of each image
# So many of all values lie below, and above, the range: dead and hot pixels do not stretch it.
_OUTSIDE = 1e-4


def with_ranges(reading: Reading, images: ImageSet) -> Reading:
    """Return a reading with the ranges of values, measured where it has none and images have more than 8 bits."""
    if reading.channels == RGB and reading.value_range is None:
        return replace(reading, value_range=measure_range(images))
    if reading.channels != RGB and reading.channel_ranges is None:
        return replace(reading, channel_ranges=measure_channel_ranges(images, reading.channels))
    return reading


def measure_range(images: ImageSet) -> tuple[float, float] | None:
    """Return the (low, high) that a set's deep images become 0 and 255 with; None where it has none.

    Up to 32 of its deep images, spread over the set, are looked at, with evenly spaced values of each; a ten-thousandth
    of the values may lie beyond on either side. Labels and parts play no role. Images that cannot be read are left out.
    """
    found = [values.reshape(-1) for values in _deep(images, RGB)]
    values = np.concatenate(found) if found else np.empty(0)
    return range_of(values, _OUTSIDE) if np.isfinite(values).any() else None


def measure_channel_ranges(images: ImageSet, channels: int) -> tuple[tuple[float, float], ...] | None:
    """Return such a range for each channel of a set whose images have so many; None where they have 8 bits."""
    found = list(_deep(images, channels))
    if not found:
        return None
    values = np.concatenate([one.reshape(-1, channels) for one in found])
    return tuple(range_of(values[:, channel], _OUTSIDE) for channel in range(channels))


def _deep(images: ImageSet, channels: int) -> Iterator[NDArray[np.float64]]:
    """Yield values of up to 32 deep images, (n,), or (n, channels)."""
    looked = [int(index) for index in images.sample(_LOOKED_AT) if _may_be_deep(images, int(index))]
    count = 0
    for index in [looked[place] for place in spread(len(looked), _LOOKED_AT)]:
        store, place = locate(images.store, index)
        assert isinstance(store, EncodedStore)
        try:
            values = deep_channel_values(store.source(place), store.name(place), channels)
        except UnreadableImage:
            continue
        if values is None:
            continue
        flat = values.reshape(-1) if values.ndim == 2 or channels == RGB else values.reshape(-1, channels)
        yield flat[:: max(1, len(flat) // _VALUES)].astype(np.float64)
        count += 1
        if count == _IMAGES:
            return


def _may_be_deep(images: ImageSet, index: int) -> bool:
    return isinstance(locate(images.store, index)[0], EncodedStore)
