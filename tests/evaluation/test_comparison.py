"""What may be concluded from a few seeds and a few test images, checked against scipy, naive loops and simulation."""

import numpy as np
import pytest
from scipy import stats

from paucal.evaluation.comparison import count_seeds_needed, difference, score_over_seeds


def test_repeated__is_scipys_t_interval_and_says_nothing_of_one_seed():
    values = [0.71, 0.74, 0.69, 0.75]
    found = score_over_seeds(values)
    error = np.std(values, ddof=1) / 2
    assert (found.score.low, found.score.high) == pytest.approx(stats.t.interval(0.95, 3, np.mean(values), error))
    assert found.deviation == pytest.approx(np.std(values, ddof=1))
    alone = score_over_seeds([0.7])
    assert (alone.score.low, alone.deviation) == (None, None)
    agreeing = score_over_seeds([0.5, 0.5])
    assert (agreeing.score.low, agreeing.deviation) == (None, 0.0)
    with pytest.raises(ValueError, match="at least one"):
        score_over_seeds([])


def hits(chances, images=400, seed=0) -> np.ndarray:
    return (np.random.default_rng(seed).random((len(chances), images)) < np.array(chances)[:, None]).astype(float)


def test_difference__is_paired_by_seed():
    # The seeds differ far more than the ways to train.
    base = hits([0.5, 0.7, 0.9], images=2000)
    better = np.where((base == 0) & (hits([0.2] * 3, 2000, seed=1) == 1), 1.0, base)
    found = difference(better, base)
    paired = stats.ttest_rel(better.mean(1), base.mean(1)).confidence_interval()
    assert (found.by_seed.score.low, found.by_seed.score.high) == pytest.approx((paired.low, paired.high))
    assert found.value == pytest.approx(better.mean() - base.mean())


def test_difference__resamples_images_as_a_naive_loop_does():
    first, second = hits([0.8, 0.7], 60, seed=2), hits([0.6, 0.65], 60, seed=3)
    found = difference(first, second, draws=4000)
    generator, gaps = np.random.default_rng(5), (first - second).mean(0)
    naive = [gaps[generator.integers(60, size=60)].mean() for _ in range(4000)]
    low, high = np.quantile(naive, [0.025, 0.975])
    assert (found.over_images.low, found.over_images.high) == pytest.approx((low, high), abs=0.012)


def test_difference__takes_seeds_that_were_tested_on_other_images():
    first, second = hits([0.8, 0.7], 50, seed=2), hits([0.6, 0.65], 50, seed=3)
    apart = [np.full((2, 100), np.nan) for _ in range(2)]
    for table, values in zip(apart, (first, second), strict=True):
        table[0, :50], table[1, 50:] = values
    found = difference(*apart)
    assert found.images == 100
    assert found.by_seed.values == pytest.approx((first - second).mean(1))
    with pytest.raises(ValueError, match="same images"):
        difference(apart[0], apart[0][::-1])


def test_difference__resamples_whole_groups():
    """Twenty copies of an image say no more than the image."""
    first, second = hits([0.8, 0.7], 60, seed=2), hits([0.6, 0.65], 60, seed=3)
    copies = difference(first.repeat(20, axis=1), second.repeat(20, axis=1), groups=np.arange(60).repeat(20).tolist())
    alone = difference(first, second)
    assert copies.over_images == alone.over_images
    assert (copies.images, copies.groups, alone.groups) == (1200, 60, None)
    one_group = difference(first, second, groups=["patient"] * 60)
    assert (one_group.both.low, one_group.clear) == (None, False)


def test_difference__of_equal_runs_is_never_clear():
    same = hits([0.8, 0.7])
    found = difference(same, same)
    assert (found.value, found.clear, found.seeds_needed, found.images_needed) == (0.0, False, None, None)
    assert (found.both.low, found.both.high) == (None, None)
    assert (found.over_images.low, found.over_images.high) == (None, None)


def test_difference__one_seed_is_never_clear():
    found = difference(np.ones((1, 200)), hits([0.5], 200))
    assert found.over_images.low > 0.4
    assert found.both.low > 0.4
    assert not found.clear
    assert found.seeds_needed is None


def test_clear__seeds_that_agree_exactly_do_not_show_their_spread():
    found = difference(np.ones((2, 200)), hits([0.5], 200).repeat(2, axis=0))
    assert found.by_seed.score.low is None
    assert found.both == found.over_images
    assert not found.clear
    assert found.seeds_needed is None


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("seeds", [2, 5])
def test_clear__images_with_the_same_difference_show_nothing_about_others(seeds, images):
    found = difference(np.ones((seeds, images)), np.zeros((seeds, images)))
    assert (found.both.low, found.both.high) == (None, None)
    assert not found.clear


def test_difference__both_at_once_is_wider_than_either():
    found = difference(hits([0.80, 0.78, 0.83], seed=2), hits([0.76, 0.79, 0.77], seed=3))
    reach = [found.value - score.low for score in (found.by_seed.score, found.over_images, found.both)]
    assert reach[2] == pytest.approx(np.hypot(reach[0], reach[1]))
    assert found.both.high - found.value == pytest.approx(
        np.hypot(found.by_seed.score.high - found.value, found.over_images.high - found.value)
    )


def test_clear__two_seeds_that_happen_to_agree_are_not_enough():
    """Their t-interval is wide, as nobody knows how much a third would differ."""
    base = hits([0.6, 0.6], 1000, seed=2)
    better = np.where((base == 0) & (hits([0.06, 0.10], 1000, seed=3) == 1), 1.0, base)
    found = difference(better, base)
    assert found.over_images.low > 0
    assert not found.clear


def test_both__covers_the_truth_where_seeds_and_images_matter():
    """Neither interval alone does: each knows one of the two kinds of luck."""
    generator, covered = np.random.default_rng(1), {"by_seed": 0, "over_images": 0, "both": 0}
    trials, seeds, images = 120, 4, 100
    for trial in range(trials):
        luck_of_seed = generator.normal(0, 0.06, (seeds, 1))
        luck_of_image = generator.normal(0, 0.4, (1, images))
        gaps = 0.03 + luck_of_seed + luck_of_image + generator.normal(0, 0.2, (seeds, images))
        found = difference(gaps, np.zeros_like(gaps), draws=200, seed=trial)
        scores = {"by_seed": found.by_seed.score, "over_images": found.over_images, "both": found.both}
        for name, score in scores.items():
            covered[name] += score.low <= 0.03 <= score.high
    shares = {name: count / trials for name, count in covered.items()}
    assert shares["both"] > 0.93
    assert max(shares["by_seed"], shares["over_images"]) < 0.92


@pytest.mark.parametrize(("value", "needed"), [(1.0, 10), (0.5, 34), (-0.5, 34), (2.0, 5)])
def test_count_seeds_needed__are_those_of_the_tables(value, needed):
    # Cohen (1988) and G*Power: a paired t-test, two-sided 5 %, power 80 %.
    assert count_seeds_needed(value, 1.0) == needed


def test_count_seeds_needed__has_the_power_it_promises():
    generator, count = np.random.default_rng(1), count_seeds_needed(0.8, 1.0)
    drawn = generator.normal(0.8, 1.0, (2000, count))
    seen = stats.ttest_1samp(drawn, 0.0, axis=1).pvalue < 0.05
    assert 0.77 < seen.mean() < 0.86


def test_count_seeds_needed__gives_up_where_no_number_would_do():
    assert count_seeds_needed(0.001, 1.0) is None
    assert count_seeds_needed(0.0, 1.0) is None
    assert count_seeds_needed(1.0, None) is None
    assert count_seeds_needed(1.0, 0.0) is None
