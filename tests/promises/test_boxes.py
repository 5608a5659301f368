"""Random sets with boxes are read as they were put in; none of the sound ones is refused."""

from pathlib import Path

import pytest

from promises.boxes import LAYOUTS, trial

ROUNDS = 6


@pytest.mark.parametrize("layout", range(len(LAYOUTS)), ids=[layout.__name__ for layout in LAYOUTS])
def test_random_sets__come_out_as_they_were_put_in(tmp_path: Path, layout: int):
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert trial(folder, 1000 + layout + number * len(LAYOUTS)) == "read"
