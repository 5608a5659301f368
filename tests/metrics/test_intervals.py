import numpy as np
import pytest
from scipy.stats import binom, binomtest

from paucal.metrics.intervals import (
    Score,
    cross_validated,
    images_needed,
    percentile,
    two_sided,
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


def test_two_sided__reaches_as_far_to_both_sides_and_stays_a_share():
    draws = 0.3 + np.arange(1001) / 10000  # 0.3 to 0.4, all above the value
    score = two_sided(0.25, draws, 0.9)
    assert score == Score(0.25, pytest.approx(0.5 - 0.395), pytest.approx(0.395))
    assert two_sided(0.05, draws).low == 0.0
    assert two_sided(0.95, draws).high == 1.0


def test_intervals__draws_without_spread_give_no_interval():
    assert percentile(1.0, np.ones(50)) == Score(1.0, None, None)
    assert two_sided(1.0, np.ones(50)) == Score(1.0, None, None)
    assert percentile(0.3, np.array([0.3, 0.1 + 0.2])) == Score(0.3, None, None)
    assert percentile(2 / 3, np.r_[np.full(999, 2 / 3), 0.5]) == Score(2 / 3, None, None)


def test_intervals__draws_without_a_score_do_not_count():
    draws, lacking = np.arange(1001) / 1000, np.full(300, np.nan)
    for make in (percentile, two_sided):
        assert make(0.5, np.concatenate([draws, lacking])) == make(0.5, draws)
        assert make(0.5, lacking) == Score(0.5, None, None)
