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
from paucal.data.decoded.no_data import Values, declared_no_data, measured_values
from paucal.data.images import ImageSet, locate, spread
from paucal.data.sources.stores import EncodedStore

_IMAGES = 32
_LOOKED_AT = 256
_VALUES = 1 << 16  # of each image
# So many of all values lie below, and above, the range: dead and hot pixels do not stretch it.
_OUTSIDE = 1e-4


def with_ranges(reading: Reading, images: ImageSet) -> tuple[Reading, list[str]]:
    """Return a reading with the ranges of values, and notes on values that are no measurements.

    The ranges are measured where the reading has none and images have more than 8 bits.
    """
    if (reading.value_range if reading.channels == RGB else reading.channel_ranges) is not None:
        return reading, []
    looked = list(_deep(images, reading.channels))
    if not looked:
        return reading, []
    if reading.channels == RGB:
        values, notes = measured_values(looked, _OUTSIDE)
        return replace(reading, value_range=range_of(values, _OUTSIDE) if len(values) else None), notes
    ranges, notes = [], []
    for channel in range(reading.channels):
        values, told = measured_values([replace(one, values=one.values[:, channel]) for one in looked], _OUTSIDE)
        ranges.append(range_of(values, _OUTSIDE))
        notes += [f"channel {channel + 1}: {note}" for note in told]
    return replace(reading, channel_ranges=tuple(ranges)), notes


def measure_range(images: ImageSet) -> tuple[float, float] | None:
    """Return the (low, high) that a set's deep images become 0 and 255 with; None where it has none.

    Up to 32 of its deep images, spread over the set, are looked at, with evenly spaced values of each; a ten-thousandth
    of the values may lie beyond on either side. Labels and parts play no role. Images that cannot be read are left out,
    and so are values that stand for no data.
    """
    return with_ranges(Reading(), images)[0].value_range


def _deep(images: ImageSet, channels: int) -> Iterator[Values]:
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
        few: NDArray[np.float64] = flat[:: max(1, len(flat) // _VALUES)].astype(np.float64)
        yield Values(few, declared_no_data(store.source(place)))
        count += 1
        if count == _IMAGES:
            return


def _may_be_deep(images: ImageSet, index: int) -> bool:
    return isinstance(locate(images.store, index)[0], EncodedStore)
