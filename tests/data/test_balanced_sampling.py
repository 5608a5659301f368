"""Epochs that show as many images of every class."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paucal.data.sampler import StepSampler, balanced_order


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(0, 99))
def test_balanced_order__gives_every_class_its_share(labels, seed):
    labels = np.asarray(labels)
    order, again = balanced_order(labels, np.random.default_rng(seed))
    assert len(order) == len(again) == len(labels)
    shares = Counter(labels[order].tolist())
    assert max(shares.values()) - min(shares.values()) <= 1
    assert set(shares) == set(labels.tolist()) or len(labels) < len(set(labels.tolist()))
    assert len(set(zip(order.tolist(), again.tolist(), strict=True))) == len(labels)  # never the same view twice
    for label in shares:
        drawn = Counter(order[labels[order] == label].tolist())
        everyone = [drawn[place] for place in np.flatnonzero(labels == label).tolist()]
        assert max(everyone) - min(everyone) <= 1


def epochs(**changes) -> list[list]:
    labels = np.asarray([0] * 27 + [1] * 3)
    sampler = StepSampler(np.arange(100, 130), 10, 9, seed=5, labels=labels, **changes)
    return list(sampler)


def test_sampler__balanced_goes_on_anywhere_and_over_processes():
    whole = epochs()
    assert epochs(start=4) == whole[4:]
    both = [a + b for a, b in zip(epochs_of(0), epochs_of(1), strict=True)]
    assert both == whole
    shown = Counter(key.index for batch in whole[:3] for key in batch)
    assert sum(count for index, count in shown.items() if index >= 127) == 15
    assert whole[:3] != whole[3:6]


def epochs_of(rank: int) -> list[list]:
    labels = np.asarray([0] * 27 + [1] * 3)
    return list(StepSampler(np.arange(100, 130), 5, 9, seed=5, labels=labels, rank=rank, world_size=2))


@pytest.mark.parametrize("repeats", [1, 3])
def test_sampler__balanced_never_shows_a_view_twice(repeats):
    sampler = StepSampler(np.arange(12), 4, 6, seed=0, labels=np.asarray([0] * 10 + [1] * 2), repeats=repeats)
    keys = [key for step in list(sampler)[:3] for key in step]
    assert len(set(keys)) == len(keys) == 12
