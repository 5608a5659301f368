"""What training sees of random classified sets is what was put in; see `classes.py`."""

from collections import Counter

import pytest

from promises.classes import trial


@pytest.mark.parametrize("begin", range(0, 48, 12))
def test_classes__are_read_as_they_were_put_in_or_refused(tmp_path, begin):
    ends: Counter[str] = Counter()
    for seed in range(begin, begin + 12):
        folder = tmp_path / str(seed)
        folder.mkdir()
        ends[trial(folder, seed).partition(":")[0]] += 1
    assert ends["read"] >= 9  # what is sound is not refused
