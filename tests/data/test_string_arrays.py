"""Strings of few different values: they are kept as given, and an unexpected one is refused."""

import numpy as np
import pytest

from paucal.data.splits.split import Split
from paucal.data.string_arrays import RepeatedStrings


def test_repeated_strings__are_those_of_the_array():
    given = np.array(["test", "train", "unused", "train"])
    strings = RepeatedStrings.from_strings(("train", "val", "test", "unused"), given)
    assert list(strings) == given.tolist()
    assert strings.equals("train").tolist() == [False, True, False, True]


def test_split__refuses_a_part_that_does_not_exist():
    with pytest.raises(ValueError, match=r"expected one of .*'unused'.*, got 'tset'"):
        Split(np.array(["train", "tset"]), "")
