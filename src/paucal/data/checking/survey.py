"""Measurement of all images of a set in one pass: size, mode, brightness, digest (to find copies) and hash.

The perceptual hash, by which similar images are found, is pHash (Zauner 2010, "Implementation and benchmarking of
perceptual image hash functions", section 3.2.1), 64 bits that change little when an image is resized, saved again or
made a little brighter. The image is reduced to 32 x 32 grey pixels. Each of the 8 x 8 lowest frequencies of the
discrete cosine transform gives one bit: whether the frequency exceeds the median of the 64 frequencies, which include
the constant term, as in the package `imagehash`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.channels.decoding import decode_for_display
from paucal.data.channels.pixels import RGB
from paucal.data.decode import UnreadableImage
from paucal.data.decoded.stored_digests import source_digest
from paucal.data.images import ImageSet
from paucal.data.stores import DecodedCopies, EncodedStore, Store, locate, locate_original
from paucal.data.unreadable import ReportProgress, for_each

_DECODED_SIDE = 64  # shorter side of decoded images in pixels, enough for the hash and the brightness
GREY_SIDE, KEPT_FREQUENCIES = 32, 8  # number of pixels, and number of frequencies, along each axis
MAX_DISTANCE = 7  # largest number of differing bits (of 64) for which `find_near_pairs` finds every pair
_QUARTERS, _QUARTER_BITS = 4, 16  # number of quarters of a hash, and number of bits in each quarter
_CHUNK_HASHES = 1 << 14  # number of hashes whose neighbours are searched at a time
_MAX_PAIRS = 1 << 24  # number of candidate pairs whose distances are computed at a time
# The first 8 rows of the (32, 32) discrete cosine transform of type II, without normalisation.
_COSINES = np.cos(np.pi * np.arange(KEPT_FREQUENCIES)[:, None] * (2 * np.arange(GREY_SIDE) + 1) / (2 * GREY_SIDE))
_ONES_PER_BYTE = np.array([bin(value).count("1") for value in range(256)], dtype=np.uint8)  # by value of the byte


@dataclass(frozen=True)
class Survey:
    """Measurements of N images.

    Attributes:
        sizes: (N, 2) int64 heights and widths of the upright images in pixels; 0 for unreadable images.
        modes: N Pillow modes of the pixels in the files, such as "RGB", "L" or "CMYK"; "" for unreadable images.
        digests: N digests of the files' bytes, or of the pixels if there is no file; b"" for unreadable images.
        hashes: (N,) uint64 perceptual hashes.
        brightness: (N,) mean of the grey pixels, from 0 to 1; NaN for unreadable images.
        contrast: (N,) standard deviation of the 32 x 32 grey pixels, in units of `brightness`; NaN for unreadable
            images.
        unreadable: Error message for each image that cannot be read, by position.
    """

    sizes: NDArray[np.int64]
    modes: list[str]
    digests: list[bytes]
    hashes: NDArray[np.uint64]
    brightness: NDArray[np.float64]
    contrast: NDArray[np.float64]
    unreadable: dict[int, str]

    def __len__(self) -> int:
        return len(self.digests)

    def select(self, positions: NDArray[np.int64]) -> "Survey":
        """Return the measurements of the images at (n,) positions, in the order of the positions."""
        indices = positions.tolist()
        return Survey(
            self.sizes[positions],
            [self.modes[index] for index in indices],
            [self.digests[index] for index in indices],
            self.hashes[positions],
            self.brightness[positions],
            self.contrast[positions],
            {new: self.unreadable[old] for new, old in enumerate(indices) if old in self.unreadable},
        )

    @property
    def readable(self) -> NDArray[np.int64]:
        """Positions of the images that can be read."""
        return np.setdiff1d(np.arange(len(self)), list(self.unreadable))


def survey_images(images: ImageSet, workers: int | None = None, progress: ReportProgress | None = None) -> Survey:
    """Measure every image of a set: decode the image once (a JPEG at a reduced size) and read its whole file."""
    count = len(images)
    survey = Survey(
        sizes=np.zeros((count, 2), dtype=np.int64),
        modes=[""] * count,
        digests=[b""] * count,
        hashes=np.zeros(count, dtype=np.uint64),
        brightness=np.full(count, np.nan),
        contrast=np.full(count, np.nan),
        unreadable={},
    )

    def measure(index: int) -> None:
        image, mode, size = _read_for_display(images.store, index, images.reading.value_range)
        if images.reading.channels != RGB:
            images.store.check(index)  # images that can be shown may have channels that a run cannot read
        digest = digest_of(images.store, index)
        grey = reduce_to_grey(image)
        survey.sizes[index], survey.modes[index], survey.digests[index] = size, mode, digest
        survey.hashes[index] = compute_hash(grey)
        survey.brightness[index], survey.contrast[index] = grey.mean() / 255, grey.std() / 255

    survey.unreadable.update(for_each(count, measure, workers, progress))
    return survey


def image_digests(images: ImageSet) -> Iterator[str]:
    """Yield the digest of each image in hexadecimal digits; "" for streamed and for unreadable images."""
    for index in range(len(images)):
        yield (None if images.stream is not None else digest_or_none(images.store, index)) or ""


def digest_or_none(store: Store, index: int) -> str | None:
    """Return the digest of an image in hexadecimal digits; None if the image cannot be read."""
    try:
        return digest_of(store, index).hex()
    except UnreadableImage:
        return None


def digest_of(store: Store, index: int) -> bytes:
    """Return the digest of an image file's bytes, or of the image's size and pixels if there is no file.

    A decoded copy has the digest of the original image.
    """
    store, index = locate(store, index)
    if isinstance(store, DecodedCopies) and (stored_digest := store.digest(index)) is not None:
        return stored_digest
    store, index = locate_original(store, index)
    if not isinstance(store, EncodedStore):
        image = store.read(index)
        return source_digest(f"{image.size}".encode() + image.tobytes())
    try:
        return source_digest(store.source(index))
    except OSError as problem:
        raise UnreadableImage(f"image {store.name(index)} cannot be read: {problem.strerror}") from None


def _read_for_display(
    store: Store, index: int, value_range: tuple[float, float] | None
) -> tuple[Image.Image, str, tuple[int, int]]:
    store, index = locate(store, index)
    if isinstance(store, EncodedStore):
        return decode_for_display(store.source(index), store.name(index), _DECODED_SIDE, value_range)
    image = store.read(index)
    return image, image.mode, (image.height, image.width)


def perceptual_hash(image: Image.Image) -> int:
    """Return the perceptual hash of an image as a 64-bit integer.

    Example:
        >>> rings = Image.radial_gradient("L").crop((20, 60, 240, 250))
        >>> (perceptual_hash(rings) ^ perceptual_hash(rings.resize((90, 90)))).bit_count() <= 7
        True
    """
    return compute_hash(reduce_to_grey(image))


def reduce_to_grey(image: Image.Image) -> NDArray[np.float64]:
    """Return an image as (32, 32) grey pixels from 0 to 255, the input of the hash."""
    return np.asarray(image.convert("L").resize((GREY_SIDE, GREY_SIDE), Image.Resampling.LANCZOS), dtype=np.float64)


def compute_hash(grey: NDArray[np.float64]) -> int:
    """Return the perceptual hash of (32, 32) grey pixels from `reduce_to_grey`, as a 64-bit integer."""
    frequencies = (_COSINES @ grey @ _COSINES.T).reshape(-1)
    return int(np.packbits(frequencies > np.median(frequencies)).view(">u8")[0])


def hamming_distances(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the number of bits in which hashes differ, (N,) for two (N,) arrays."""
    differing_bits = np.bitwise_xor(first, second)
    return _ONES_PER_BYTE[differing_bits.view(np.uint8).reshape(len(differing_bits), 8)].sum(1, dtype=np.int64)


def find_near_pairs(hashes: NDArray[np.uint64], max_distance: int = MAX_DISTANCE) -> NDArray[np.int64]:
    """Return the (P, 2) positions of pairs of hashes with at most `max_distance` differing bits, ascending.

    If several hashes are equal, only the first is paired with other hashes, and the others are paired with the first.
    So a thousand copies of one image give a thousand pairs instead of half a million.

    If two hashes differ in at most 7 bits, at least one of their four quarters differs in at most one bit. So a hash is
    compared only with hashes that have such a quarter (Norouzi et al. 2012, "Fast search in Hamming space with
    multi-index hashing").
    """
    if not 0 <= max_distance <= MAX_DISTANCE:
        raise ValueError(f"expected a distance of 0 to {MAX_DISTANCE} bits, got {max_distance}")
    unique_hashes, first, numbers = np.unique(hashes, return_index=True, return_inverse=True)
    copies = np.flatnonzero(first[numbers] != np.arange(len(hashes)))
    pairs = [np.stack([first[numbers[copies]], copies], axis=1)]
    for quarter_index in range(_QUARTERS):
        quarter = ((unique_hashes >> np.uint64(quarter_index * _QUARTER_BITS)) & np.uint64(0xFFFF)).astype(np.int64)
        for left, right in _candidate_pairs(quarter):
            close = hamming_distances(unique_hashes[left], unique_hashes[right]) <= max_distance
            pairs.append(np.sort(np.stack([first[left[close]], first[right[close]]], axis=1), axis=1))
    return np.unique(np.concatenate(pairs), axis=0).astype(np.int64).reshape(-1, 2)


def _candidate_pairs(quarter: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield (left, right) positions of pairs whose quarters differ in at most one bit, in chunks of bounded size."""
    order = np.argsort(quarter, kind="stable")
    ordered = quarter[order]
    for mask in (0, *(1 << bit for bit in range(_QUARTER_BITS))):
        begin, end = (np.searchsorted(ordered, quarter ^ mask, side=side) for side in ("left", "right"))
        for rows in _position_chunks(end - begin):
            counts = end[rows] - begin[rows]
            left = np.repeat(rows, counts)
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            right = order[np.repeat(begin[rows], counts) + within]
            is_ordered = left < right
            yield left[is_ordered], right[is_ordered]


def _position_chunks(counts: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield consecutive positions in chunks of at least one, with a bounded sum of `counts` (pairs per position)."""
    begin = 0
    while begin < len(counts):
        pair_counts = np.cumsum(counts[begin : begin + _CHUNK_HASHES])
        length = max(1, int(np.searchsorted(pair_counts, _MAX_PAIRS, side="right")))
        yield np.arange(begin, min(begin + length, len(counts)))
        begin += length
