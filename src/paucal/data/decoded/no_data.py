"""Values of images that are no measurements: NaN, infinite ones, and numbers that stand for "no data" in rasters."""

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.channels.arrays import is_tiff
from paucal.data.decode import ImageSource
from paucal.wording import percent

_GDAL_NO_DATA = 42113  # the TIFF tag with the number that stands for no data, as text
_NO_DATA = r"-9{2,}\.[09]|-32768\.0|-32767\.0|-214748364[78]\.0"  # as programs write it
_BEYOND = 1e30  # no measurement is as large; the largest float and 1e38 stand for no data


@dataclass(frozen=True)
class Values:
    """Values of one image.

    Attributes:
        values: (n,) values, or (n, C) of C channels.
        no_data: Number that the file declares to stand for no data; None where it declares none.
    """

    values: NDArray[np.float64]
    no_data: float | None = None


def declared_no_data(source: ImageSource) -> float | None:
    """Return the number that stands for no data by a TIFF's own tag; None without such a tag."""
    if not is_tiff(source):
        return None
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=("TIFF",)) as image:
            return float(str(getattr(image, "tag_v2", {}).get(_GDAL_NO_DATA)).strip("\0 "))
    except Exception:  # channels that Pillow does not know, or a tag that holds something else
        return None


def measured_values(looked: Sequence[Values], outside: float) -> tuple[NDArray[np.float64], list[str]]:
    """Return the values of images that are measurements, and notes on the others.

    Left out are NaN, infinite values, what a file declares to be no data, and -9999 and the like where many pixels
    have it and it lies farther from the others than these are apart. Another such number may be a measurement.

    Args:
        looked: Values of some images, (n,) each.
        outside: Share of the values that a range may leave out, so that a rarer number changes nothing.
    """
    values = np.concatenate([one.values for one in looked])
    declared = np.concatenate(
        [np.full(len(one.values), np.nan if one.no_data is None else one.no_data) for one in looked]
    )
    finite, notes = np.isfinite(values), []
    if not finite.all():
        images = sum(not np.isfinite(one.values).all() for one in looked)
        where = f"(in {images} of {len(looked)} images looked at)"
        notes.append(f"{_share(~finite)} of the values are NaN or infinite {where}; NaN is read as black")
    good = finite & (values != declared)
    if (beyond := good & (np.abs(values) >= _BEYOND)).any():
        good &= ~beyond
        notes.append(f"{_share(beyond)} of the values are beyond {_BEYOND:g}, and are taken for no data")
    for number in _far_values(values[good], outside):
        told = f"{number:g} ({_share(values == number)} of the values) lies far from all others"
        if re.fullmatch(_NO_DATA, f"{number:.1f}"):
            good &= values != number
            notes.append(f"{told}, and is taken for no data")
        else:
            notes.append(f"{told}, which get few of 256 levels: where it stands for no data, write NaN")
    return values[good], notes


def _share(chosen: NDArray[np.bool_]) -> str:
    return percent(float(chosen.mean()), ".3g")


def _far_values(values: NDArray[np.float64], outside: float) -> list[float]:
    """Return the lowest and the highest value where many have it and it lies far from the others."""
    if not len(values):
        return []
    found = []
    for extreme, sign in ((float(values.min()), 1), (float(values.max()), -1)):
        others = values[values != extreme]
        if not len(others) or 1 - len(others) / len(values) < max(outside, 2 / len(values)):
            continue
        low, high = np.quantile(others, (outside, 1 - outside))
        gap = math.fabs((low if sign > 0 else high) - extreme)
        if high > low and gap > high - low:
            found.append(extreme)
    return found
