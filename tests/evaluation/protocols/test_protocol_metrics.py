"""Metrics against scikit-learn, torchmetrics and naive loops, on whole sets and on resampled ones."""

import numpy as np
import pytest
import torch
from sklearn.metrics import recall_score, roc_auc_score, top_k_accuracy_score
from torchmetrics.functional.classification import multiclass_accuracy

from paucal.evaluation.protocols.metrics import Mean, best_of, hits, measure_of, value_of
from paucal.evaluation.protocols.resampling import Resampling, interval, paired_difference


def random_case(n=200, classes=5, seed=0):
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=n)
    scores = generator.normal(size=(n, classes)) + 0.8 * np.eye(classes)[labels]
    return torch.from_numpy(scores), torch.from_numpy(labels)


def repeated(counts):
    """The rows that (1, N) counts stand for."""
    return np.repeat(np.arange(counts.shape[1]), counts[0].astype(int))


COUNTS = np.random.default_rng(7).multinomial(200, [1 / 200] * 200, size=1).astype(float)


def test_accuracy__equals_torchmetrics_and_scikit_learn():
    scores, labels = random_case()
    expected = multiclass_accuracy(scores, labels, 5, average="micro")
    assert value_of(measure_of("accuracy", scores, labels), 200) == pytest.approx(float(expected), abs=1e-6)
    top3 = hits(scores, labels, 3).mean()
    assert top3 == pytest.approx(top_k_accuracy_score(labels.numpy(), scores.numpy(), k=3))


def test_mean_per_class__equals_macro_recall_also_when_resampled():
    scores, labels = random_case()
    labels[labels == 4] = 3  # a class without images
    measure, predicted = measure_of("mean_per_class", scores, labels), scores.argmax(1).numpy()
    for counts in (np.ones((1, 200)), COUNTS):
        rows = repeated(counts)
        present = np.unique(labels.numpy()[rows])
        expected = recall_score(labels.numpy()[rows], predicted[rows], labels=present, average="macro")
        assert measure(counts)[0] == pytest.approx(expected)


def test_roc_auc__equals_scikit_learn_with_ties_also_when_resampled():
    scores, labels = random_case(classes=2)
    scores = (scores * 3).round() / 3
    measure, margin = measure_of("roc_auc", scores, labels), (scores[:, 1] - scores[:, 0]).numpy()
    for counts in (np.ones((1, 200)), COUNTS):
        rows = repeated(counts)
        assert measure(counts)[0] == pytest.approx(roc_auc_score(labels.numpy()[rows], margin[rows]))


def naive_map11(scores, labels):
    """Straight from the definition, one threshold at a time."""
    found = []
    for k in range(scores.shape[1]):
        known = labels[:, k] >= 0
        score, label = scores[known, k], labels[known, k] > 0
        points = []
        for threshold in np.unique(score):
            shown = score >= threshold
            points.append((label[shown].sum() / label.sum(), label[shown].sum() / shown.sum()))
        levels = [t / 10 for t in range(11)]
        found.append(np.mean([max((p for r, p in points if r >= t - 1e-9), default=0) for t in levels]))
    return np.mean(found)


def test_map11__equals_a_naive_loop_with_ties_and_ignored_images():
    generator = np.random.default_rng(1)
    labels = generator.integers(-1, 2, size=(200, 4))
    scores = (generator.normal(size=(200, 4)) + labels).round(1)
    measure = measure_of("map11", torch.from_numpy(scores), torch.from_numpy(labels))
    for counts in (np.ones((1, 200)), COUNTS):
        rows = repeated(counts)
        assert measure(counts)[0] == pytest.approx(naive_map11(scores[rows], labels[rows]), rel=1e-9)


def test_map11__of_a_known_ranking():
    # Right, wrong, right, wrong: precision 1 up to recall 0.5, then 2/3: (6 * 1 + 5 * 2/3) / 11.
    scores, labels = torch.tensor([[4.0], [3.0], [2.0], [1.0]]), torch.tensor([[1], [0], [1], [0]])
    assert value_of(measure_of("map11", scores, labels), 4) == pytest.approx((6 + 10 / 3) / 11)


def test_map11__leaves_out_a_class_without_positives():
    scores = torch.tensor([[1.0, 5.0], [0.0, 1.0]])
    labels = torch.tensor([[1, 0], [0, 0]])
    assert value_of(measure_of("map11", scores, labels), 2) == 1.0


def test_hits__ties_are_broken_by_no_order():
    scores, labels = torch.zeros(1, 4), torch.tensor([3])
    assert hits(scores, labels).tolist() == [0.25]
    assert hits(scores, labels, 2).tolist() == [0.5]
    assert hits(scores, labels, 5).tolist() == [1.0]


def test_best_of__passes_over_what_is_no_number():
    assert best_of([float("nan"), 0.2, 0.4, 0.4]) == 2
    assert best_of([float("nan")]) == 0


@pytest.mark.parametrize(("name", "classes"), [("map11", 3), ("roc_auc", 3)])
def test_measure__refuses_labels_of_another_kind(name, classes):
    with pytest.raises(ValueError, match=r"expected labels as many|two classes"):
        measure_of(name, torch.zeros(4, classes), torch.zeros(4, dtype=torch.long))


def test_interval__covers_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(3)
    inside = 0
    for _ in range(200):
        score = interval(Mean(generator.random(150) < 0.7), 150, Resampling(draws=200))
        inside += score.low <= 0.7 <= score.high
    assert 0.89 <= inside / 200 <= 0.99


def test_interval__of_perfection_is_still_one():
    score = interval(Mean(np.ones(20)), 20, Resampling(draws=50))
    assert score.value == score.high == 1.0
    assert 0.8 < score.low < 0.9


def test_paired_difference__is_narrower_than_that_of_different_images():
    generator = np.random.default_rng(5)
    hard = generator.random(400)
    first, second = Mean(hard < 0.62), Mean(hard < 0.6)  # they differ on a few images only
    paired = paired_difference(first, second, 400, Resampling())
    assert paired.value == pytest.approx(first.values.mean() - second.values.mean())
    assert paired.high - paired.low < 0.04
    alone = interval(first, 400, Resampling())
    assert alone.high - alone.low > 0.08
    same = paired_difference(first, first, 400, Resampling())
    assert (same.value, same.low) == (0.0, None)


def test_resampling__does_not_depend_on_the_chunks(monkeypatch):
    whole = np.concatenate(list(Resampling(seed=4, draws=12).counts(30)))
    monkeypatch.setattr("paucal.evaluation.protocols.resampling.CHUNK", 100)
    chunks = list(Resampling(seed=4, draws=12).counts(30))
    assert len(chunks) == 4
    np.testing.assert_array_equal(np.concatenate(chunks), whole)
    assert (whole.sum(1) == 30).all()
