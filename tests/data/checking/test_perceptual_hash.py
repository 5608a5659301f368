"""The hash against its definition, and the search against all pairs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from paucal.data.checking.image_hashes import compute_hash, find_near_pairs, hamming_distances, reduce_to_grey


def photo(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """A smooth picture, as photographs are."""
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def perceptual_hash(image: Image.Image) -> int:
    return compute_hash(reduce_to_grey(image))


def by_the_definition(image: Image.Image) -> int:
    grey = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.LANCZOS), dtype=float)
    low = []
    for u in range(8):
        for v in range(8):
            total = 0.0
            for x in range(32):
                for y in range(32):
                    wave = math.cos(math.pi * u * (2 * x + 1) / 64) * math.cos(math.pi * v * (2 * y + 1) / 64)
                    total += grey[x, y] * wave
            low.append(total)
    return int("".join("1" if value > np.median(low) else "0" for value in low), 2)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_hash__is_as_defined(seed):
    assert perceptual_hash(photo(seed)) == by_the_definition(photo(seed))


def bits(first: int, second: int) -> int:
    return (first ^ second).bit_count()


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image.resize((80, 60), Image.Resampling.BILINEAR),
        lambda image: ImageEnhance.Brightness(image).enhance(1.15),
        lambda image: image.convert("L").convert("RGB"),
    ],
)
def test_hash__survives_small_changes_and_tells_pictures_apart(change):
    near = [bits(perceptual_hash(photo(seed)), perceptual_hash(change(photo(seed)))) for seed in range(20)]
    far = [bits(perceptual_hash(photo(seed)), perceptual_hash(photo(seed + 100))) for seed in range(20)]
    assert max(near) <= 7 < min(far)


def all_pairs(hashes: list[int], most: int) -> set[tuple[int, int]]:
    """Naive: all pairs of different hashes within the distance, by their first positions, and copies with the first."""
    first = {value: hashes.index(value) for value in hashes}
    found = {(first[value], place) for place, value in enumerate(hashes) if first[value] != place}
    for one in first:
        for other in first:
            if first[one] < first[other] and bits(one, other) <= most:
                found.add((first[one], first[other]))
    return found


@st.composite
def crowded_hashes(draw) -> list[int]:
    """Hashes close to a few centres, so that many pairs lie at the border."""
    centres = draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4))
    found = []
    for _ in range(draw(st.integers(2, 25))):
        value = draw(st.sampled_from(centres))
        for bit in draw(st.lists(st.integers(0, 63), max_size=9, unique=True)):
            value ^= 1 << bit
        found.append(value)
    return found


@settings(max_examples=60, deadline=None)
@given(crowded_hashes(), st.integers(0, 7))
def test_near_pairs__are_all_pairs(hashes, most):
    found = find_near_pairs(np.asarray(hashes, dtype=np.uint64), most)
    assert set(map(tuple, found.tolist())) == all_pairs(hashes, most)


def test_near_pairs__of_many_copies_stay_few():
    assert find_near_pairs(np.full(20_000, 7, dtype=np.uint64)).shape == (19_999, 2)
    assert find_near_pairs(np.zeros(0, dtype=np.uint64)).shape == (0, 2)


def test_near_pairs__refuses_what_it_cannot_find():
    with pytest.raises(ValueError, match="0 to 7"):
        find_near_pairs(np.zeros(2, dtype=np.uint64), 8)


def test_hamming__counts_bits():
    first, second = np.array([0, 2**63, 255], dtype=np.uint64), np.array([0, 0, 0], dtype=np.uint64)
    assert hamming_distances(first, second).tolist() == [0, 1, 8]
