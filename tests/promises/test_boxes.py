"""Random sets with boxes are read as they were put in; none of the sound ones is refused."""

from pathlib import Path

import pytest

from promises.boxes import LAYOUTS, spoilt_trial, trial

ROUNDS = 6


@pytest.mark.parametrize("layout", range(len(LAYOUTS)), ids=[layout.__name__ for layout in LAYOUTS])
def test_random_sets__come_out_as_they_were_put_in(tmp_path: Path, layout: int):
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert trial(folder, 1000 + layout + number * len(LAYOUTS)) == "read"


@pytest.mark.parametrize("layout", range(len(LAYOUTS)), ids=[layout.__name__ for layout in LAYOUTS])
def test_random_sets_without_one_of_their_images__are_not_read_in_silence(tmp_path: Path, layout: int):
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert spoilt_trial(folder, 2000 + layout + number * len(LAYOUTS)).partition(":")[0] in ("refused", "left out")
