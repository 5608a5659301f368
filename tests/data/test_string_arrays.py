"""Strings of few different values: they are kept as given, and an unexpected one is refused."""

import numpy as np
import pytest

from paucal.data.splits.split import Split
from paucal.data.string_arrays import GroupedStrings, RepeatedStrings, StringArray, argsort_strings


def test_repeated_strings__are_those_of_the_array():
    given = np.array(["test", "train", "unused", "train"])
    strings = RepeatedStrings.from_strings(("train", "val", "test", "unused"), given)
    assert list(strings) == given.tolist()
    assert strings.equals("train").tolist() == [False, True, False, True]


def test_split__refuses_a_part_that_does_not_exist():
    with pytest.raises(ValueError, match=r"expected one of .*'unused'.*, got 'tset'"):
        Split(np.array(["train", "tset"]), "")


def test_repeated_strings__are_words_by_position():
    assert list(RepeatedStrings(("train", "test"), np.array([0, 0, 1]))) == ["train", "train", "test"]
    assert argsort_strings(["b", "a"]).tolist() == [1, 0]


def test_string_array__takes_and_sorts():
    names = StringArray.from_strings(["b", "a", "c"])
    assert (names[1], list(names.take(np.array([2, 0]))), names.argsort().tolist()) == ("a", ["c", "b"], [1, 0, 2])


def test_grouped_strings__are_joined_and_sorted():
    names = [StringArray.from_strings(["x", "a"]), StringArray.from_strings(["m"])]
    strings = GroupedStrings(["2.tar", "1.tar"], [2, 1], names.__getitem__)
    assert (list(strings), strings[2]) == (["2.tar/x", "2.tar/a", "1.tar/m"], "1.tar/m")
    assert strings.argsort().tolist() == [2, 1, 0]
