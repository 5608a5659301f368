"""Shares of images with several labels."""

import numpy as np
import pytest

from paucal.data.splits.groups import stratify_iteratively


def drawn(rows: int, classes: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return (generator.random((rows, classes)) < np.linspace(0.02, 0.6, classes)).astype(np.int8)


def test_iterative_parts__give_every_part_its_share_of_every_class():
    rows, shares = drawn(1000, 8), [0.7, 0.1, 0.2]
    parts = stratify_iteratively(rows, shares, seed=3)
    for part, share in enumerate(shares):
        assert abs((parts == part).sum() - 1000 * share) <= 5
        counts, wanted = rows[parts == part].sum(0), rows.sum(0) * share
        assert np.abs(counts - wanted).max() <= 0.04 * rows.sum(0).max()
        assert abs(counts[0] - wanted[0]) < 1  # the rarest class is dealt out first
    by_chance = np.random.default_rng(0).permutation(1000)[:100]
    worst = np.abs(rows[parts == 1].sum(0) / rows.sum(0) - 0.1).max()
    assert worst < np.abs(rows[by_chance].sum(0) / rows.sum(0) - 0.1).max() / 2


def test_iterative_parts__keep_the_only_image_of_a_class_in_the_largest_part():
    rows = drawn(40, 3)
    rows[:, 0] = 0
    rows[7, 0] = 1
    for seed in range(5):
        assert stratify_iteratively(rows, [0.7, 0.1, 0.2], seed)[7] == 0


def test_iterative_parts__deal_out_images_without_a_label_and_unknown_ones():
    rows = np.zeros((100, 2), dtype=np.int8)
    assert np.bincount(stratify_iteratively(rows, [0.7, 0.1, 0.2], 0)).tolist() == [70, 10, 20]
    assert np.bincount(stratify_iteratively(rows - 1, [0.5, 0.5], 0)).tolist() == [50, 50]


def test_iterative_parts__depend_on_the_seed_alone():
    rows = drawn(60, 4)
    first, again, other = (stratify_iteratively(rows, [0.5, 0.5], seed) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_iterative_parts__of_shares_that_make_no_whole():
    with pytest.raises(ValueError, match="fractions of at least 0 whose sum is 1"):
        stratify_iteratively(drawn(4, 2), [0.5, 0.4], 0)
