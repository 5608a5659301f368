import random
import time

import numpy as np
import pytest
import torch

from data.seeding import seeded
from paucal.data.randomness import derive_seed


def _draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(()).item()


def test_derive_seed__is_stable_over_versions():
    # Stored runs rely on these numbers; a change here changes the order of every resumed run.
    assert derive_seed(0) == 4246866556266386882
    assert derive_seed(3, 1, 4) == 8553663497235011197


def test_derive_seed__distinguishes_order_and_grouping():
    seeds = {derive_seed(*parts) for parts in [(1, 2), (2, 1), (12,), (1, 2, 0), (0, 1, 2), (-1, 2)]}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_derive_seed__accepts_numpy_integers():
    assert derive_seed(np.int64(5), 7) == derive_seed(5, 7)


def test_seeded__fixes_all_three_generators():
    with seeded(1, 2):
        first = _draws()
    with seeded(1, 2):
        second = _draws()
    with seeded(1, 3):
        third = _draws()
    assert first == second
    assert all(a != b for a, b in zip(first, third, strict=True))


def test_seeded__restores_the_outside_even_after_an_error():
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = _draws()
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    with pytest.raises(ZeroDivisionError), seeded(9):
        _draws()[0] / 0
    assert _draws() == expected


def test_seeded__is_cheap():
    best = float("inf")
    for _ in range(200):
        start = time.perf_counter()
        with seeded(1, 2, 3):
            pass
        best = min(best, time.perf_counter() - start)
    assert best < 300e-6  # about 80 us on an idle core


def test_derive_seed__depends_on_the_order():
    assert derive_seed(0, 1) == derive_seed(0, 1) != derive_seed(1, 0)
