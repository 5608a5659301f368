"""The search for lambda finds the best of the grid on curves with one peak, within 15 fits."""

import numpy as np
import pytest

from paucal.evaluation.protocols.logistic import (
    N_GRID_POINTS,
    search_strength,
    strength_at,
)

GRID = [strength_at(position) for position in range(N_GRID_POINTS)]


def position_of(strength):
    return int(np.argmin(np.abs(np.log10(GRID) - np.log10(strength))))


def test_grid__has_eight_points_per_decade_from_1e_minus_6_to_1e6():
    assert len(GRID) == 97
    np.testing.assert_allclose(np.diff(np.log10(GRID)), 1 / 8)
    assert GRID[0] == pytest.approx(1e-6)
    assert GRID[-1] == pytest.approx(1e6)


@pytest.mark.parametrize("left", [1.0, 0.2, 5.0])
def test_search__finds_every_peak_within_fifteen_fits(left):
    most = 0
    for peak in range(N_GRID_POINTS):
        calls = []

        def score(strength, peak=peak, calls=calls):
            position = position_of(strength)
            calls.append(position)
            return left * (position - peak) if position <= peak else -(float(position - peak) ** 0.5)

        found = search_strength(score)
        assert found.best == peak
        assert found.strength == GRID[peak]
        assert len(calls) == len(set(calls)) == len(found.scores)
        most = max(most, len(calls))
    assert most == 15


def test_search__begins_with_seven_points_two_decades_apart():
    found = search_strength(lambda strength: -abs(np.log10(strength) - 0.25))
    tried = [strength_at(position) for position in found.scores]
    np.testing.assert_allclose(tried[:7], [1e-6, 1e-4, 1e-2, 1, 1e2, 1e4, 1e6])
    np.testing.assert_allclose(tried[7:9], [0.1, 10])


def test_search__of_equal_scores_takes_the_larger_lambda():
    assert search_strength(lambda strength: 0.5).strength == pytest.approx(1e6)


def test_search__passes_over_fits_that_failed():
    found = search_strength(lambda s: float("nan") if s < 1e-3 else -abs(np.log10(s) - 1))
    assert found.strength == pytest.approx(10)
