"""Random sets with masks: some dozens here, many by hand (see `masks.py`)."""

import pytest

from promises import masks


@pytest.mark.parametrize("first", range(0, 32, 8))
def test_sets_with_masks__are_read_as_they_were_made_or_refused(tmp_path, first):
    for seed in range(first, first + 8):
        (folder := tmp_path / str(seed) / "set").mkdir(parents=True)
        case = masks.make(folder, seed)
        said = masks.outcome(case)
        assert said == "read" or not case.is_sound, f"seed {seed}: {said}"


def test_a_trial__says_what_came_of_it(tmp_path):
    (tmp_path / "set").mkdir()
    assert masks.trial(tmp_path / "set", 0).partition(":")[0] in ("read", "refused")
