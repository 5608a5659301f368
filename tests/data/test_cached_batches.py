"""Batches that are read once, and by whom."""

import pytest

from paucal.data import loader as kept
from paucal.data.loader import CachedBatches


class Readings:
    """Makes batches and notes with how many processes, and how often they were read."""

    def __init__(self):
        self.workers, self.passes = [], 0

    def __call__(self, workers):
        self.workers.append(workers)
        return self

    def __iter__(self):
        self.passes += 1
        return iter(["a", "b"])


@pytest.mark.parametrize(
    ("n_bytes", "device", "workers", "passes"),
    [
        (kept.MAX_CACHED_BYTES, "cpu", 0, 1),
        (kept.MAX_CACHED_BYTES, "cuda", 3, 1),
        (kept.MAX_CACHED_BYTES + 1, "cpu", 3, 2),
    ],
)
def test_batches__are_read_once_where_they_are_small_and_without_processes_on_a_cpu(n_bytes, device, workers, passes):
    readings = Readings()
    batches = CachedBatches(readings, n_bytes, workers=3, device=device)
    assert readings.workers == []  # nothing before the first pass
    assert [list(batches), list(batches)] == [["a", "b"]] * 2
    assert (readings.workers, readings.passes) == ([workers], passes)


def test_batches__may_be_none_at_all():
    made = []
    batches = CachedBatches(lambda workers: made.append(workers) or [], 0, workers=0, device="cpu")
    assert [list(batches), list(batches), made] == [[], [], [0]]
