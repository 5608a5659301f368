"""k-NN against the published program's numbers, a naive matrix and scikit-learn."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.neighbors import KNeighborsClassifier

from paucal.evaluation.protocols import knn
from paucal.evaluation.protocols.knn import knn_scores, nearest
from paucal.metrics.measures import hits
from vectors import fill

RECORDED = json.loads((Path(__file__).parents[2] / "vectors" / "knn.json").read_text())


def recorded_inputs(rule):
    center = torch.from_numpy(fill.tensor("knn.center", (5, 16), 0.35, rule))
    labels = {n: torch.arange(n) % 5 for n in (200, 50)}
    train, test = (
        F.normalize(torch.from_numpy(fill.tensor(f"knn.{name}", (n, 16), rule=rule)) + center[labels[n]], dim=1)
        for name, n in (("train", 200), ("test", 50))
    )
    return train, labels[200], test, labels[50]


@pytest.mark.parametrize("rule", ["mix", "sine"])
@pytest.mark.parametrize("k", [10, 20])
def test_knn__reproduces_the_published_program(rule, k):
    train, labels, test, test_labels = recorded_inputs(rule)
    expected = RECORDED["runs"][rule]["expected"][f"k{k}"]
    scores = knn_scores(train, labels, test, 5, [k])[k]
    order = scores.argsort(1, descending=True)
    assert order[:, 0].tolist() == expected["predictions"]
    assert order[:, 1].tolist() == expected["second"]
    values = torch.tensor(expected["scores"]["values"], dtype=torch.float64).view(5, 5)
    torch.testing.assert_close(scores[:5], values, rtol=1e-5 if rule == "mix" else 5e-5, atol=1e-6)
    assert 100 * hits(scores, test_labels).mean() == pytest.approx(expected["top1"])
    assert 100 * hits(scores, test_labels, 5).mean() == pytest.approx(expected["top5"])


def random_features(n, dim=8, seed=0):
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def test_nearest__equals_the_full_matrix_whatever_the_chunks(monkeypatch):
    train, test = random_features(300), random_features(70, seed=1)
    full = (F.normalize(test, dim=1) @ F.normalize(train, dim=1).T).topk(25)
    for rows, chunk in ((1 << 14, 1 << 24), (64, 128), (7, 7), (300, 1)):
        monkeypatch.setattr(knn, "TRAIN_ROWS_PER_CHUNK", rows)
        monkeypatch.setattr(knn, "MAX_SIMILARITIES", chunk)
        values, index = nearest(train, test, 25)
        torch.testing.assert_close(values, full.values)
        assert torch.equal(index, full.indices)


def test_nearest__of_equal_cosines_the_earlier_row_stays(monkeypatch):
    # Powers of two, so that every cosine is exact; rows 1, 3, 4, 6 and 8 tie.
    axis, other = [2.0, 0.0], [0.0, 4.0]
    train = torch.tensor([other, axis, other, axis, axis, other, axis, other, axis])
    for rows in (9, 4, 2, 1):
        monkeypatch.setattr(knn, "TRAIN_ROWS_PER_CHUNK", rows)
        _, index = nearest(train, torch.tensor([[1.0, 0.0]]), 4)
        assert index.tolist() == [[1, 3, 4, 6]], rows


def test_knn__equals_scikit_learn():
    generator = np.random.default_rng(0)
    labels = generator.integers(4, size=200)
    train = F.normalize(random_features(200) + 0.7 * torch.eye(4, 8)[labels], dim=1)
    test = F.normalize(random_features(60, seed=3), dim=1)
    peer = KNeighborsClassifier(
        10, weights=lambda distance: np.exp((1 - distance**2 / 2) / 0.07), algorithm="brute"
    ).fit(train.numpy(), labels)
    votes = knn_scores(train, torch.from_numpy(labels), test, 4)[10]
    np.testing.assert_allclose(votes / votes.sum(1, keepdim=True), peer.predict_proba(test.numpy()), rtol=1e-4)


def test_knn__clamps_k_to_what_exists_and_half_precision_is_enough():
    train, test = random_features(12), random_features(3, seed=1)
    labels = torch.arange(12) % 3
    scores = knn_scores(train, labels, test, 3)
    assert list(scores) == [10, 12]
    votes = ((F.normalize(test, dim=1) @ F.normalize(train, dim=1).T).double() / 0.07).exp()
    expected = torch.stack([votes[:, labels == k].sum(1) for k in range(3)], 1)
    torch.testing.assert_close(scores[12], expected, rtol=1e-5, atol=0)
    half = knn_scores(train.half(), labels, test.half(), 3)[12]
    # Seven roundings of 2^-11: of both features as they are given, as they are squared and as they are divided, and of
    # their product, which is at most 1; votes are exp(product / 0.07).
    torch.testing.assert_close(half, expected, rtol=math.expm1(7 * 2**-11 / 0.07), atol=0)


def test_knn__scale_of_features_does_not_matter():
    train, test, labels = random_features(30), random_features(5, seed=1), torch.arange(30) % 3
    once = knn_scores(train, labels, test, 3, [5])[5]
    torch.testing.assert_close(knn_scores(train * 7, labels, test / 3, 3, [5])[5], once, rtol=1e-4, atol=0)


@pytest.mark.parametrize(("n", "k"), [(0, 5), (4, 0)])
def test_knn__refuses_nothing_to_ask(n, k):
    with pytest.raises(ValueError, match="expected training images and k >= 1"):
        knn_scores(random_features(n), torch.zeros(n, dtype=torch.long), random_features(2), 2, [k])
