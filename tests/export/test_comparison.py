"""What is said of an exported model beside the original."""

import math

import pytest
import torch

from paucal.export.comparison import compare, timed

ORIGINAL = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])


def test_compare__counts_by_hand():
    exported = torch.tensor([[0.9, 0.1], [0.45, 0.55], [0.2, 0.8], [0.3, 0.7]])
    found = compare(ORIGINAL, exported, (2.0, 1.0), torch.tensor([0, 0, 1, 0]))
    assert found.images == 4
    assert found.largest == pytest.approx(0.15)
    assert found.agreement == 0.75
    assert found.top1 == (0.75, 0.5)
    assert compare(ORIGINAL, exported, (2.0, 1.0), None).top1 is None


def test_compare__asks_a_model_of_several_labels_for_the_same_ones():
    exported = torch.tensor([[0.9, 0.1], [0.6, 0.55], [0.2, 0.8], [0.4, 0.9]])
    assert compare(ORIGINAL, exported, (1.0, 1.0), None, thresholds=(0.5, 0.5)).agreement == 0.75
    assert compare(ORIGINAL, exported, (1.0, 1.0), None, thresholds=(0.5, 0.3)).agreement == 1.0


def test_compare__takes_no_numbers_for_the_largest_difference():
    exported = ORIGINAL.clone()
    exported[0] = math.nan
    found = compare(ORIGINAL, exported, (1.0, 1.0), None)
    assert found.largest == math.inf


def test_timed__calls_both_in_turn():
    calls = []
    first, second = timed(lambda: calls.append("a"), lambda: calls.append("b"))
    assert calls == ["a", "b"] * 10
    assert 0 <= first < 1000
    assert 0 <= second < 1000
