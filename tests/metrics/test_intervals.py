import numpy as np
import pytest
from scipy.stats import binom, binomtest

from paucal.metrics.intervals import (
    Bootstrap,
    Score,
    cross_validated,
    images_needed,
    independent_images,
    mirrored_percentile,
    percentile,
    proportion_score,
    wilson,
    wilson_share,
)


@pytest.mark.parametrize(("hits", "total", "level"), [(0, 10, 0.95), (10, 10, 0.95), (7, 23, 0.9), (1, 1, 0.99)])
def test_wilson__equals_scipy(hits, total, level):
    expected = binomtest(hits, total).proportion_ci(level, method="wilson")
    score = wilson(hits, total, level)
    assert (score.value, score.low, score.high) == pytest.approx((hits / total, expected.low, expected.high), abs=1e-12)


def test_wilson__ends_are_exact():
    assert wilson(0, 10) == Score(0.0, 0.0, pytest.approx(0.2775, abs=1e-4))
    assert wilson(10, 10) == Score(1.0, pytest.approx(0.7225, abs=1e-4), 1.0)


@pytest.mark.parametrize("truth", [0.5, 0.8, 0.95])
def test_wilson__covers_the_truth_as_often_as_it_says(truth):
    n = 100
    inside = [score.low <= truth <= score.high for score in (wilson(k, n) for k in range(n + 1))]
    coverage = binom.pmf(np.arange(n + 1), n, truth) @ np.array(inside)
    assert coverage == pytest.approx(0.95, abs=0.02)


def test_wilson__refuses_impossible_counts():
    for arguments in ((3, 2), (-1, 2), (0, 0), (1, 2, 1.0)):
        with pytest.raises(ValueError, match="expected 0 <= hits"):
            wilson(*arguments)


@pytest.mark.parametrize(("n_groups", "truth", "likeness"), [(6, 0.8, 0.3), (12, 0.9, 0.2), (30, 0.6, 0.0)])
def test_proportion_score__covers_the_truth_where_images_of_a_group_are_alike(n_groups, truth, likeness):
    generator, inside = np.random.default_rng(0), {"groups": 0, "images": 0}
    draws = 400
    for _ in range(draws):
        groups = np.repeat(np.arange(n_groups), generator.integers(10, 31, n_groups))
        spread = 1 / likeness - 1 if likeness else 1e9
        hits = generator.random(len(groups)) < generator.beta(truth * spread, (1 - truth) * spread, n_groups)[groups]
        for name, numbers in (("groups", groups + 7), ("images", None)):
            low, high = proportion_score(hits, groups=numbers).ends
            inside[name] += low <= truth <= high
    assert 0.91 < inside["groups"] / draws < 0.99
    assert (inside["images"] / draws > 0.91) == (likeness == 0)


def test_proportion_score__of_groups_of_one_image_is_nearly_wilsons():
    hits = np.arange(50) % 5 > 0
    assert proportion_score(hits) == wilson(40, 50)
    assert proportion_score(hits, groups=np.arange(50)).ends == pytest.approx(wilson(40, 50).ends, abs=0.01)


def test_proportion_score__counts_groups_where_all_images_are_right_and_needs_two():
    groups = np.repeat([3, 5, 9], 20)
    assert proportion_score(np.ones(60, dtype=bool), groups=groups) == wilson(3, 3)
    assert proportion_score(np.arange(60) > 20, groups=np.ones(60, dtype=int)) == Score(39 / 60)


@pytest.mark.parametrize("multinomial", [False, True])
def test_bootstrap__draws_whole_groups(multinomial):
    groups = np.array([8, 2, 8, 5, 2, 8])
    plain = Bootstrap(3, 50, multinomial=multinomial)
    drawn = np.concatenate([*Bootstrap(3, 50, multinomial=multinomial, groups=groups).weights(6)])
    counts = np.concatenate([*plain.weights(3)])
    for row, group_counts in zip(drawn, counts, strict=True):
        by_group = dict(zip((8, 2, 5), group_counts, strict=True))  # in the order of their first images
        assert row.tolist() == [by_group[group] for group in groups]
    assert counts.sum(1).tolist() == [3.0] * 50


def test_cross_validated__counts_fewer_images_than_there_are_and_no_repeat_as_new_ones():
    hits = np.arange(90) % 3 > 0  # two thirds of the answers are right
    once, thrice = cross_validated(hits[None]), cross_validated(np.stack([hits] * 3))
    assert once == thrice == wilson_share(2 / 3, 40)  # 90 / (1 + 5 / 4)
    assert once.high - once.low > 1.45 * (wilson(60, 90).high - wilson(60, 90).low)
    assert cross_validated(np.stack([hits, ~hits])).value == pytest.approx(0.5)


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
def test_images_needed__is_the_least_number_with_so_narrow_an_interval(share):
    images = images_needed(share, 0.03)
    enough, fewer = (wilson_share(share, count) for count in (images, images - 1))
    assert enough.high - enough.low <= 0.06 < fewer.high - fewer.low


def test_percentile__takes_the_middle_of_the_draws():
    draws = np.arange(1001) / 1000
    assert percentile(0.5, draws, 0.9) == Score(0.5, pytest.approx(0.05), pytest.approx(0.95))


def test_percentile__is_widened_to_hold_the_value():
    draws = 0.3 + np.arange(1001) / 10000
    assert percentile(0.25, draws).low == 0.25
    assert percentile(0.45, draws).high == 0.45


def test_mirrored_percentile__reaches_as_far_to_both_sides_and_stays_a_share():
    draws = 0.3 + np.arange(1001) / 10000  # 0.3 to 0.4, all above the value
    score = mirrored_percentile(0.25, draws, 0.9)
    assert score == Score(0.25, pytest.approx(0.5 - 0.395), pytest.approx(0.395))
    assert mirrored_percentile(0.05, draws).low == 0.0
    assert mirrored_percentile(0.95, draws).high == 1.0


def test_intervals__draws_without_spread_give_no_interval():
    assert percentile(1.0, np.ones(50)) == Score(1.0, None, None)
    assert mirrored_percentile(1.0, np.ones(50)) == Score(1.0, None, None)
    assert percentile(0.3, np.array([0.3, 0.1 + 0.2])) == Score(0.3, None, None)
    assert percentile(2 / 3, np.r_[np.full(999, 2 / 3), 0.5]) == Score(2 / 3, None, None)


def test_intervals__draws_without_a_score_do_not_count():
    draws, lacking = np.arange(1001) / 1000, np.full(300, np.nan)
    for make in (percentile, mirrored_percentile):
        assert make(0.5, np.concatenate([draws, lacking])) == make(0.5, draws)
        assert make(0.5, lacking) == Score(0.5, None, None)


def test_independent_images__of_a_cross_validation_as_a_page_computes_them():
    assert independent_images(60, folds=5) == pytest.approx(60 / (1 + 5 / 4))
    score = wilson_share(53 / 60, independent_images(60, folds=5))
    assert (round(score.low, 2), round(score.high, 2)) == (0.71, 0.96)
