"""How an exported model's answers are compared with the original's."""

import math

import pytest
import torch
from PIL import Image
from torch import nn

from paucal.export.comparison import compare, compare_all, compare_objects

OWN = torch.tensor([0.6, 0.4])


def test_compare__counts_by_hand():
    found = compare(OWN, torch.tensor([0.45, 0.55]), torch.tensor(0), None)
    assert found.largest == pytest.approx(0.15)
    assert found.agreement == 0.0
    assert found.accuracy == (1.0, 0.0)
    assert compare(OWN, OWN, None, None) == (0.0, 1.0, None)
    assert compare(OWN, OWN, torch.tensor(255), None).accuracy == (0.0, 0.0)  # a class number, not an unlabelled pixel


def test_compare__counts_labelled_pixels_of_masks():
    own = torch.tensor([[[0.9, 0.8, 0.3, 0.6]], [[0.1, 0.2, 0.7, 0.4]]])
    exported = own.flip(0).where(torch.tensor([False, True, False, False]), own)
    found = compare(own, exported, torch.tensor([[0, 0, 0, 255]]), None)
    assert found.agreement == 0.75
    assert found.accuracy == pytest.approx((2 / 3, 1 / 3))


def test_compare__asks_a_model_of_several_labels_for_the_same_ones():
    exported = torch.tensor([0.6, 0.55])
    assert compare(OWN, exported, None, (0.5, 0.5)).agreement == 0.0
    assert compare(OWN, exported, None, (0.5, 0.3)).agreement == 1.0


def test_compare__takes_no_numbers_for_the_largest_difference():
    assert compare(OWN, torch.tensor([math.nan, 0.4]), None, None).largest == math.inf


def objects(*rows):
    return torch.tensor([*rows, [0.0] * 6])


def test_compare_objects__finds_each_object_in_the_other_table():
    first, second, unsure = [0.0, 0, 10, 10, 0.9, 1], [20.0, 20, 40, 40, 0.5, 0], [5.0, 5, 9, 9, 0.2, 0]
    moved, other_class = [20.0, 20, 40, 41, 0.4, 0], [0.0, 0, 10, 10, 0.9, 2]
    own = objects(first, second, unsure)
    assert compare_objects(own, objects(first, second)) == (0.0, 1.0, None)
    assert compare_objects(own, objects(moved, first)) == (pytest.approx(0.1), 1.0, None)
    assert compare_objects(own, objects(other_class, second)) == (0.0, 0.5, None)
    assert compare_objects(own, objects(first)).agreement == pytest.approx(2 / 3)
    assert compare_objects(own, objects()).agreement == 0.0
    assert compare_objects(objects(unsure), objects()).agreement == 1.0
    assert compare_objects(own, own * math.nan).agreement == 0.0


class Brightness:
    """A model whose probability of the first class is the grey level, from 0 to 1."""

    def __init__(self):
        self.network, self.asked = nn.Identity(), []

    def prepare(self, image, pixels):
        return torch.tensor(image.getpixel((0, 0)) / 255)

    def predict(self, network, given, pixels):
        self.asked.append((network, pixels))
        level = network(given)
        return torch.stack([level, 1 - level])

    def compare(self, own, exported, label):
        return compare(own, exported, label, None)


class Darker(nn.Module):
    def forward(self, level):
        return level - 0.2


def test_compare_all__asks_both_about_each_image_in_turn():
    subject, darker, done = Brightness(), Darker(), []
    images = [Image.new("L", (1, 1), grey) for grey in (51, 153, 255)]  # 0.2, 0.6 and 1.0
    labels = [torch.tensor(1), torch.tensor(0), torch.tensor(0)]
    found = compare_all(subject, darker, True, images, labels, lambda *counts: done.append(counts))
    assert (found.images, found.agreement, found.accuracy) == (3, pytest.approx(2 / 3), (1.0, pytest.approx(2 / 3)))
    assert found.largest == pytest.approx(0.2)
    assert subject.asked == [(subject.network, False), (darker, True)] * 4
    assert done == [(1, 3), (2, 3), (3, 3)]
    assert all(0 <= each < 1000 for each in found.milliseconds)
    assert compare_all(subject, darker, True, images, None).accuracy is None
