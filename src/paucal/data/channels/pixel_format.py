"""The pixel format of a set: number of channels, bits per channel, and value range if there are more than 8 bits."""

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.channels.arrays import NPY_SUFFIXES, TIFF_SUFFIXES, is_tiff
from paucal.data.channels.decoding import array_shape, high_bit_channel_values, value_range_of
from paucal.data.channels.pixels import RGB
from paucal.data.decode import DecodeOptions, ImageSource, UnreadableImage
from paucal.data.images import ImageSet, evenly_spaced
from paucal.data.stores import EncodedStore, locate, locate_original
from paucal.types import UserError
from paucal.wording import counted, percent

_MAX_HEADERS = 256  # largest number of images per set whose headers are read
_GREY = 1  # number of channels of grey images, which are read as RGB
DEPTH_SAMPLE = 16  # number of images whose bits per channel are checked
_MAX_RANGE_IMAGES = 32  # largest number of images from which the value range of a set is measured
_MAX_IMAGE_VALUES = 1 << 16  # approximate largest number of values sampled from one image
# Fraction of the values that may lie below the range, and above it, so that dead and hot pixels do not widen the range.
_OUTSIDE_FRACTION = 1e-4
_NO_DATA_TAG = 42113  # TIFF tag with the no-data value, as text
_NO_DATA_PATTERN = r"-9{2,}\.[09]|-32768\.0|-32767\.0|-214748364[78]\.0"  # common no-data values
# Smallest absolute value that means no data; files use 1e38 or the largest float, for example.
_MIN_NO_DATA_MAGNITUDE = 1e30


def count_channels(images: ImageSet) -> int:
    """Return the number of channels in the headers of up to 256 images spread over a set; grey images count as RGB."""
    first: tuple[int, str] | None = None
    for index in images.sample(_MAX_HEADERS):
        store, position = locate(images.store, int(index))
        channels = RGB
        if isinstance(store, EncodedStore) and store.name(position).lower().endswith((*NPY_SUFFIXES, *TIFF_SUFFIXES)):
            try:
                shape = array_shape(store.source(position), store.name(position))
            except UnreadableImage:  # reported when all images are read
                continue
            channels = RGB if shape is None or shape.channels == _GREY else shape.channels
        key = images.keys[int(index)]
        if first is not None and channels != first[0]:
            raise UserError(
                f"the images differ in the number of channels: {first[1]} has {first[0]}, {key} has {channels}; give "
                "--channels, and remove images with another number of channels or skip them with --on-bad-image skip."
            )
        first = first or (channels, key)
    return RGB if first is None else first[0]


def describe_channels(channels: int) -> str:
    """Return a note on how images with a number of channels other than three are treated; "" for RGB."""
    if channels == RGB:
        return ""
    note = "" if channels < RGB else "; sheets and reports show the first three channels"
    count = counted(channels, "channel")
    return f"images are read with {count}{note}; colour augmentations are off, since they only apply to RGB"


def differs_in_bit_depth(source: ImageSource, name: str, options: DecodeOptions) -> bool:
    """Return whether an image has more than 8 bits per channel but the training images (`options`) 8, or vice versa."""
    try:
        return (high_bit_channel_values(source, name, options.channels) is not None) != _has_high_bit_depth(options)
    except UnreadableImage:
        return False


def bit_depth_notes(images: ImageSet, options: DecodeOptions) -> list[str]:
    """Return a list with a note if sampled images differ in bits per channel from a model's training images."""
    n_other, sample = 0, images.sample(DEPTH_SAMPLE)
    for index in sample:
        store, position = locate_original(images.store, int(index))
        if isinstance(store, EncodedStore):
            n_other += differs_in_bit_depth(store.source(position), store.name(position), options)
    difference = describe_bit_depth_difference(options)
    note = f"{difference} ({n_other} of {len(sample)} sampled images): predictions are unreliable"
    return [note] if n_other else []


def describe_bit_depth_difference(options: DecodeOptions, subject: str = "images have") -> str:
    """Return a sentence about images whose bits per channel differ from those of a model's training images."""
    actual, trained = ("8", "more") if _has_high_bit_depth(options) else ("more than 8", "8")
    return f"{subject} {actual} bits per channel, and the model was trained on images with {trained}"


def _has_high_bit_depth(options: DecodeOptions) -> bool:
    return options.value_range is not None or options.channel_ranges is not None


@dataclass(frozen=True)
class SampledValues:
    """(n,) or (n, channels) values sampled from one image, and the value for "no data" that the file declares."""

    values: NDArray[np.float64]
    nodata_value: float | None = None


def measure_value_ranges(options: DecodeOptions, images: ImageSet) -> tuple[DecodeOptions, list[str]]:
    """Return `DecodeOptions` with value ranges, and notes on values that were left out because they mean "no data".

    The ranges are measured if `options` has no ranges and images have more than 8 bits per channel. For this, evenly
    spaced values are sampled from up to 32 such images, spread over the set. A fraction of 0.0001 of the values may lie
    below the range, and the same fraction above the range. Labels and the split are not used.
    """
    if (options.value_range if options.channels == RGB else options.channel_ranges) is not None:
        return options, []
    sampled = list(_sample_high_bit_images(images, options.channels))
    if not sampled:
        return options, []
    if options.channels == RGB:
        values, notes = remove_nodata_values(sampled)
        return replace(options, value_range=value_range_of(values, _OUTSIDE_FRACTION) if len(values) else None), notes
    ranges, notes = [], []
    for channel in range(options.channels):
        channel_values = [replace(image, values=image.values[:, channel]) for image in sampled]
        values, channel_notes = remove_nodata_values(channel_values)
        ranges.append(value_range_of(values, _OUTSIDE_FRACTION))
        notes += [f"channel {channel + 1}: {note}" for note in channel_notes]
    return replace(options, channel_ranges=tuple(ranges)), notes


def _sample_high_bit_images(images: ImageSet, channels: int) -> Iterator[SampledValues]:
    """Yield values of up to 32 images with more than 8 bits per channel, (n,) for RGB and grey, else (n, channels)."""
    sampled = map(int, images.sample(_MAX_HEADERS))
    encoded = [index for index in sampled if isinstance(locate(images.store, index)[0], EncodedStore)]
    count = 0
    for index in [encoded[position] for position in evenly_spaced(len(encoded), _MAX_HEADERS)]:
        store, position = locate(images.store, index)
        assert isinstance(store, EncodedStore)
        try:
            values = high_bit_channel_values(store.source(position), store.name(position), channels)
        except UnreadableImage:
            continue
        if values is None:
            continue
        flat = values.reshape(-1) if values.ndim == 2 or channels == RGB else values.reshape(-1, channels)
        spaced: NDArray[np.float64] = flat[:: max(1, len(flat) // _MAX_IMAGE_VALUES)].astype(np.float64)
        source, nodata_value = store.source(position), None
        if is_tiff(source):
            file = io.BytesIO(source) if isinstance(source, bytes) else source
            # An exception means that Pillow does not support the channels, or that the tag is missing or not a number.
            with suppress(Exception), Image.open(file, formats=("TIFF",)) as image:
                nodata_value = float(str(getattr(image, "tag_v2", {}).get(_NO_DATA_TAG)).strip("\0 "))
        yield SampledValues(spaced, nodata_value)
        count += 1
        if count == _MAX_RANGE_IMAGES:
            return


def remove_nodata_values(sampled: Sequence[SampledValues]) -> tuple[NDArray[np.float64], list[str]]:
    """Return the sampled values of all images except values that mean "no data", and notes on the excluded values.

    NaN, infinite values, absolute values of 1e30 or more, and the no-data values that files declare are left out. A
    common no-data number such as -9999 is left out if it is the lowest or the highest value, has a frequency of at
    least 0.0001, and is farther from the other values than the width of their range.
    """
    values = np.concatenate([image.values for image in sampled])
    image_nodata = [np.nan if image.nodata_value is None else image.nodata_value for image in sampled]
    nodata_values = np.repeat(image_nodata, [len(image.values) for image in sampled])
    finite, notes = np.isfinite(values), []
    if not finite.all():
        n_images = sum(not np.isfinite(image.values).all() for image in sampled)
        context = f"(in {n_images} of {len(sampled)} sampled images)"
        notes.append(f"{_format_fraction(~finite)} of the values are NaN or infinite {context}; NaN is read as black")
    is_valid = finite & (values != nodata_values)
    if (is_huge := is_valid & (np.abs(values) >= _MIN_NO_DATA_MAGNITUDE)).any():
        is_valid &= ~is_huge
        limit = f"±{_MIN_NO_DATA_MAGNITUDE:g}"
        notes.append(f"{_format_fraction(is_huge)} of the values are beyond {limit}, and are treated as no data")
    for number in _find_far_extremes(values[is_valid]):
        message = f"{number:g} ({_format_fraction(values == number)} of the values) lies far from all other values"
        if re.fullmatch(_NO_DATA_PATTERN, f"{number:.1f}"):
            is_valid &= values != number
            notes.append(f"{message}, and is treated as no data")
        else:
            notes.append(
                f"{message}, which leaves few of the 256 levels for the other values: if {number:g} means no data, "
                "write NaN instead"
            )
    return values[is_valid], notes


def _format_fraction(mask: NDArray[np.bool_]) -> str:
    return percent(float(mask.mean()), ".3g")


def _find_far_extremes(values: NDArray[np.float64]) -> list[float]:
    """Return the lowest and the highest value, each only if the value is frequent and far from all other values."""
    if not len(values):
        return []
    far_values = []
    for extreme, sign in ((float(values.min()), 1), (float(values.max()), -1)):
        other_values = values[values != extreme]
        if not len(other_values) or 1 - len(other_values) / len(values) < max(_OUTSIDE_FRACTION, 2 / len(values)):
            continue
        low, high = np.quantile(other_values, (_OUTSIDE_FRACTION, 1 - _OUTSIDE_FRACTION))
        gap = math.fabs((low if sign > 0 else high) - extreme)
        if high > low and gap > high - low:
            far_values.append(extreme)
    return far_values
