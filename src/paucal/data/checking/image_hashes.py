"""Perceptual hashes of images, and the pairs of images whose hashes are nearly equal.

The perceptual hash is pHash (Zauner 2010, "Implementation and benchmarking of perceptual image hash functions", section
3.2.1), 64 bits that change little when an image is resized, saved again or made a little brighter. The image is reduced
to 32 x 32 grey pixels. Each of the 8 x 8 lowest frequencies of the discrete cosine transform gives one bit: whether the
frequency exceeds the median of the 64 frequencies, which include the constant term, as in the package `imagehash`.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

GREY_SIDE, KEPT_FREQUENCIES = 32, 8  # number of pixels, and number of frequencies, along each axis
MAX_DISTANCE = 7  # largest number of differing bits (of 64) for which `find_near_pairs` finds every pair
_QUARTERS, _QUARTER_BITS = 4, 16  # number of quarters of a hash, and number of bits in each quarter
_CHUNK_HASHES = 1 << 14  # number of hashes whose neighbours are searched at a time
_MAX_PAIRS = 1 << 24  # number of candidate pairs whose distances are computed at a time
# The first 8 rows of the (32, 32) discrete cosine transform of type II, without normalisation.
_COSINES = np.cos(np.pi * np.arange(KEPT_FREQUENCIES)[:, None] * (2 * np.arange(GREY_SIDE) + 1) / (2 * GREY_SIDE))
_ONES_PER_BYTE = np.array([bin(value).count("1") for value in range(256)], dtype=np.uint8)  # by value of the byte


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
        n_pairs, first = end - begin, 0
        while first < len(quarter):
            pair_counts = np.cumsum(n_pairs[first : first + _CHUNK_HASHES])
            length = max(1, int(np.searchsorted(pair_counts, _MAX_PAIRS, side="right")))
            rows = np.arange(first, min(first + length, len(quarter)))
            first += length
            counts = n_pairs[rows]
            left = np.repeat(rows, counts)
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            right = order[np.repeat(begin[rows], counts) + within]
            is_ordered = left < right
            yield left[is_ordered], right[is_ordered]
