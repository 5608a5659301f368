import numpy as np
import pytest
import torch

from paucal.evaluation.protocols.few_labels import draw_few, few_label_curve
from paucal.types import UserError


def blobs(n=120, seed=0, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    return torch.randn(n, 5, generator=generator) + spread * torch.eye(3, 5)[labels], labels


def test_draw__gives_so_many_of_each_class_and_fewer_are_among_more():
    labels = torch.arange(40) % 4
    few, more = draw_few(labels, 2, seed=5), draw_few(labels, 6, seed=5)
    assert torch.bincount(labels[few]).tolist() == [2] * 4
    assert torch.bincount(labels[more]).tolist() == [6] * 4
    assert set(few.tolist()) < set(more.tolist())
    assert few.tolist() != draw_few(labels, 2, seed=6).tolist()
    assert len(draw_few(torch.tensor([0, 0, 0, 1]), 3, seed=0)) == 4


def test_curve__rises_with_labels_and_repeats_differ():
    curve = few_label_curve(blobs(300), blobs(seed=1), 3, repeats=4)
    assert [few.per_class for few in curve] == [1, 2, 5, 10, 50]
    means = [few.hits.mean() for few in curve]
    assert means[0] + 0.1 < means[-1] > 0.8
    assert all(few.hits.shape == (4, 120) for few in curve)
    assert np.ptp(curve[0].hits.mean(1)) > 0
    again = few_label_curve(blobs(300), blobs(seed=1), 3, repeats=4)
    assert all((a.hits == b.hits).all() for a, b in zip(curve, again, strict=True))


def test_curve__does_not_depend_on_shift_and_scale_of_features():
    train, test = blobs(), blobs(seed=1)
    curve = few_label_curve(train, test, 3, (5,), repeats=2)
    moved = few_label_curve((train[0] * 40 + 7, train[1]), (test[0] * 40 + 7, test[1]), 3, (5,), repeats=2)
    assert (curve[0].hits == moved[0].hits).mean() > 0.99


def test_curve__leaves_out_numbers_beyond_what_exists():
    assert [few.per_class for few in few_label_curve(blobs(30), blobs(), 3, repeats=1)] == [1, 2, 5, 10]
    assert [few.per_class for few in few_label_curve(blobs(9), blobs(), 3, (5, 10), repeats=1)] == [3]


def test_curve__refuses_features_of_another_model():
    test = blobs()
    with pytest.raises(UserError, match="5 channels, but the test features have 3"):
        few_label_curve(blobs(), (test[0][:, :3], test[1]), 3)
