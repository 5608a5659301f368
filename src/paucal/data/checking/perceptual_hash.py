"""64 bits that stay nearly the same when an image is resized, saved again or made a little brighter.

The hash is the one known as pHash (Zauner 2010, "Implementation and benchmarking of perceptual image hash functions",
section 3.2.1): the image in grey at 32 x 32 pixels, its discrete cosine transform, the 8 x 8 lowest frequencies, a bit
for each that exceeds their median. As in the program `imagehash`, the constant term is among the 64.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE, KEPT = 32, 8
MOST_DISTANCE = 7  # of 64 bits: what the search below finds without a gap
_BANDS, _BAND_BITS = 4, 16
_CHUNK = 1 << 14  # hashes whose neighbours are looked up at once
_MOST_PAIRS = 1 << 24  # candidates held at once, before their distances are looked at
_BYTE_BITS = np.array([bin(value).count("1") for value in range(256)], dtype=np.uint8)


def perceptual_hash(image: Image.Image) -> int:
    """Return the hash of an image as a whole number of 64 bits.

    Example:
        >>> rings = Image.radial_gradient("L").crop((20, 60, 240, 250))
        >>> (perceptual_hash(rings) ^ perceptual_hash(rings.resize((90, 90)))).bit_count() <= 7
        True
    """
    return hash_of(small_grey(image))


def small_grey(image: Image.Image) -> NDArray[np.float64]:
    """Return the (32, 32) pixels in grey, from 0 to 255, that an image is hashed by."""
    return np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS), dtype=np.float64)


def hash_of(grey: NDArray[np.float64]) -> int:
    """Return the hash of what `small_grey` gives."""
    low = (_COSINES @ grey @ _COSINES.T).reshape(-1)
    ordered = np.sort(low)
    bits = low > (ordered[KEPT * KEPT // 2 - 1] + ordered[KEPT * KEPT // 2]) / 2
    return int(np.packbits(bits).view(">u8")[0])


def hamming(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the number of bits in which hashes differ, (N,) for two (N,) arrays."""
    different = np.bitwise_xor(first, second)
    return _BYTE_BITS[different.view(np.uint8).reshape(len(different), 8)].sum(1, dtype=np.int64)


def near_pairs(hashes: NDArray[np.uint64], most: int = MOST_DISTANCE) -> NDArray[np.int64]:
    """Return the (P, 2) positions of all hashes that differ in at most `most` bits, the smaller position first.

    Of several equal hashes each is paired with the first of them only, and that one stands for them all elsewhere, so
    that a thousand copies of one image are a thousand pairs and not half a million.

    Two hashes that differ in at most 7 bits differ in at most one bit within one of their four quarters. So every hash
    is compared with those alone that share a quarter with it, or have it but for one bit (Norouzi et al. 2012, "Fast
    search in Hamming space with multi-index hashing").

    Raises:
        ValueError: `most` is beyond 7, where this search would miss some.
    """
    if not 0 <= most <= MOST_DISTANCE:
        raise ValueError(f"expected a distance of 0 to {MOST_DISTANCE} bits, got {most}")
    different, first, numbers = np.unique(hashes, return_index=True, return_inverse=True)
    copies = np.flatnonzero(first[numbers] != np.arange(len(hashes)))
    found = [np.stack([first[numbers[copies]], copies], axis=1)]
    for band in range(_BANDS):
        quarter = ((different >> np.uint64(band * _BAND_BITS)) & np.uint64(0xFFFF)).astype(np.int64)
        for left, right in _sharing(quarter):
            close = hamming(different[left], different[right]) <= most
            found.append(np.sort(np.stack([first[left[close]], first[right[close]]], axis=1), axis=1))
    return np.unique(np.concatenate(found), axis=0).astype(np.int64).reshape(-1, 2)


def _sharing(quarter: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield pairs of positions whose quarters are equal or differ in one bit, in pieces that fit in memory."""
    order = np.argsort(quarter, kind="stable")
    ordered = quarter[order]
    for mask in (0, *(1 << bit for bit in range(_BAND_BITS))):
        begin, end = (np.searchsorted(ordered, quarter ^ mask, side=side) for side in ("left", "right"))
        for some in _pieces(end - begin):
            counts = end[some] - begin[some]
            left = np.repeat(some, counts)
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            right = order[np.repeat(begin[some], counts) + within]
            once = left < right
            yield left[once], right[once]


def _pieces(counts: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Cut positions into runs with a bounded number of pairs each; at least one position a run."""
    begin = 0
    while begin < len(counts):
        sums = np.cumsum(counts[begin : begin + _CHUNK])
        length = max(1, int(np.searchsorted(sums, _MOST_PAIRS, side="right")))
        yield np.arange(begin, min(begin + length, len(counts)))
        begin += length


def _cosines() -> NDArray[np.float64]:
    """Return the (8, 32) first rows of the discrete cosine transform of type II, without its norm."""
    frequency, place = np.arange(KEPT)[:, None], np.arange(SIDE)[None]
    return np.cos(np.pi * frequency * (2 * place + 1) / (2 * SIDE))


_COSINES = _cosines()
