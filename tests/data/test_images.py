"""Positions that are spread over a set."""

from paucal.data.images import evenly_spaced


def test_evenly_spaced__covers_the_range_without_repeats():
    assert evenly_spaced(10, 4).tolist() == [0, 2, 5, 7]
    assert evenly_spaced(3, 8).tolist() == [0, 1, 2]
